"use strict";
// The leaderboard: the page carries one ranking per choice of the filters; scores and costs come from the results.

const MOST_ROWS = 100, MOST_COLUMNS = 4, MOST_NAMED = 5, WIDTH = 200, EDGE = 6;
const SVG = "http://www.w3.org/2000/svg";

// A packed ranking: the indices of its sentences, its reference, and its rows as text: method,place,first,last,...
function unpacked([headline, more, about, reference, rows]) {
  const read = (row) => row.split(",").map((part) => /^-?\d+$/.test(part) ? Number(part) : part);
  return [...[headline, more, about].map((text) => site.texts[text]), reference, rows ? rows.split(";").map(read) : []];
}

// A choice of tasks is named by its bit mask in hexadecimal.
function viewOf(tasks, tuned, ablations) {
  const name = tasks.reduce((digits, task) => digits | 1n << BigInt(task.order), 0n).toString(16);
  const find = (more) => {
    const packed = site.views[site.variants.findIndex(([t, a]) => Boolean(t) === tuned && Boolean(a) === more)]?.[name];
    return packed && unpacked(packed);
  };
  const found = find(ablations) ?? find(false); // where no result is an ablation, both rankings are the same
  const [headline, more, about, reference, rows] = found ?? ["No results for this choice.", "", "", -1, []];
  // Gains are stored once, in the ranking without ablations, unless the reference differs with them.
  const plain = ablations ? find(false) : undefined;
  const known = new Map(plain && plain[3] === reference ? plain[4].map(([method, , , , ...gain]) => [method, gain]) : []);
  const placeText = (place) => place === 0 ? "—" : place < 0 ? `${-place}=` : String(place);
  const rowOf = ([method, place, first, last, ...own]) => {
    const gain = own.length ? own : known.get(method) ?? [];
    return {
      method: site.methods[method], names: site.names[method], place: placeText(place),
      range: first === last ? String(first || "") : `${first}–${last}`,
      gain: gain.length === 3 ? [gain[0], gain[0] - gain[1], gain[0] + gain[2]].map((tenths) => tenths / 10) : null,
      why: gain.length === 1 ? site.whys[gain[0]] : "",
    };
  };
  return { headline, more, about, reference: site.methods[reference], rows: rows.map(rowOf) };
}

// A row's numbers beside its gain: the mean over shared tasks with its runs, a result per task, costs relative to the
// reference's.
function numbersOf(results, shared, columns, base) {
  const complete = shared.length && shared.every((task) => results.get(task).n && !results.get(task).diverged);
  const ratios = [1, 2].map((cost) => mean([...results.keys()].filter((task) => base.has(task))
    .map((task) => [results.get(task).costs[cost], base.get(task).costs[cost]])
    .filter(([one, other]) => one !== null && other).map(([one, other]) => one / other)));
  const every = [...results.values()];
  const [runs, repeated, refuted] = ["n", "repeated", "refuted"].map((count) => every.reduce((sum, result) => sum + result[count], 0));
  return {
    mean: complete ? mean(shared.map((task) => results.get(task).mean)) : null,
    runs: shared.reduce((sum, task) => sum + results.get(task).n, 0),
    scores: columns.map((task) => results.get(task)),
    costs: ratios,
    repeated: repeated || refuted ? `${repeated} of ${runs}${refuted ? `, ${refuted} differed` : ""}` : "not yet",
  };
}

function picture(gain, low, high) {
  const x = (value) => (EDGE + (WIDTH - 2 * EDGE) * (value - low) / ((high - low) || 1)).toFixed(1);
  const drawn = document.createElementNS(SVG, "svg");
  const add = (tag, attributes) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    drawn.append(made);
  };
  for (const [name, value] of [["class", "forest"], ["viewBox", `0 0 ${WIDTH} 14`], ["aria-hidden", "true"]]) {
    drawn.setAttribute(name, value);
  }
  add("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 14 });
  if (gain) {
    add("line", { class: "span", x1: x(gain[1]), x2: x(gain[2]), y1: 7, y2: 7 });
    add("circle", { class: gain[1] > 0 || gain[2] < 0 ? "sure" : "unsure", cx: x(gain[0]), cy: 7, r: 4 });
  }
  return drawn;
}

