"use strict";
// Tables that sort and filter, legends that hide lines. Every page but the comparison is complete without scripts.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// The reader's choices are kept in the address as #name=value&...; a fragment without "=" is an anchor in the page and
// leaves them as they are.
const chosen = {
  text: "",
  atAnchor: () => location.hash !== "" && !location.hash.includes("="),
  read() {
    if (!chosen.atAnchor()) chosen.text = location.hash.slice(1);
    return new URLSearchParams(chosen.text);
  },
  write(changes) {
    const state = chosen.read();
    for (const [name, value] of Object.entries(changes)) {
      if (value) state.set(name, value);
      else state.delete(name);
    }
    const text = state.toString();
    if (text !== chosen.read().toString()) {
      chosen.text = text;
      history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    }
  },
  follow(restore) {
    addEventListener("hashchange", () => { if (!chosen.atAnchor()) restore(); });
  },
};

const NUMBER = /(\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)/;

// Sorts texts by the numbers in them: alpha 0.05 before 0.3, 1e-05 before 0.001, 900 images before 5,000.
function inOrder(one, other) {
  const a = one.split(NUMBER), b = other.split(NUMBER); // every second part is a number
  const valueOf = (part) => Number(part.replaceAll(",", ""));
  for (let i = 0; i < Math.min(a.length, b.length); i++) {
    const order = i % 2 ? valueOf(a[i]) - valueOf(b[i]) : a[i].localeCompare(b[i], "en");
    if (order) return order;
  }
  return a.length - b.length;
}

function number(body) {
  [...body.rows].forEach((row, order) => { row.order = order; });
}

// Returns a function that sorts the rows as the address says; `name` identifies the table there.
function sortable(table, name) {
  const heads = [...table.tHead.rows[0].cells];
  const keyOf = (head, column) => head.querySelector("button.sort")?.dataset.name ?? String(column);

  function value(row, column) {
    const cell = row.cells[column];
    if (cell.classList.contains("label")) return cell.textContent.trim();
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  }

  function compare(column, sign) {
    return (one, other) => {
      const a = value(one, column), b = value(other, column);
      if (a === null || b === null) return (a === null) - (b === null); // cells without a number stay last
      return sign * (typeof a === "number" ? a - b : inOrder(a, b));
    };
  }

  function sort() {
    const [asked, way] = (chosen.read().get(name) ?? "").split(".");
    const column = way === "ascending" || way === "descending" ? heads.findIndex((head, i) => keyOf(head, i) === asked) : -1;
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", way);
      else head.removeAttribute("aria-sort");
    });
    const rows = [...table.tBodies[0].rows].sort((one, other) => one.order - other.order);
    table.tBodies[0].append(...(column < 0 ? rows : rows.sort(compare(column, way === "ascending" ? 1 : -1))));
  }

  heads.forEach((head, column) => {
    const button = head.querySelector("button.sort");
    if (!button) return;
    const first = button.dataset.first || "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    button.disabled = false;
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = now === null ? first : now === first ? second : null;
      chosen.write({ [name]: next && `${keyOf(head, column)}.${next}` });
      sort();
    });
  });
  number(table.tBodies[0]);
  sort();
  return sort;
}

function wordsOf(input) {
  return input.value.toLowerCase().split(/\s+/).filter(Boolean);
}

function clearedByEscape(input, update) {
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    input.value = "";
    update();
  });
}

function restored(select, value) {
  const known = [...select.options].findIndex((option) => option.value === value);
  select.selectedIndex = Math.max(known, 0);
}

function filterable(section, tools, name, sort) {
  const table = section.querySelector("table");
  const search = tools.querySelector("input");
  const selects = [...tools.querySelectorAll("select")];
  const output = tools.querySelector("output");
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells];
  const valuesOf = new Map([...rows, ...heads].map((e) => [e, e.dataset.values ? JSON.parse(e.dataset.values) : null]));
  const keyOf = (select) => `${name}${select.dataset.scope}${select.dataset.axis}`;

  function matches(element, scope) {
    return selects.every((select) =>
      select.dataset.scope !== scope || select.value === "" ||
      valuesOf.get(element)[Number(select.dataset.axis)] === select.value);
  }

  function show() {
    const words = wordsOf(search);
    let shown = 0;
    for (const row of rows) {
      const label = [...row.querySelectorAll(".label")].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !(matches(row, "row") && words.every((word) => label.includes(word)));
      shown += !row.hidden;
    }
    heads.forEach((head, column) => {
      if (!valuesOf.get(head)) return;
      head.hidden = !matches(head, "column");
      for (const row of rows) row.cells[column].hidden = head.hidden;
    });
    output.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows`;
  }

  function update() {
    chosen.write({ [`${name}words`]: search.value, ...Object.fromEntries(selects.map((s) => [keyOf(s), s.value])) });
    show();
  }

  function restore() {
    const state = chosen.read();
    search.value = state.get(`${name}words`) ?? "";
    for (const select of selects) restored(select, state.get(keyOf(select)) ?? "");
    sort();
    show();
  }

  tools.hidden = false;
  for (const event of ["input", "change"]) tools.addEventListener(event, update);
  clearedByEscape(search, update);
  chosen.follow(restore);
  restore();
}

[...document.querySelectorAll("section.table")].forEach((section, i) => {
  const tools = section.querySelector(".tools:not(#filters)");
  const ofBoard = /^table-\d+$/.test(section.id);
  if (section.id === "compare" || !(tools || ofBoard)) return;
  const name = ofBoard ? `t${section.id.slice(6)}.` : i ? `s${i}.` : "";
  const sort = sortable(section.querySelector("table"), `${name}sort`);
  if (tools) filterable(section, tools, name, sort);
  else chosen.follow(sort);
});

for (const section of document.querySelectorAll("section.figure")) {
  for (const button of section.querySelectorAll(".legend button")) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      for (const line of section.querySelectorAll(`.plot [data-line="${button.dataset.line}"]`)) {
        line.classList.toggle("off", !on);
      }
    });
  }
}
