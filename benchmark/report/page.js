"use strict";
// Sorting, filtering and showing lines. Without this script the page is complete, in the board's own order.

function sortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];

  function value(row, column) {
    const cell = row.cells[column];
    if (cell.classList.contains("label")) return cell.textContent.trim();
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  }

  function compare(column, sign) {
    return (one, other) => {
      const a = value(one, column), b = value(other, column);
      if (a === null || b === null) return (a === null) - (b === null); // what has no number stays last
      return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    };
  }

  heads.forEach((head, column) => {
    const button = head.querySelector("button.sort");
    const first = button.dataset.first || "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    button.disabled = false;
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = now === null ? first : now === first ? second : null;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? original.toSorted(compare(column, next === "ascending" ? 1 : -1)) : original));
    });
  });
}

function filterable(section) {
  const tools = section.querySelector(".tools");
  const table = section.querySelector("table");
  const search = tools.querySelector("input");
  const selects = [...tools.querySelectorAll("select")];
  const output = tools.querySelector("output");
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells];
  const valuesOf = new Map([...rows, ...heads].map((e) => [e, e.dataset.values ? JSON.parse(e.dataset.values) : null]));

  function chosen(element, scope) {
    return selects.every((select) =>
      select.dataset.scope !== scope || select.value === "" ||
      valuesOf.get(element)[Number(select.dataset.axis)] === select.value);
  }

  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const label = [...row.querySelectorAll(".label")].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !(chosen(row, "row") && words.every((word) => label.includes(word)));
      shown += !row.hidden;
    }
    heads.forEach((head, column) => {
      if (!valuesOf.get(head)) return;
      head.hidden = !chosen(head, "column");
      for (const row of rows) row.cells[column].hidden = head.hidden;
    });
    output.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows`;
  }

  tools.hidden = false;
  for (const event of ["input", "change"]) tools.addEventListener(event, update);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    search.value = "";
    update();
  });
  update(); // a browser may have kept what was typed before a reload
}

for (const section of document.querySelectorAll("section.table")) {
  sortable(section.querySelector("table"));
  filterable(section);
}

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