function gainCell(row, view, ends) {
  const cell = element("td", { className: "gain" }, picture(row.gain, ...ends));
  const add = (...words) => cell.append(element("span", { className: "n" }, ...words));
  if (row.gain) {
    const [middle, low, high] = row.gain;
    cell.dataset.v = middle;
    add(`${withSign(middle, 1)} (${written(low, 1)} to ${written(high, 1)})`);
  } else if (row.why) {
    add("withheld", element("span", { className: "hidden" }, `: ${row.why}`));
    cell.lastChild.title = row.why;
  } else if (row.method === view.reference) add("reference");
  return cell;
}

function rankingRow({ row, below, numbers }, view, ends, most) {
  const place = element("td", { className: "score value place" }, row.place);
  if (row.range) {
    const places = element("span", { className: "n", title: "places that the runs allow after correction for all pairs" });
    places.append(element("span", { className: "hidden" }, ", possible places "), row.range);
    place.append(places);
  }
  const head = element("th", { scope: "row", className: "label" },
    element("a", { href: `methods/${row.method.slug}.html` }, row.names[0]));
  if (below) head.append(element("span", { className: "n" }, below));
  const scores = numbers.scores.map((result) => {
    const cell = numeric(result?.n ? result.mean : null, "", "score value wide-only");
    cell.append(result ? link(result, 1) : "—");
    if (result?.n && result.diverged) cell.append(" ", element("span", { className: "n" }, lostOf(result)));
    return cell;
  });
  const average = numeric(numbers.mean, written(numbers.mean, 1));
  if (numbers.mean !== null && numbers.runs < most) average.append(element("span", { className: "n" }, `${numbers.runs} of ${most} runs`));
  return element("tr", {}, place, head, gainCell(row, view, ends), ...scores, average,
    ...numbers.costs.map((cost) => numeric(cost, ratioText(cost, 1), "cost wide-only")),
    element("td", { className: "cost wide-only" }, numbers.repeated));
}

// A heading that tells a task apart from those of the other columns.
function headingOf(task, columns) {
  const dataset = site.says.dataset[task.dataset];
  const several = columns.some((other) => other.dataset !== task.dataset);
  return several && task.short !== dataset ? `${dataset}, ${task.short}` : task.short;
}

// The tasks that have a column of their own, and what each row of a ranking says beside its place and gain.
function rankingOf(view, results) {
  const by = new Map(view.rows.map((row) => [row.method, new Map()]));
  for (const result of results) by.get(result.method)?.set(result.task, result);
  const every = [...by.values()], tasks = site.tasks.filter((task) => every.some((mine) => mine.has(task)));
  const common = tasks.filter((task) => every.every((mine) => mine.has(task)));
  const shared = common.filter((task) => !common.some((other) => other.order === site.same[task.order])); // same models
  const columns = tasks.length <= MOST_COLUMNS ? tasks : [];
  const rows = view.rows.map((row) => {
    const mine = by.get(row.method);
    const stages = new Set([...mine.values()].map((result) => result.stage).filter((stage) => stage && stage !== "trained"));
    return { row, below: [...stages, row.names[1]].filter(Boolean).join(", "),
      numbers: numbersOf(mine, shared, columns, by.get(view.reference)) };
  });
  return { columns, rows };
}

