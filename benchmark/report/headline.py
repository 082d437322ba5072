"""Headlines of a ranking, from its numbers: who leads, by how much, how surely and at what cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Context

from fedspan.benchmark import names
from fedspan.benchmark.report.analysis import Analysis
from fedspan.benchmark.report.axes import TUNING
from fedspan.benchmark.report.diagrams import row_in_words
from fedspan.benchmark.report.overall import Ranked
from fedspan.benchmark.report.ranking import Place
from fedspan.benchmark.report.statistics import Difference, Gap, Withheld
from fedspan.benchmark.report.table import Tabulated
from fedspan.benchmark.report.units import fixed, with_sign

EQUAL, EXACT = 0.05, 0.005  # costs that differ by a smaller share are called about equal, and equal
NAMED = 3  # up to this many methods that may be the best are named, more are counted


def points(value: float) -> str:
    """Return percentage points with one decimal, halves rounded away from zero as in the pages' script."""
    return fixed(value, 1).replace("-", "−")


def signed_points(value: float) -> str:
    """Return a difference in points with its sign, unless it is rounded to zero."""
    return with_sign(value, points(abs(value)))


def ratio(value: float) -> str:
    """Return a ratio with one decimal, or with one significant digit where that would be 0.0."""
    if not value < 0.05:
        return points(value)
    return f"{Context(prec=1, rounding=ROUND_HALF_UP).create_decimal_from_float(value):f}"


def headline(ranking: Sequence[Ranked], reference: str) -> tuple[str, str]:
    """Return a sentence that says who leads, and one that qualifies it, which is empty without a ranking."""
    if not ranking:
        return "No results for this choice.", ""
    first, base = ranking[0], next((row for row in ranking if row.method == reference), ranking[0])
    if not first.place.tested:
        return "No winner can be named.", _untested(ranking)
    spoken = _spoken(ranking)
    if first.leads:
        return _leads(ranking, base, spoken)
    said, how = _undecided([(spoken[row.method], row.place) for row in ranking], "method")
    if first is base or first.gain is None:
        return said, f"{how}."
    return said, f"{how}: {_over(first.gain, spoken[base.method])}{_at(first)}."


def of_table(analysis: Analysis) -> str:
    """Return the headline of a board's table: how it agrees with print, which row leads by how much, or why none can.

    It is empty if nothing is known.
    """
    return " ".join(filter(None, (_against_print(analysis.table), _verdict(analysis))))


def _against_print(table: Tabulated) -> str:
    """Return how many measured means agree with the printed values, as a sentence; empty if none can be compared."""
    printed = [entry.printed for row in table.rows for entry in row.entries if entry and entry.printed]
    sides = Counter(
        "within" if one.within else "above" if one.difference > 0 else "below"
        for one in printed
        if one.within is not None and one.difference is not None
    )
    if not sides:
        return ""
    apart = [f"{sides[side]} {side}" for side in ("above", "below") if sides[side]]
    more = f"; {' and '.join(apart)}" if apart else ""
    return f"{sides['within']} of {sides.total()} means agree with print within the combined spread{more}."


def _verdict(analysis: Analysis) -> str:
    """Return which row leads and by how much, or why none can, in one sentence or two; empty if unknown."""
    first = analysis.standings[0]
    if not first.place.tested:
        return _none_tested(analysis)
    kind, lead, lost = analysis.table.kind(first.row), _over_reference(analysis), _lost(analysis)
    among = f" among the {kind} rows" if kind else ""
    rows = [
        (row_in_words(analysis.table, s.row, without=TUNING), s.place) for s in analysis.standings if s.kind == kind
    ]
    if first.leads:
        why = lead or lost
        return _capital(f"{rows[0][0]} leads{among}{why and f': {why}'}.") + _so_far(analysis)
    said, how = _undecided(rows, "row", among)
    more = f": {lead}" if lead else f". {_capital(lost)}" if lost else ""
    return f"{said} {_capital(how)}{more}.{_so_far(analysis)}"


def _none_tested(analysis: Analysis) -> str:
    """Return why no difference of the first rows is tested, as a sentence; empty if there are several reasons."""
    first = analysis.standings[0]
    group = [s for s in analysis.standings if (s.kind, s.place.group) == (first.kind, first.place.group)]
    reasons = {s.difference.reason for s in group if isinstance(s.difference, Withheld)}
    others = any(s.place.tested for s in analysis.standings)
    where = f" among the first {names.counted_as(len(group), 'row')}" if others else ""
    return f"No difference is tested{where}: {reasons.pop()}." if len(reasons) == 1 else ""


def _so_far(analysis: Analysis) -> str:
    """Return ``So far N of M rows have results.`` for rows of the first row's kind; empty once all have them.

    A tuned board has tuned rows only for studies whose trials have run, but a default row for every study. Rows whose
    cells are all skipped, or have no such score by definition, do not count.
    """
    table, kind = analysis.table, analysis.standings[0].kind
    every = max(Counter(table.kind(row) for row in table.rows if row.applies and not row.bound).values())
    there = sum(standing.kind == kind for standing in analysis.standings)
    return f" So far {there} of {every} rows have results." if there < every else ""


def _over_reference(analysis: Analysis) -> str:
    """Return the lead of a table's first row, or why there is no number for it; empty if there is nothing to say."""
    table, first = analysis.table, analysis.standings[0]
    gap, base = first.difference, analysis.reference_of(first.row)
    if isinstance(gap, Difference):
        write = table.metric.write_difference
        interval = f" (95% CI {write(gap.low)} to {write(gap.high)})" if gap.low < gap.high else ""
        return f"{table.metric.say_difference(gap.mean)} against {row_in_words(table, base, without=TUNING)}{interval}"
    if isinstance(gap, Withheld) and (first.row.diverged or not base.diverged):
        return f"{gap.reason}, so no difference to {row_in_words(table, base, without=TUNING)} is given"
    return ""


