"""Validation of records, for all readers: the types of their fields, and the rules across fields.

Each complaint is one line that names the first wrong field, its value, and what is wrong with it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

import msgspec

from fedspan.benchmark.errors import CorruptFile, LaterVersion, has_controls, is_number, plain
from fedspan.benchmark.records.model import STAGES, TRIAL, Curve, Metrics, Record, Scores, Status, is_trial
from fedspan.benchmark.spec.cell import SCHEMA, key_of

KINDS = {
    "object": "an object", "array": "a list", "str": "a string", "int": "a whole number", "float": "a number",
    "null": "null",
}  # fmt: skip
BOUNDS = {">=": "below", "<=": "above", ">": "not above", "<": "not below"}
# In a file, control characters are escapes of JSON, or the few in UTF-8 that JSON allows unescaped.
ESCAPED = re.compile(rb"\\[bfnrtu]|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")
ROUNDED = 0.001  # by which a running total may exceed the final one
# Costs in the record of every finished run.
COUNTED = ("seconds.total", "flops.train", "bytes.up", "bytes.down", "steps", "images", "seconds_at_round")


def validate(record: Any, key: str | None = None) -> Record:
    """Return `record` if it is valid and, if `key` is given, of the cell `key`; raise `CorruptFile` if not."""
    check_schema(record)
    if (complaint := _complaint(record)) is not None:
        raise CorruptFile(_sentence(record, complaint))
    found = cast(Record, record)
    if (broken := next(_broken_rules(found), None)) is not None:
        raise CorruptFile(broken)
    if key not in (None, found["key"]):
        raise CorruptFile(f"its key is not that of its file, {key}")
    return found


def check_texts(record: Mapping[str, Any], content: bytes) -> None:
    """Raise `CorruptFile` if a text or a name in a record has control characters: they could forge a terminal's output.

    `content` is the JSON of the record; without escapes nothing needs a check. A traceback has several lines.
    """
    if not ESCAPED.search(content):
        return
    for field, value in record.items():
        for path, text in _texts(value, [field]):
            if has_controls(text) and field != "traceback":
                raise CorruptFile(f"its {_dotted(path)} has control characters")


def _texts(value: Any, path: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    """Yield the texts in a value, names included, and the steps to them."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield [*path, name], name
            yield from _texts(item, [*path, name])
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, [*path, number])


def check_schema(record: Any) -> None:
    """Raise `CorruptFile` if a record's schema is not this version's, `LaterVersion` if it is a later one."""
    if isinstance(record, dict) and (schema := record.get("schema", SCHEMA)) != SCHEMA:
        later = type(schema) is int and schema > SCHEMA
        kind = LaterVersion if later else CorruptFile
        raise kind(f"its schema is {_shown(schema)}, this version reads {SCHEMA}")


# types and ranges of single fields ----------------------------------------------------------------------------------


def _complaint(record: Any) -> str | None:
    """Return msgspec's complaint about the types of a record, as "Expected `int`, got `str` - at `$.spec.seed`"."""
    try:
        msgspec.convert(record, Record)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _sentence(record: Any, complaint: str) -> str:
    """Return a complaint of msgspec as a readable sentence, with the wrong value."""
    problem, _, place = complaint.partition(" - at ")
    path = _path(record, complaint, place)
    name = "its " + _dotted(path) if path else "it"
    value = record
    for step in path:
        value = value[step]
    if place.startswith("`key`"):
        return f"{name} is not a valid key"
    if missing := re.fullmatch("Object missing required field `(.*)`", problem):
        return f"{name} lacks {missing[1]}"
    return f"{name} is {_shown(value)}, {_fault(problem, value)}"


def _fault(problem: str, value: Any) -> str:
    if problem == "Number out of range" or (type(value) in (int, float) and not is_number(value)):
        return "not a finite number"
    if expected := re.match("Expected `([^`]*)`, got", problem):
        return "not " + " or ".join(KINDS.get(kind, kind) for kind in expected[1].split(" | "))
    if bound := re.fullmatch("Expected `[^`]*` (>=|<=|>|<) (.*)", problem):
        return f"{BOUNDS[bound[1]]} {float(bound[2]):.20g}"
    if form := re.search("matching regex (.*)", problem):
        return f"not of the form {form[1]}"
    return f"none of {', '.join(get_args(Status))}"


def _path(record: Any, complaint: str, place: str) -> list[str | int]:
    """Return the steps from a record to the wrong value of a complaint.

    msgspec writes `[...]` for any value of a mapping and does not name a wrong key: it is the first one that causes the
    same complaint on its own.
    """
    path: list[str | int] = []
    node = record
    steps = re.findall(r"\.(\w+)|\[(\d+)\]|\[\.\.\.\]", place)
    for name, number in (*steps, *([("", "")] if place.startswith("`key`") else [])):
        step = name or (int(number) if number else None)
        if step is None:
            step = next(one for one in node if _complaint(_alone(record, path, one)) == complaint)
        path.append(step)
        node = node[step]
    return path