function rankingTable(view, { columns, rows }) {
  const ends = [Math.min, Math.max].map((end) => end(0, ...view.rows.flatMap((row) => row.gain ?? [])));
  const head = headRow([
    ["", "score place"], ["Method", "label", "", "method"], ["", "gain", "descending", "gain"],
    ...columns.map((task, i) => [headingOf(task, columns), "score wide-only", "descending", `task${i + 1}`]),
    ["Mean", "score", "descending", "mean"], ["Compute", "cost wide-only", "", "compute"],
    ["Traffic", "cost wide-only", "", "traffic"], ["", "cost wide-only"],
  ]);
  const [cells] = head.rows;
  cells.cells[0].textContent = "Place";
  cells.cells[2].firstChild.append("Gain over ", element("span", {}, view.reference?.name ?? "the reference"), ", 95% CI");
  cells.lastChild.textContent = "Repeated";
  const most = Math.max(0, ...rows.map(({ numbers }) => numbers.runs));
  return element("table", { className: "ranking", "aria-labelledby": "ranking-title" }, head,
    element("tbody", {}, ...rows.map((one) => rankingRow(one, view, ends, most))));
}

// All rows are there, so that sorting sorts them all; the style sheet hides those after the first hundred of a cut table.
function resultsTable(results, cut) {
  const rows = results.map((result) => {
    const cell = numeric(result.mean, "");
    cell.append(link(result), seeds(result));
    return element("tr", {}, element("th", { scope: "row", className: "label" }, result.method.name),
      element("td", { className: "label task" }, result.task.label), cell);
  });
  return element("table", { className: cut ? "cut" : "", "aria-labelledby": "results-title" }, headRow([["Method", "label"], ["Task", "label"], ["Accuracy", "score", "descending"]]),
    element("tbody", {}, ...rows));
}

// A ranking as comma-separated values: plain numbers, nothing where there is none.
function toCsv({ columns, rows }) {
  const quoted = (value) => typeof value === "string" ? `"${value.replaceAll('"', '""')}"` : value ?? "";
  const heads = ["place", "possible places", "method", "settings", "gain", "gain low", "gain high", "withheld",
    ...columns.flatMap((task) => ["mean", "sd", "n", "diverged"].map((what) => `${headingOf(task, columns)}: ${what}`)),
    "mean", "runs", "compute", "traffic", "repeated"];
  const lines = rows.map(({ row, below, numbers }) => [row.place, row.range, row.names[0], below,
    ...(row.gain ?? [null, null, null]), row.why,
    ...numbers.scores.flatMap((result) => result ? [result.mean, result.std, result.n, result.diverged] : [null, null, null, null]),
    numbers.mean, numbers.runs, ...numbers.costs, numbers.repeated]);
  return [heads, ...lines].map((line) => line.map(quoted).join(",")).join("\n") + "\n";
}