def _lost(analysis: Analysis) -> str:
    """Return which other rows of the first one's kind have diverged runs; empty if none has, or the first one too."""
    table, (first, *others) = analysis.table, analysis.standings
    lost = [other.row for other in others if other.kind == first.kind and other.row.diverged]
    if first.row.diverged or not lost:
        return ""
    if len(lost) > 1:
        return f"runs of {len(lost)} other rows diverged"
    return f"{names.counted_as(lost[0].diverged, 'run')} of {row_in_words(table, lost[0], without=TUNING)} diverged"


def _capital(sentence: str) -> str:
    """Return a sentence with its first letter capitalised, unless its first word is a mixed-case name."""
    first = sentence.partition(" ")[0]
    return sentence[:1].upper() + sentence[1:] if first.islower() else sentence


def _undecided(rows: Sequence[tuple[str, Place]], word: str, among: str = "") -> tuple[str, str]:
    """Return which of the named rows may be the best, as a sentence, and how far the first is ahead, as a clause.

    `word` is the noun for a row: ``method`` or ``row``; `among` says which rows compete, if not all do.
    """
    (name, first), *others = rows
    contenders = [(other, place.tested) for other, place in rows if place.group == first.group and place.contends]
    may = [other for other, tested in contenders if tested]
    untested = len(contenders) - len(may)
    most = all(first.ahead > place.ahead for _, place in others if place.group == first.group)
    how = f"{name} is ahead of more {word}s than any other" if most else f"{name} is shown first"
    if len(may) < 2:
        why = "it does not beat each other one"
        if untested:
            why = f"{names.counted_as(untested, f'other {word}')} cannot be compared"
        return f"No clear winner{among}: {name} ranks first, but {why}.", how
    who = _joined_by_or(may) if len(may) <= NAMED else names.counted_as(len(may), word)
    more = f"; {names.counted_as(untested, f'more {word}')} cannot be compared" if untested else ""
    return f"No clear winner{among}: {who} may be the best{more}.", how


def _joined_by_or(several: Sequence[str]) -> str:
    """Return names joined by commas and `or`; by semicolons if a name has a comma itself."""
    *others, last = several
    return (
        f"{'; '.join(others)}; or {last}" if any("," in name for name in several) else f"{', '.join(others)} or {last}"
    )


def _leads(ranking: Sequence[Ranked], base: Ranked, spoken: Mapping[str, str]) -> tuple[str, str]:
    first = ranking[0]
    others = sum(row.place.group == first.place.group for row in ranking) - 1
    who = "the other method" if others == 1 else f"each of the {others} other methods"
    if others + 1 < len(ranking):
        who += f" that {'shares' if others == 1 else 'share'} a task with it"
    surely, chance = f"It beats {who}", "the chance of naming the wrong leader is about 5%"
    if first.by_divergence == others:
        surely += ": on their common tasks it alone has no diverged run."
    elif first.by_divergence:
        surely += f", {first.by_divergence} of them for their diverged runs; among the others {chance}."
    else:
        surely += f"; {chance}."
    name, gain = spoken[first.method], first.gain
    if first is base or not gain:
        return f"{name} leads.", surely
    if isinstance(gain, Difference):
        runs, tasks = names.counted_as(gain.pairs, "paired run"), names.counted_as(gain.tasks, "task")
        surely += f" Its gain is that of {runs} on {tasks}."
    return f"{name} leads: {_over(gain, spoken[base.method])}{_at(first)}.", surely


def _over(gap: Gap, name: str) -> str:
    """Return a gain over the reference of that name in words, or why there is none."""
    if isinstance(gap, Withheld):
        return f"{gap.reason}, so no gain over {name} is given"
    if gap.low == gap.high:
        return f"{signed_points(gap.mean)} points over {name}"
    return f"{signed_points(gap.mean)} points over {name} (95% CI {points(gap.low)} to {points(gap.high)})"


def _at(row: Ranked) -> str:
    """Return a row's compute and traffic relative to the reference in words; empty if unknown."""
    _, compute, traffic = row.costs
    costs = [(name, value) for name, value in (("compute", compute), ("traffic", traffic)) if math.isfinite(value)]
    equal = [name for name, value in costs if abs(value - 1) < EQUAL]
    about = "" if all(abs(value - 1) < EXACT for name, value in costs if name in equal) else "about "
    unequal = [f"{ratio(value)} times the {name}" for name, value in costs if abs(value - 1) >= EQUAL]
    said = ([f"{about}equal {' and '.join(equal)}"] if equal else []) + unequal
    return f", at {' and '.join(said)}" if said else ""


def _untested(ranking: Sequence[Ranked]) -> str:
    """Return why nothing could be compared."""
    reasons = [row.gain.reason for row in ranking if isinstance(row.gain, Withheld)]
    if reasons:
        return f"{reasons[0][:1].upper()}{reasons[0][1:]}."
    if len(ranking) == 1:
        return "Only one method has results."
    if any(row.place.compared for row in ranking):
        return "No method has a run in common with the reference."
    return "The methods have no run in common."


def _spoken(ranking: Sequence[Ranked]) -> dict[str, str]:
    """Return the name of each method's components, with its protocol settings where another has the same components."""
    brief = {row.method: split(row.method)[0] for row in ranking}
    known = Counter(brief.values())
    return {one: name if known[name] == 1 else names.of_method_label(one) for one, name in brief.items()}


def split(method: str) -> tuple[str, str]:
    """Return the name of a method's components, and its own protocol settings."""
    name, *settings = names.split(names.of_method_label(method), ", ")
    return name, ", ".join(settings)
