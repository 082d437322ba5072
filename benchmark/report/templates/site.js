"use strict";
// Sorting, filtering, comparing. Without this script every page but the comparison is complete, in its own order.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function number(body) {
  [...body.rows].forEach((row, order) => { row.order = order; });
}

function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  number(body);

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
    if (!button) return;
    const first = button.dataset.first || "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    button.disabled = false;
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = now === null ? first : now === first ? second : null;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const rows = [...body.rows].sort((one, other) => one.order - other.order);
      body.append(...(next ? rows.sort(compare(column, next === "ascending" ? 1 : -1)) : rows));
    });
  });
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

function filterable(section, tools) {
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
    const words = wordsOf(search);
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
  clearedByEscape(search, update);
  update(); // a browser may have kept what was typed before a reload
}

// The results of the whole site, which the overview and the comparison carry.

const FIELDS = ["dataset", "partition", "skew", "clients", "model", "scale"];
const MOST_ROWS = 100;

function loaded(text) {
  const raw = JSON.parse(text);
  const tasks = raw.tasks.map(([dataset, partition, skew, clients, model, scale, label], order) =>
    ({ dataset, partition, skew, clients, model, scale, label, order }));
  const methods = raw.methods.map(([name, slug], order) => ({ name, slug, order }));
  const results = raw.results.map(([method, task, mean, std, n, asked, seconds, flops, traffic, stage, point, diverged, ablation]) => ({
    method: methods[method], task: tasks[task], mean, std, n, asked, costs: [seconds, flops, traffic], stage, point, diverged, ablation,
    worth: diverged ? -Infinity : mean,
  }));
  return { tasks, methods, results, scales: raw.scales, pairs: raw.pairs, assumes: raw.assumes, rankings: raw.rankings };
}

// The page carries the ranking of every set of tasks that the filters can choose; a set is named by a number whose
// binary digits tell the tasks.
function rankingOf(site, tasks, ablations) {
  const name = tasks.reduce((digits, task) => digits | 1n << BigInt(task.order), 0n).toString(16);
  return (site.rankings[ablations ? 1 : 0][name] ?? []).map(
    ([method, place, better, worse, ahead, compared, tasks, runs, ...costs]) =>
      ({ method: site.methods[method], place, better, worse, ahead, compared, tasks, runs, costs }));
}

const written = (value, digits, unit = "") => value === null ? "—" : value.toFixed(digits) + unit;

function numeric(value, text, kind = "score value") {
  const cell = element("td", { className: kind }, text);
  if (value !== null) cell.dataset.v = value;
  return cell;
}

function link(result) {
  const text = result.mean === null ? "diverged" : result.mean.toFixed(2);
  const made = element("a", { className: "entry", href: `runs/${result.point}.html` }, text);
  if (result.std !== null) made.append(element("span", { className: "std" }, ` ± ${result.std.toFixed(2)}`));
  return made;
}

function seeds(result) {
  const n = result.n === result.asked ? `n=${result.n}` : `n=${result.n}/${result.asked}`;
  const lost = result.diverged ? `${result.diverged} diverged` : "";
  return element("span", { className: "n" }, [result.stage, n, lost].filter((part) => part).join(", "));
}

function headRow(heads) {
  const row = element("tr");
  for (const [text, kind, first] of heads) {
    const button = element("button", { type: "button", className: "sort" }, text);
    if (first) button.dataset.first = first;
    row.append(element("th", { scope: "col", className: kind }, button));
  }
  return element("thead", {}, row);
}

// Selects for the fields of a task; the scales are never mixed, so one of them is always chosen.
function taskFilters(site, update) {
  const tools = document.getElementById("filters");
  const selects = [...tools.querySelectorAll("select[data-field]")];
  for (const select of selects) {
    const values = [...new Set(site.tasks.map((task) => task[select.name]).filter((value) => value !== null))];
    const scales = select.name === "scale";
    values.sort((a, b) => scales ? site.scales.indexOf(a) - site.scales.indexOf(b) :
      typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    if (!scales) select.append(element("option", { value: "" }, "all"));
    for (const value of values) select.append(element("option", { value: String(value) }, String(value)));
    select.parentElement.hidden = values.length < 2 && !scales;
    select.addEventListener("change", update);
  }
  tools.hidden = false;
  return (task) => selects.every((select) => select.value === "" || String(task[select.name]) === select.value);
}

function restored(selects) {
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const select of selects) {
    const value = asked.get(select.name);
    select.selectedIndex = 0;
    if (value !== null && [...select.options].some((option) => option.value === value)) select.value = value;
  }
}