function leaderboard() {
  const section = document.getElementById("ranking"), all = document.getElementById("results");
  const tools = document.getElementById("filters"), search = tools.querySelector("input");
  const output = tools.querySelector("output"), more = document.getElementById("show");
  const copy = document.getElementById("copy"), csv = document.getElementById("csv"), wider = document.getElementById("wider");
  const switches = [...section.querySelectorAll("[name=tuned]")], isTuned = (button) => button.value === "yes";
  let whole = false, asked = site.first.tuned, ranking;
  const has = (tuned) => site.results.some((result) => Boolean(result.tuned) === tuned && filters.matches(result.task));
  const shownTuned = () => has(asked) === has(!asked) ? asked : has(true);

  const isNamed = (method) => wordsOf(search).every((word) => `${method.name} ${method.code}`.toLowerCase().includes(word));

  function show() {
    const tuned = shownTuned();
    const ablations = Boolean(tools.querySelector("[name=ablations]")?.value);
    const tasks = site.tasks.filter(filters.matches), view = viewOf(tasks, tuned, ablations);
    const results = site.results.filter((result) =>
      filters.matches(result.task) && Boolean(result.tuned) === tuned && (ablations || !result.ablation));
    for (const part of ["headline", "more", "about"]) say(document.getElementById(part), view[part]);
    for (const button of switches) button.setAttribute("aria-pressed", String(isTuned(button) === tuned));
    ranking = rankingOf(view, results);
    const table = rankingTable(view, ranking);
    section.querySelector("table").replaceWith(table);
    [...table.tBodies[0].rows].forEach((row, i) => { row.hidden = !isNamed(view.rows[i].method); });
    sortable(table, "sort");
    const shown = results.filter((result) => isNamed(result.method));
    const cut = !whole && shown.length > MOST_ROWS, below = resultsTable(shown, cut);
    all.querySelector("table").replaceWith(below);
    sortable(below, "all.sort");
    more.hidden = !cut;
    more.textContent = `Show all ${shown.length}`;
    const methods = view.rows.filter((row) => isNamed(row.method)).length;
    const elsewhere = shown.length ? [] : [...new Set(site.results.map((result) => result.method).filter(isNamed))];
    wider.hidden = !elsewhere.length;
    output.textContent = elsewhere.length ?
      `No result with these filters. Elsewhere: ${elsewhere.slice(0, MOST_NAMED).map((method) => method.name).join("; ")}` +
        (elsewhere.length > MOST_NAMED ? `; ${elsewhere.length - MOST_NAMED} more` : "") :
      `${methods} of ${site.methods.length} methods, ${shown.length} of ${site.results.length} results`;
  }

  // Sets the filters so that a result of a method with these words is shown: as tuned as now and competing, if possible.
  function widen() {
    const found = site.results.filter((result) => isNamed(result.method)), tuned = shownTuned();
    const result = found.find((one) => !one.ablation && Boolean(one.tuned) === tuned) ?? found.find((one) => !one.ablation) ?? found[0];
    filters.widen();
    restored(tools.querySelector("[name=scale]"), result.task.scale);
    if (result.ablation) restored(tools.querySelector("[name=ablations]"), "too");
    asked = Boolean(result.tuned);
    changed();
  }

  const shownOnly = () => ({ ...ranking, rows: ranking.rows.filter(({ row }) => isNamed(row.method)) });

  function changed() {
    whole = false;
    copy.textContent = "Copy link";
    chosen.write({ ...filters.state(), words: search.value, tuned: asked === site.first.tuned ? "" : asked ? "yes" : "no" });
    show();
  }

  function restore() {
    const state = chosen.read();
    filters.restore(state);
    search.value = state.get("words") ?? "";
    asked = state.has("tuned") ? state.get("tuned") === "yes" : site.first.tuned;
    show();
  }

  const filters = taskFilters(site, changed);
  for (const button of switches) {
    button.parentElement.hidden = false;
    button.addEventListener("click", () => {
      asked = isTuned(button);
      if (!has(asked)) filters.widen();
      if (!has(asked)) restored(tools.querySelector("[name=scale]"), site.results.find((one) => Boolean(one.tuned) === asked).task.scale);
      changed();
    });
  }
  search.addEventListener("input", changed);
  wider.addEventListener("click", widen);
  clearedByEscape(search, changed);
  more.addEventListener("click", () => {
    whole = true;
    show();
    all.querySelector("tbody").rows[MOST_ROWS]?.querySelector("a").focus();
  });
  copy.hidden = !navigator.clipboard;
  csv.hidden = false;
  copy.addEventListener("click", () => navigator.clipboard.writeText(new URL(`#${chosen.read()}`, location.href).href)
    .then(() => { copy.textContent = "Copied"; }, () => { copy.textContent = "Copy it from the address bar"; }));
  csv.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([toCsv(shownOnly())], { type: "text/csv" }));
    element("a", { href: address, download: `ranking${shownTuned() ? "-tuned" : ""}.csv` }).click();
    URL.revokeObjectURL(address);
  });
  chosen.follow(restore);
  all.hidden = false;
  restore();
}

if (site.results.length) leaderboard();
