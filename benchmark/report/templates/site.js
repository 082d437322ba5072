"use strict";
// The results of the whole site, embedded in the leaderboard and the comparison.

const ALL = "all"; // any value of a field
const NUMBERS = 17; // per result; zeros at the end are left out

function loaded(text) {
  const raw = JSON.parse(text);
  const tasks = raw.tasks.map(([dataset, partition, skew, clients, fleet, unseen, tested, model, scale, label], order) =>
    ({ dataset, partition, skew, clients, fleet, unseen, tested, model, scale, label, order, short: raw.short?.[order] }));
  const methods = raw.methods.map(([code, slug, name], order) => ({ code, slug, name, order }));
  const results = raw.results.map((packed, order) => {
    const [method, task, mean, std, n, asked, seconds, flops, traffic, stage, point, diverged, ablation, tuned, repeated, refuted,
      machine] =
      [...packed, ...Array(NUMBERS - packed.length).fill(0)];
    return {
      method: methods[method], task: tasks[task], mean, std, n, asked, costs: [seconds, flops, traffic],
      stage: stage < 0 ? "" : raw.stages[stage], point, diverged, ablation, tuned, repeated, refuted, machine,
      scores: raw.scores?.[order],
    };
  });
  return { ...raw, tasks, methods, results };
}

// Twelve digits of a number: the last ones of a mean depend on the order of its sum.
const settled = (value) => Number(value.toPrecision(12));

// The mean of numbers, null without any.
const mean = (values) => values.length ? settled(values.reduce((sum, value) => sum + value, 0) / values.length) : null;

const written = (value, digits, unit = "") =>
  value === null ? "—" : settled(value).toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−") + unit;

const withSign = (value, digits) => (Number(settled(value).toFixed(digits)) > 0 ? "+" : "") + written(value, digits);

// A ratio; one too small for these digits shows its first significant digit: 0.02× instead of 0.0×.
const ratioText = (value, digits) =>
  value !== null && value < 0.5 / 10 ** digits ? `${Number(value.toPrecision(1))}×` : written(value, digits, "×");

// Changes a text only if it differs: an unchanged one is not announced again.
function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function numeric(value, text, kind = "score value") {
  const cell = element("td", { className: kind }, text);
  if (value !== null) cell.dataset.v = value;
  return cell;
}

function link(result, digits = 2) {
  const text = result.n ? written(result.mean, digits) : "diverged";
  const made = element("a", { className: "entry", href: `runs/${result.point}.html` }, text);
  if (result.std !== null) made.append(element("span", { className: "std" }, ` ± ${written(result.std, digits)}`));
  return made;
}

const lostOf = (result) => result.diverged ? `${result.diverged} diverged` : "";

function seeds(result) {
  const n = result.n === result.asked ? `n=${result.n}` : `n=${result.n}/${result.asked}`;
  return element("span", { className: "n" }, [result.stage, n, lostOf(result)].filter((part) => part).join(", "));
}

function headRow(heads) {
  const row = element("tr");
  for (const [text, kind, first, name] of heads) {
    const button = element("button", { type: "button", className: "sort" }, text);
    if (first) button.dataset.first = first;
    if (name) button.dataset.name = name;
    row.append(element("th", { scope: "col", className: kind }, button));
  }
  return element("thead", {}, row);
}

// Selects for the fields of a task; scales are never mixed, so one is always chosen. The leaderboard opens with one
// dataset and one kind of test images; a choice that matches no task resets the others.
function taskFilters(site, update) {
  const tools = document.getElementById("filters");
  const selects = [...tools.querySelectorAll("select")];
  for (const select of selects.filter((one) => "field" in one.dataset)) {
    const values = [...new Set(site.tasks.map((task) => task[select.name]).filter((value) => value !== null))];
    const scales = select.name === "scale", first = site.first?.[select.name];
    values.sort((a, b) => (b === first) - (a === first) || (scales ? site.scales.indexOf(a) - site.scales.indexOf(b) :
      typeof a === "number" ? a - b : inOrder(a, b)));
    for (const value of values) {
      select.append(element("option", { value: String(value) }, site.says[select.name]?.[value] ?? String(value)));
    }
    if (!scales) select.insertBefore(element("option", { value: ALL }, "all"), first ? null : select.firstChild);
    select.parentElement.hidden = values.length < 2;
  }
  const matches = (task) => selects.every((select) =>
    !("field" in select.dataset) || select.value === ALL || String(task[select.name]) === select.value);
  const widen = (...kept) => {
    const free = selects.filter((select) => "field" in select.dataset && !kept.includes(select));
    for (const select of free) restored(select, ALL);
    const scale = free.find((select) => select.name === "scale");
    if (scale && !site.tasks.some(matches)) {
      scale.selectedIndex = Math.max(0, site.scales.findIndex((_, i) => {
        scale.selectedIndex = i;
        return site.tasks.some(matches);
      }));
    }
  };
  for (const select of selects) {
    select.addEventListener("change", () => {
      if (!site.tasks.some(matches)) widen(select);
      update();
    });
  }
  tools.hidden = false;
  return {
    selects,
    matches,
    widen,
    // If an address sets only some fields, such as a dataset, and no task matches, the other fields are reset.
    restore(state) {
      for (const select of selects) restored(select, state.get(select.name) ?? "");
      if (!site.tasks.some(matches)) widen(...selects.filter((select) => state.has(select.name)));
    },
    state: () => Object.fromEntries(selects.map((select) => [select.name, select.selectedIndex > 0 ? select.value : ""])),
  };
}

const data = document.getElementById("data");
const site = data ? loaded(data.textContent) : null;