function remembered(selects) {
  const chosen = selects.filter((select) => select.value !== "" && select.options.length > 1 && select.selectedIndex > 0);
  const state = new URLSearchParams(chosen.map((select) => [select.name, select.value])).toString();
  if (state || location.hash.includes("=")) history.replaceState(null, "", state ? `#${state}` : location.pathname);
}

function overview(site) {
  const section = document.getElementById("ranking"), all = document.getElementById("results");
  const tools = document.getElementById("filters"), search = tools.querySelector("input");
  const selects = [...tools.querySelectorAll("select")], output = tools.querySelector("output");
  const body = section.querySelector("tbody"), more = document.getElementById("more");
  const heads = [...section.querySelectorAll("thead th")];
  let limit = MOST_ROWS;

  function rankingRow(row) {
    const name = element("a", { href: `methods/${row.method.slug}.html` }, row.method.name);
    return element("tr", {},
      element("td", { className: "score value place" }, row.place),
      element("th", { scope: "row", className: "label" }, name),
      numeric(row.better, String(row.better), "score"),
      numeric(row.worse, String(row.worse), "score"),
      numeric(row.ahead, `${row.ahead} of ${row.compared}`, "score"),
      numeric(row.tasks, String(row.tasks), "score"),
      numeric(row.runs, String(row.runs), "score"),
      ...row.costs.map((cost) => numeric(cost, written(cost, 2, "×"), "cost")));
  }

  function resultRow(result) {
    const cell = numeric(result.mean, "");
    cell.append(link(result), seeds(result));
    return element("tr", {},
      element("th", { scope: "row", className: "label" }, result.method.name),
      element("td", { className: "label task" }, result.task.label), cell);
  }

  function update() {
    const words = wordsOf(search);
    const ablations = Boolean(selects.find((select) => select.name === "ablations")?.value);
    const chosen = site.results.filter((result) => matches(result.task) && (ablations || !result.ablation));
    const rows = rankingOf(site, site.tasks.filter(matches), ablations);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    body.replaceChildren(...rows.map(rankingRow));
    number(body);
    const named = (name) => words.every((word) => name.toLowerCase().includes(word));
    [...body.rows].forEach((row, i) => { row.hidden = !named(rows[i].method.name); });
    const shown = chosen.filter((result) => named(result.method.name));
    const table = element("table", {},
      headRow([["Method", "label"], ["Task", "label"], ["Accuracy", "score", "descending"]]),
      element("tbody", {}, ...shown.slice(0, limit).map(resultRow)));
    all.querySelector("table").replaceWith(table);
    sortable(table);
    more.hidden = shown.length <= limit;
    more.textContent = `Show all ${shown.length}`;
    const methods = rows.filter((row) => named(row.method.name)).length;
    output.textContent = `${methods} of ${site.methods.length} methods, ${shown.length} of ${site.results.length} results`;
    remembered(selects);
  }

  const changed = () => { limit = MOST_ROWS; update(); };
  const matches = taskFilters(site, changed);
  tools.querySelector("[name=ablations]")?.addEventListener("change", changed);
  restored(selects);
  sortable(section.querySelector("table"));
  search.addEventListener("input", update);
  clearedByEscape(search, update);
  more.addEventListener("click", () => { limit = Infinity; update(); });
  const asked = new URLSearchParams(location.hash.slice(1)).get("words");
  if (asked) search.value = asked;
  addEventListener("hashchange", () => { restored(selects); update(); });
  all.hidden = site.results.length === 0;
  tools.hidden = site.results.length === 0;
  update();
}