def _alone(value: Any, path: Sequence[str | int], name: str) -> Any:
    """Return `value` with only `name` in its mapping at `path`."""
    if not path:
        return {name: value[name]}
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = _alone(value[path[0]], path[1:], name)
    return copy


def _dotted(path: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{plain(step)}" for step in path).lstrip(".")


def _shown(value: Any) -> str:
    """Return a value as one short line."""
    try:
        text = repr(value)
    except ValueError:  # a whole number with thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


# rules across fields ------------------------------------------------------------------------------------------------


def _broken_rules(record: Record) -> Iterator[str]:
    """Yield contradictions between fields; the checks rely on each field being valid."""
    try:
        if record["key"] != key_of(record["spec"]):
            yield "its key does not match its spec"
    except ValueError:
        yield "its spec holds a number that is not finite"
    for stage, metrics in record["scores"].items():
        for metric, value in metrics.items():
            if metric.split(".")[0].endswith("accuracy") and value is not None and not 0 <= value <= 100:
                yield f"its scores.{stage}.{metric} is {value!r}, outside 0..100"
    if record["status"] in ("diverged", "failed") and record["scores"]:
        yield f"it is {record['status']}, but has scores"
    yield from _of_its_images(record)
    yield from _of_rounds(record)
    yield from _of_digests(record)
    yield from _of_figures(record)


def _of_its_images(record: Record) -> Iterator[str]:
    """Yield scores on the wrong images: a trial has scores on held-out images only, a result has none of these."""
    trial = is_trial(record)
    for stage in record["scores"]:
        if trial and stage in (*STAGES, "best"):
            yield f"it is a trial, whose scores are of held-out images, but has scores.{stage}"
        if stage == TRIAL and not trial:
            yield f"it has scores.{stage}, but its spec.protocol.validation is 0"


def _of_rounds(record: Record) -> Iterator[str]:
    """Yield errors in the values of evaluated rounds."""
    curve, last = record["curve"], record["spec"]["protocol"]["rounds"]
    rounds = curve.get("round", [])
    for name, values in cast(Mapping[str, Any], curve).items():
        if not isinstance(values, list) or len(values) != len(rounds):
            yield f"its curve.{name} does not have one value for each of {len(rounds)} rounds"
        elif name not in Curve.__annotations__ and not all(one is None or is_number(one) for one in values):
            yield f"its curve.{name} holds values that are not finite numbers"
    if any(one >= other for one, other in itertools.pairwise([0, *rounds, last + 1])):
        yield f"its curve.round does not rise within 1..{last}"
    if record["status"] == "done":
        yield from _of_the_end(record)
    for name, amounts, whole in _of_running_totals(record):
        if len(amounts) != len(rounds) or sorted(amounts) != amounts:
            yield f"its {name} does not rise with one value for each evaluated round"
        elif whole is not None and amounts and amounts[-1] > whole + ROUNDED:
            yield f"its {name} ends with {amounts[-1]!r}, more than the {whole!r} of the whole cell"
    yield from _of_visits(record)


def _of_running_totals(record: Record) -> Iterator[tuple[str, list[float], float | None]]:
    """Yield name, values by evaluated round and final value (None if unknown) of each running total."""
    compute, fleet = record["compute"], record.get("fleet", {})
    traffic = compute.get("bytes")
    sent = None if traffic is None else traffic.get("up", 0) + traffic.get("down", 0)
    for name, amounts, whole in (
        ("compute.seconds_at_round", compute.get("seconds_at_round"), compute.get("seconds", {}).get("total")),
        ("compute.bytes_at_round", compute.get("bytes_at_round"), sent),
        ("fleet.seconds_at_round", fleet.get("seconds_at_round"), fleet.get("seconds")),
    ):
        if amounts is not None:
            yield name, amounts, whole


def _of_visits(record: Record) -> Iterator[str]:
    """Yield errors in the counts of visits, which only cells with a fleet have."""
    found, last = record.get("fleet"), record["spec"]["protocol"]["rounds"]
    if found is None:
        return
    if "fleet" not in record["spec"]:
        yield "it has visits of a fleet, but its spec names none"
    if max(found["lost"], found["cut"]) > found["visits"] or found["empty_rounds"] > last:
        yield f"its fleet has more lost or cut visits than its {found['visits']}, or more empty rounds than {last}"
    if ("seconds" in found) != ("seconds_at_round" in found):
        yield "it has only one of fleet.seconds and fleet.seconds_at_round"


def _of_digests(record: Record) -> Iterator[str]:
    """Yield errors in the digests of weights: one for each evaluated round, and one for each stage."""
    if not (digests := record.get("digests")):
        return
    rounds, stages = digests.get("rounds", {}), set(digests.get("stages", {}))
    scored = {"trained", *record["scores"]} & set(STAGES)
    if is_trial(record):
        scored = {stage for stage in STAGES if f"accuracy.{stage}" in record["scores"].get(TRIAL, {})}
    if set(rounds) != set(map(str, record["curve"].get("round", []))):
        yield "its digests.rounds are not of the rounds of its curve"
    if record["status"] == "done" and stages != scored:
        yield f"its digests.stages are of {', '.join(sorted(stages))}, its scores of {', '.join(sorted(scored))}"


def _of_figures(record: Record) -> Iterator[str]:
    """Yield errors in the tables behind figures, whose rows must have equal lengths."""
    found = record.get("diagnostics", {})
    tables: dict[str, Sequence[Sequence[float]]] = {}
    tables["shares"], tables["spaces"] = found.get("shares", []), found.get("spaces", [])
    if (embedding := found.get("embedding")) is not None:
        tables["embedding.points"] = points = embedding["points"]
        if not len(points) == len(embedding["classes"]) == len(embedding["clients"]):
            yield "its diagnostics.embedding does not have one class and one client for each point"
    for name, rows in tables.items():
        if len({len(row) for row in rows}) > 1:
            yield f"its diagnostics.{name} has rows of different lengths"


def _of_the_end(record: Record) -> Iterator[str]:
    """Yield what a finished run lacks: a curve up to the last round, costs, and scores that agree with the curve."""
    scores, curve, compute = record["scores"], record["curve"], record["compute"]
    rounds, last = curve.get("round", []), record["spec"]["protocol"]["rounds"]
    if (first := TRIAL if is_trial(record) else "trained") not in scores:
        yield f"it is done but has no scores.{first}"
    if not rounds or rounds[-1] != last:
        ending = f"its curve ends after round {rounds[-1]} of {last}" if rounds else "it has no curve"
        yield f"it is done, but {ending}"
    if "accuracy" not in curve:
        yield "it is done, but its curve has no accuracy"
    if lacking := [name for name in COUNTED if not _holds(compute, name)]:
        yield f"it is done, but its compute lacks {', '.join(lacking)}"
    least = 1 if record["spec"]["protocol"].get("sampling") == "poisson" else last  # poisson has rounds without clients
    if not least <= compute["steps"] <= compute["images"]:
        yield f"its {compute['steps']} steps on {compute['images']} images in {last} rounds are impossible"
    made = record["provenance"]
    for name, digest in (("dataset", made.get("dataset_digest")), ("partition", made.get("partition_digest"))):
        if digest is None:
            yield f"its provenance.{name}_digest is None"
    yield from _of_accuracies(scores, curve, is_trial(record))


def _holds(values: Mapping[str, Any], name: str) -> bool:
    """Return whether nested mappings have a dotted name."""
    first, _, rest = name.partition(".")
    return first in values and (not rest or _holds(values[first], rest))


def _of_accuracies(scores: Scores, curve: Curve, trial: bool) -> Iterator[str]:
    """Yield contradictions between the scores of a finished run and its curve or stages."""
    by_round = dict(zip(curve["round"], curve.get("accuracy", []), strict=False))
    stage, name = (TRIAL, "accuracy.trained") if trial else ("trained", "accuracy")
    reached, ended = scores[stage].get(name), next(reversed(by_round.values()), None)
    if reached is not None and by_round and ended != reached:
        yield f"its scores.{stage}.{name} is {reached!r}, its curve ends with {ended!r}"
    if trial:
        yield from _of_the_last_stage(scores[TRIAL])
    elif by_round:
        yield from _of_the_best(scores.get("best", {}), by_round)


def _of_the_last_stage(trial: Metrics) -> Iterator[str]:
    """Yield an error if a trial's accuracy is not that of its last stage."""
    counts = next((name for name in map("accuracy.{}".format, reversed(STAGES)) if name in trial), None)
    if counts is None or trial.get("accuracy") is None:
        yield f"its scores.{TRIAL} lacks {'accuracy' if counts else f'accuracy.{STAGES[0]}'}"
    elif trial["accuracy"] != trial[counts]:
        yield f"its scores.{TRIAL}.accuracy is {trial['accuracy']!r}, its scores.{TRIAL}.{counts} {trial[counts]!r}"


def _of_the_best(best: Metrics, by_round: Mapping[int, float | None]) -> Iterator[str]:
    """Yield errors in the best score, given a curve's accuracies by round."""
    seen = [accuracy for accuracy in by_round.values() if accuracy is not None]
    accuracy, when = best.get("accuracy"), best.get("round")
    if seen and accuracy != max(seen):
        yield f"its scores.best.accuracy is {accuracy!r}, the best of its curve is {max(seen)!r}"
    if best and (when is None or accuracy is None or by_round.get(int(when)) != accuracy):
        yield f"its scores.best.round is {when!r}, where its curve has another accuracy"
