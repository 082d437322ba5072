"use strict";
// Two methods task by task: which is better, by how much, at what cost.

const TIME = 0; // index of a result's costs

function comparison() {
  const section = document.getElementById("compare");
  const first = section.querySelector("[name=a]"), second = section.querySelector("[name=b]");
  const tools = document.getElementById("filters"), search = tools.querySelector("input");
  const output = tools.querySelector("output");
  const verdict = section.querySelector(".verdict"), assumes = section.querySelector(".assumes");

  function bar(gap, most) {
    const filled = element("span", { className: gap < 0 ? "negative" : "" });
    filled.style.width = `${most ? 50 * Math.abs(gap) / most : 0}%`;
    return element("span", { className: "difference", ariaHidden: "true" }, filled);
  }

  function ratio(one, other, cost) {
    const a = one.costs[cost], b = other.costs[cost];
    if (cost === TIME && (!one.machine || one.machine !== other.machine)) return null;
    return a !== null && b ? a / b : null;
  }

  const commonSeeds = (one, other) => Object.keys(one.scores).filter((seed) => seed in other.scores);
  const divergedBeside = (one, other) => commonSeeds(one, other).some((seed) => one.scores[seed] === null);

  // The mean difference over common seeds; null without common seeds or if a run of theirs diverged.
  function gapOf(one, other) {
    const common = commonSeeds(one, other);
    if (divergedBeside(one, other) || divergedBeside(other, one) || !common.length) return null;
    const size = Math.max(...common.map((seed) => Math.max(Math.abs(one.scores[seed]), Math.abs(other.scores[seed]))));
    const gap = mean(common.map((seed) => one.scores[seed] - other.scores[seed]));
    return Math.abs(gap) <= size * 1e-12 ? 0 : gap;  // within the rounding errors of the scores
  }

  // Positive if the first is ahead; a method with a diverged run is behind.
  const leadOf = (one, other) => gapOf(one, other) ?? divergedBeside(other, one) - divergedBeside(one, other);

  function row(one, other, most) {
    const gap = gapOf(one, other);
    const cells = [one, other].map((result) => {
      const cell = numeric(result.mean, "");
      cell.append(link(result), seeds(result));
      return cell;
    });
    const difference = numeric(gap, gap === null ? "—" : withSign(gap, 2));
    if (gap !== null) difference.append(bar(gap, most));
    return element("tr", {}, element("th", { scope: "row", className: "label task" }, one.task.label), ...cells, difference,
      ...[0, 1, 2].map((cost) => {
        const value = ratio(one, other, cost);
        return numeric(value, ratioText(value, 2), "cost");
      }));
  }

  function verdictOf(a, b, scale, filtered, together) {
    if (a === b) return ["Choose two different methods.", ""];
    const flip = a.order > b.order, key = flip ? `${b.order}-${a.order}` : `${a.order}-${b.order}`;
    const found = site.pairs[scale]?.[key];
    if (!found) {
      const others = site.scales.filter((one) => site.pairs[one]?.[key]);
      const where = others.length ? ` They have at scale ${others.join(" and ")}.` : "";
      return [`${a.name} and ${b.name} have no ${together ? "seed" : "task"} in common at scale ${scale}.${where}`, ""];
    }
    const [sentence, assumed] = found, names = flip ? { a: b.name, b: a.name } : { a: a.name, b: b.name };
    const whole = filtered ? " This covers all tasks of this scale, not only those shown." : "";
    return [sentence.replaceAll(/\{([ab])\}/g, (_, name) => names[name]) + whole, site.assumes[assumed]];
  }

  function show(unknown = []) {
    const a = site.methods[first.value], b = site.methods[second.value], words = wordsOf(search);
    const scale = tools.querySelector("[name=scale]").value;
    const of = (method) => new Map(site.results.filter((result) => result.method === method).map((r) => [r.task, r]));
    const mine = of(a), theirs = of(b);
    const common = [...mine.keys()].filter((task) => theirs.has(task) && filters.matches(task));
    const shown = common.filter((task) => words.every((word) => task.label.toLowerCase().includes(word)));
    const filtered = [...mine.keys()].some((task) => theirs.has(task) && task.scale === scale && !shown.includes(task));
    const most = Math.max(0, ...shown.map((task) => Math.abs(gapOf(mine.get(task), theirs.get(task)))));
    const table = element("table", { "aria-labelledby": "compare-title" },
      headRow([["Task", "label"], [a.name, "score", "descending"], [b.name, "score", "descending"],
        ["Difference", "score", "descending"], ["Time", "cost"], ["Compute", "cost"], ["Traffic", "cost"]]),
      element("tbody", {}, ...shown.map((task) => row(mine.get(task), theirs.get(task), most))));
    section.querySelector("table").replaceWith(table);
    sortable(table, "sort");
    const leads = shown.map((task) => leadOf(mine.get(task), theirs.get(task)));
    const won = leads.filter((lead) => lead > 0).length, lost = leads.filter((lead) => lead < 0).length;
    const together = [...mine.keys()].some((task) => theirs.has(task) && task.scale === scale);
    output.textContent = `${shown.length} common task${shown.length === 1 ? "" : "s"}: ${won} higher, ${lost} lower`;
    let said;
    [said, assumes.textContent] = verdictOf(a, b, scale, filtered, together);
    if (unknown.length) said = `No method here has the code ${unknown.join(" and ")}, which this address names. ${said}`;
    say(verdict, said);
    if (assumes.textContent) assumes.textContent += " This interval is for one pair; the ranking also corrects for all pairs.";
    assumes.textContent += " Costs: first method over second; times only of runs alone on one kind of machine.";
    document.title = `${a.name} against ${b.name} · FedSpan`;
  }

  function update() {
    const [a, b] = [first, second].map((select) => site.methods[select.value].code);
    chosen.write({ a, b, ...filters.state(), words: search.value });
    show();
  }

  function restore() {
    const state = chosen.read();
    filters.restore(state);
    search.value = state.get("words") ?? "";
    const unknown = [];
    [first, second].forEach((select, i) => {
      const code = state.get(select.name), method = site.methods.find((one) => one.code === code);
      if (code && !method) unknown.push(code);
      select.value = String(method?.order ?? site.opening[i]);
    });
    show(unknown);
  }

  const filters = taskFilters(site, update);
  for (const select of [first, second]) {
    for (const method of site.methods) select.append(element("option", { value: String(method.order) }, method.name));
    select.addEventListener("change", update);
  }
  document.getElementById("swap").addEventListener("click", () => {
    [first.value, second.value] = [second.value, first.value];
    update();
  });
  search.addEventListener("input", update);
  clearedByEscape(search, update);
  chosen.follow(restore);
  section.hidden = false;
  restore();
}

if (site.methods.length) comparison();