function comparison(site) {
  const section = document.getElementById("compare");
  const first = section.querySelector("[name=a]"), second = section.querySelector("[name=b]");
  const tools = document.getElementById("filters"), search = tools.querySelector("input");
  const output = tools.querySelector("output"), selects = [first, second, ...tools.querySelectorAll("select")];
  const verdict = section.querySelector(".verdict"), assumes = section.querySelector(".assumes");
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

  function bar(gap, most) {
    const filled = element("span", { className: gap < 0 ? "negative" : "" });
    filled.style.width = `${most ? 50 * Math.abs(gap) / most : 0}%`;
    return element("span", { className: "difference", ariaHidden: "true" }, filled);
  }

  function ratio(one, other, cost) {
    const a = one.costs[cost], b = other.costs[cost];
    return a !== null && b ? a / b : null;
  }

  function gapOf(one, other) {
    return one.diverged || other.diverged ? null : one.mean - other.mean;
  }

  function row(one, other, most) {
    const gap = gapOf(one, other);
    const cells = [one, other].map((result) => {
      const cell = numeric(result.mean, "");
      cell.append(link(result), seeds(result));
      return cell;
    });
    const difference = numeric(gap, gap === null ? "—" : signed(gap));
    if (gap !== null) difference.append(bar(gap, most));
    return element("tr", {}, element("th", { scope: "row", className: "label task" }, one.task.label), ...cells, difference,
      ...[0, 1, 2].map((cost) => {
        const value = ratio(one, other, cost);
        return numeric(value, written(value, 2, "×"), "cost");
      }));
  }

  function verdictOf(a, b, scale, filtered) {
    if (a === b) return ["Choose two different methods.", ""];
    const flip = a.order > b.order, key = flip ? `${b.order}-${a.order}` : `${a.order}-${b.order}`;
    const found = site.pairs[scale]?.[key];
    if (!found) return [`${a.name} and ${b.name} have no task in common at scale ${scale}.`, ""];
    const [sentence, assumed] = found, names = flip ? { a: b.name, b: a.name } : { a: a.name, b: b.name };
    const whole = filtered ? " This is over all tasks of this scale, not only those shown." : "";
    return [sentence.replaceAll(/\{([ab])\}/g, (_, name) => names[name]) + whole, site.assumes[assumed]];
  }

  function update() {
    const a = site.methods[first.value], b = site.methods[second.value], words = wordsOf(search);
    const scale = tools.querySelector("[name=scale]").value;
    const of = (method) => new Map(site.results.filter((result) => result.method === method).map((r) => [r.task, r]));
    const mine = of(a), theirs = of(b);
    const common = [...mine.keys()].filter((task) => theirs.has(task) && matches(task));
    const shown = common.filter((task) => words.every((word) => task.label.toLowerCase().includes(word)));
    const filtered = [...mine.keys()].some((task) => theirs.has(task) && task.scale === scale && !shown.includes(task));
    const most = Math.max(0, ...shown.map((task) => Math.abs(gapOf(mine.get(task), theirs.get(task)))));
    const table = element("table", {},
      headRow([["Task", "label"], [a.name, "score", "descending"], [b.name, "score", "descending"],
        ["Difference", "score", "descending"], ["Time", "cost"], ["Compute", "cost"], ["Traffic", "cost"]]),
      element("tbody", {}, ...shown.map((task) => row(mine.get(task), theirs.get(task), most))));
    section.querySelector("table").replaceWith(table);
    sortable(table);
    const won = shown.filter((task) => mine.get(task).worth > theirs.get(task).worth).length;
    const lost = shown.filter((task) => mine.get(task).worth < theirs.get(task).worth).length;
    output.textContent = `${shown.length} common tasks: ${won} higher, ${lost} lower`;
    [verdict.textContent, assumes.textContent] = verdictOf(a, b, scale, filtered);
    if (assumes.textContent) assumes.textContent += " This interval is that of one pair; the ranking also corrects for all pairs.";
    assumes.textContent += " Costs: first method over second.";
    document.title = `${a.name} against ${b.name} · FedSpan`;
    const state = new URLSearchParams(selects.filter((s) => s.value !== "").map((s) =>
      [s.name, s === first || s === second ? site.methods[s.value].name : s.value]));
    history.replaceState(null, "", `#${state}`);
  }

  const matches = taskFilters(site, update);
  for (const select of [first, second]) {
    for (const method of site.methods) select.append(element("option", { value: String(method.order) }, method.name));
    select.addEventListener("change", update);
  }
  second.selectedIndex = Math.min(1, site.methods.length - 1);
  const asked = new URLSearchParams(location.hash.slice(1));
  restored([...tools.querySelectorAll("select")]);
  for (const select of [first, second]) {
    const method = site.methods.find((one) => one.name === asked.get(select.name));
    if (method) select.value = String(method.order);
  }
  document.getElementById("swap").addEventListener("click", () => {
    [first.value, second.value] = [second.value, first.value];
    update();
  });
  search.addEventListener("input", update);
  clearedByEscape(search, update);
  section.hidden = false;
  update();
}

for (const section of document.querySelectorAll("section.table")) {
  const tools = section.querySelector(".tools:not(#filters)");
  if (section.id !== "compare" && tools) {
    sortable(section.querySelector("table"));
    filterable(section, tools);
  }
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

const data = document.getElementById("data");
if (data) {
  const site = loaded(data.textContent);
  if (document.getElementById("ranking")) overview(site);
  else if (site.methods.length) comparison(site);
}
