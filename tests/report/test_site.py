"""The pages over all boards: what they rank, that a summary survives its file, and that all text is inert."""

import io
import json
import re
from dataclasses import replace
from html import unescape
from urllib.parse import parse_qs

import numpy as np
import pytest
from PIL import Image

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.names import of_label
from fedspan.benchmark.report import site
from fedspan.benchmark.report.overall import Comparisons, choices, merged, verdict, with_names
from fedspan.benchmark.report.overview import FILTERS, sentence
from fedspan.benchmark.report.pages import coded, slug
from fedspan.benchmark.report.partitions import draw_partitions, picture_of
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.statistics import Difference, Withheld
from fedspan.benchmark.report.summary import Result, Summary, Task, method_name, read, to_json
from tests.report.made import board, cells_of, record, results_of, seeded, stopped, with_digest
from tests.report.test_files import NASTY, Page
from tests.tasks.files import write
from tests.tasks.test_image_folder import small


@pytest.fixture
def summary(tmp_path):
    example = board()
    cells = cells_of(example)
    return write_report(example, cells, results_of(tmp_path / "results", seeded(cells)), tmp_path / "pages").summary


def test_a_summary_survives_its_file(summary, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(to_json(summary), encoding="utf-8")
    assert read(path) == summary
    for content in ("{}", to_json(summary).replace("own", "full", 1), to_json(summary).replace("3", "4", 1)):
        path.write_text(content)
        with pytest.raises(CorruptFile):
            read(path)


def ranking(results, ablations=False):
    return Comparisons(results).ranking(frozenset(result.task for result in results), ablations)


def test_methods_are_ranked_by_their_comparisons(summary):
    places = ranking(summary.results)
    assert [row.method for row in places][::5] == ["fedprox + feddecorr(form=paper)", "fedavg"]
    assert [row.place.text for row in places] == ["1", "2", "3", "4", "5", "6"], "later rows are made better"
    for behind, row in enumerate(reversed(places)):
        assert (row.place.ahead, row.place.compared, row.tasks, row.runs) == (behind, 5, 2, 6)
        assert row.costs == pytest.approx((1, 1, 1)), "all runs cost the same"


@pytest.mark.parametrize(
    ("algorithms", "opening"), [(["fedavg"], ["fedavg"] * 2), (["fednova", "moon"], ["moon", "fednova"])]
)
def test_the_comparison_opens_with_the_two_methods_that_there_are(tmp_path, algorithms, opening):
    example = board({"partition": "iid", "algorithm": algorithms, "seed": [0, 1, 2]})
    cells = cells_of(example)
    built = write_report(example, cells, results_of(tmp_path / "results", seeded(cells)), tmp_path / "pages").summary
    page = site.pages(tmp_path / "site", [built])[tmp_path / "site" / "compare.html"].decode()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert [data["methods"][number][0] for number in data["opening"]] == opening
    assert data["first"] == {"scale": "own"}, "at which these two have results"


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_runs_that_diverged_put_a_method_behind_all_that_have_none(tmp_path, lost):
    """The accuracies of the seeds that are left would be too good: here they are the best of all."""
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox", "fednova"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    records = seeded(cells)
    for number, (planned, made) in enumerate(zip(cells, records, strict=True)):
        if planned.cell.algorithm.name == "fednova":
            made["scores"]["trained"]["accuracy"] = 99.0
            if planned.cell.seed < lost:
                records[number] = stopped(planned, "diverged", "round 2: the test loss is nan")
    built = write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages").summary
    [result] = [one for one in built.results if one.method == "fednova"]
    assert (len(result.seeds), result.lost, result.asked) == (3 - lost, (0, 1, 2)[:lost], 3)
    last = ranking(built.results)[-1]
    assert (last.method, last.place.text, last.place.ahead, last.runs) == ("fednova", "3", 0, 3)
    assert [entry.rank for entry in built.entries] == [2, 1, 3]
    written = site.pages(tmp_path / "site", [built])
    files = {path.name: content.decode() for path, content in written.items() if path.suffix == ".html"}
    assert f"{lost} diverged" in files["fednova.html"]
    assert "3 of 3" in files["fednova.html"]
    assert "fednova" not in files["digits.html"].partition("Tasks on this dataset")[2]
    assert f"{{a}} is ahead: {lost} run{'s' * (lost > 1)} diverged on the tasks that both have" in files["compare.html"]
    assert "NaN" not in "".join(files.values())


@pytest.mark.parametrize("beside", [0, 1, None])
def test_the_machine_of_runs_is_known_where_each_had_it_alone(tmp_path, beside):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    records = [record(planned, 50.0) for planned in cells]
    for number, one in enumerate(records):
        known = {} if beside is None and not number % 3 else {"cells_beside": 0 if number % 3 else beside}
        alone = {name: value for name, value in one["provenance"].items() if name != "cells_beside"}
        one["provenance"] = alone | {"device": "one kind"} | known
    built = write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages").summary
    assert {bool(result.machine) for result in built.results} == {beside == 0}


@pytest.mark.parametrize(("workers", "whose"), [(1, "in all"), (2, "of 5 runs")])
def test_the_time_of_a_board_is_said_to_be_that_of_the_runs_whose_time_is_known(tmp_path, workers, whose):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    records = [record(planned, 50.0) for planned in cells]
    records[0]["provenance"] |= {"workers": workers}  # what several workers took, one would not have
    write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages")
    [page] = (tmp_path / "pages").glob("*/index.html")
    assert re.findall("<dt>Time ([^<]*)</dt>", page.read_text()) == [whose]


def test_a_picture_of_a_partition_without_its_words_is_drawn_again(tmp_path):
    cells = cells_of(board({"partition": "iid"}))[:1]
    draw_partitions(cells, tmp_path, tmp_path)
    [words] = tmp_path.glob("*.json")
    said = words.read_text()
    words.unlink()  # as a kill between the two leaves it
    draw_partitions(cells, tmp_path, tmp_path)
    assert words.read_text() == said


def test_a_partition_that_is_impossible_on_a_dataset_leaves_the_pictures_of_others(tmp_path):
    """Digits have no domains, so `domain` cannot split them; a missing dataset would leave none."""
    domain, iid = (cells_of(board({"partition": name}))[0] for name in ("domain", "iid"))
    draw_partitions([domain, iid], tmp_path, tmp_path)
    assert [path.name for path in tmp_path.glob("*.svg")] == [f"digits.{picture_of(iid.cell)}.svg"]


def test_ones_own_images_have_another_picture_once_they_change(tmp_path):
    pictures = set()
    for size in (4, 5):
        place = write(tmp_path / str(size), small(train=size))
        [cell] = cells_of(
            board({"partition": "iid", "clients": 2, "dataset": "image_folder", "dataset.root": str(place)})
        )
        pictures.add(picture_of(cell.cell))
    assert len(pictures) == 2


@pytest.mark.parametrize("more", [{"unseen": 0.2}, {"protocol.validation": 0.2}])
def test_partitions_with_other_counts_have_pictures_of_their_own(tmp_path, more):
    base = {"partition": "personal"}
    plain, [other] = cells_of(board(base | {"seed": [0, 1]})), cells_of(board(base | {"seed": 0} | more))
    draw_partitions([*plain, other], tmp_path, tmp_path)
    drawn = {path.stem.partition(".")[2]: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert set(drawn) == {picture_of(plain[0].cell), picture_of(other.cell)}, "one for both seeds"
    assert len({said["words"] for said in drawn.values()}) == 2


def test_a_run_that_failed_was_asked_for(tmp_path):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    records = [stopped(cells[0], "failed", "no room"), *seeded(cells)[1:]]
    built = write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages").summary
    [result] = [one for one in built.results if one.method == "fedavg"]
    assert (len(result.seeds), result.asked) == (2, 3)


def test_a_shared_address_shows_the_headline_and_a_picture_that_lies_beside_the_page(summary, tmp_path):
    files = site.pages(tmp_path, [summary])
    for name in ("index.html", "methods/fedavg.html"):
        said = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)">', files[tmp_path / name].decode()))
        assert (tmp_path / name).parent.joinpath(said["image"]).resolve() == tmp_path / "preview.png"
    overview = files[tmp_path / "index.html"].decode()
    [headline] = re.findall(r'<h1 id="headline"[^>]*>([^<]+)</h1>', overview)
    assert f'<meta property="og:description" content="{headline}">' in overview
    picture = Image.open(io.BytesIO(files[tmp_path / "preview.png"]))
    assert picture.size == (1200, 630)


def test_a_site_without_a_ranking_has_no_picture_and_no_link_to_one(summary, tmp_path):
    bounds = tuple(replace(one, ablation=True) for one in summary.results)
    files = site.pages(tmp_path, [replace(summary, results=bounds)])
    assert {path.suffix for path in files} == {".html"}
    assert not any(b"preview.png" in content for content in files.values())


def test_pages_of_a_board_link_a_picture_only_if_the_site_with_it_has_one(tmp_path):
    cells = cells_of(board({"partition": "iid"}))
    explaining = [replace(one, ablation=True) for one in cells]
    for folder, mine in (("ranked", cells), ("explaining", explaining)):
        out = tmp_path / folder
        results = results_of(out / "results", [record(one) for one in mine])
        built = write_report(board({"partition": "iid"}), mine, results, out / "pages").summary
        there = out / "pages" / "preview.png" in site.pages(out / "pages", [built])
        pages = list((out / "pages").glob("**/*.html"))
        assert len(pages) == 2
        assert {b"preview.png" in page.read_bytes() for page in pages} == {there} == {folder == "ranked"}


def test_pages_inside_documentation_lead_back_to_it(summary, tmp_path, monkeypatch):
    assert b">Docs<" not in site.pages(tmp_path, [summary])[tmp_path / "index.html"]
    monkeypatch.setenv("FEDSPAN_DOCS", "../index.html")
    files = site.pages(tmp_path, [summary])
    for name, link in (("index.html", "../index.html"), ("methods/fedavg.html", "../../index.html")):
        assert f'<a href="{link}">Docs</a>'.encode() in files[tmp_path / name]


def judged(folder, partition, one_model):
    """Return stage and accuracies by which FedAvg, FedBN and Ditto compete, and on which images; `one_model` scores so.

    FedBN has no global model, whose scores would say on which images it was tested.
    """
    example = board({"partition": partition, "algorithm": ["fedavg", "fedbn", "ditto"]})
    cells = cells_of(example)
    own_models = {"trained": {"accuracy": None, "client_accuracy": 60.0, "loss": 0.5}}
    personal = {"trained": one_model, "personalised": {"accuracy": None, "client_accuracy": 70.0, "loss": 0.4}}
    each = ({"trained": one_model}, own_models, personal)
    records = [record(p, scores=scores) for p, scores in zip(cells, each, strict=True)]
    results = write_report(example, cells, results_of(folder / "results", records), folder / "pages").summary.results
    return {one.method: (one.stage, one.seeds) for one in results}, {one.task.tested for one in results}


def test_where_clients_have_test_images_of_their_own_the_mean_over_clients_counts_at_the_last_stage(tmp_path):
    found, tested = judged(tmp_path, "personal", {"accuracy": 40.0, "client_accuracy": 50.0, "loss": 0.5})
    assert found == {
        "fedavg": ("trained", {"0": 50.0}),
        "fedbn": ("trained", {"0": 60.0}),
        "ditto": ("personalised", {"0": 70.0}),
    }
    assert tested == {"own"}


def test_personal_models_that_are_tested_on_all_test_images_are_on_the_task_of_global_ones(tmp_path):
    found, tested = judged(tmp_path, "iid", {"accuracy": 40.0, "loss": 0.5})
    assert [seeds for _, seeds in found.values()] == [{"0": 40.0}, {"0": 60.0}, {"0": 70.0}]
    assert tested == {"shared"}


def test_clients_of_the_data_that_share_test_images_are_one_task_for_global_and_personal_models(tmp_path):
    """The partition gives clients test images of their own where the data have some; here they have none."""
    _, tested = judged(tmp_path, "natural", {"accuracy": 40.0, "loss": 0.5})
    assert tested == {"shared"}


def test_a_method_whose_runs_all_diverged_is_on_the_task_of_those_tested_on_own_images(tmp_path):
    example = board({"partition": "personal", "algorithm": ["fedavg", "fedbn"]})
    cells = cells_of(example)
    tested = record(cells[0], scores={"trained": {"accuracy": 40.0, "client_accuracy": 50.0, "loss": 0.5}})
    records = [tested, stopped(cells[1], "diverged", "round 2: the test loss is nan")]
    built = write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages").summary
    assert [result.diverged for result in built.results] == [0, 1]
    assert len({result.task for result in built.results}) == 1


def test_runs_without_a_ranked_score_link_to_no_page_that_is_not_made(tmp_path):
    cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedbn"]}))
    unranked = record(cells[1], scores={"trained": {"loss": 0.5}})
    results = results_of(tmp_path / "results", [record(cells[0]), unranked])
    built = write_report(board({"partition": "iid"}), cells, results, tmp_path / "pages").summary
    for path, content in site.pages(tmp_path / "pages", [built]).items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    pages = list((tmp_path / "pages" / "runs").glob("*.html"))
    assert len(pages) == 2
    for page in pages:
        for link in re.findall(r'href="(\.\./(?:methods|datasets)/[^"]+)"', page.read_text()):
            assert (page.parent / link).is_file()
    assert any("methods/fedavg.html" in page.read_text() for page in pages)


def test_of_two_methods_that_diverged_none_is_ahead(summary):
    first, second = (replace(one, task=summary.results[0].task, lost=(0,)) for one in summary.results[:2])
    second = replace(second, method="other")
    assert [(row.place.first, row.place.last) for row in ranking([first, second])] == [(1, 2), (1, 2)]


def test_a_method_on_other_images_is_compared_with_nobody(tmp_path):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    records = [with_digest(one, "f" * 64) if i >= 3 else one for i, one in enumerate(seeded(cells))]
    summary = write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages").summary
    assert len({result.task for result in summary.results}) == 2
    assert {(row.place.compared, row.place.field) for row in ranking(summary.results)} == {(0, 1)}
    page = site.pages(tmp_path, [summary])[tmp_path / "index.html"].decode()
    assert page.count('place">—<') == 1, "it opens with one copy of the dataset; the filter offers both"
    assert all(f"Digits (images sha256:{digit * 12})" in page for digit in "df")


def results_on(values, noise=0.01):
    """Return results of methods on tasks, ``{method: {task: accuracy}}``, with three seeds that scatter a little."""
    spread = np.random.default_rng(0).normal(0, noise, (len(values), 3, 3)).tolist()
    return [
        Result(
            f"{method}{task}", method, method,
            Task("digits", task, None, 10, 1.0, "small_cnn", "digits", 5, 1, "paper", ""), "trained",
            {str(seed): value + spread[m][t][seed] for seed in range(3)}, 3, {},
        )
        for m, (method, tasks) in enumerate(values.items())
        for t, (task, value) in enumerate(tasks.items())
    ]  # fmt: skip


def tuned_on(values):
    """Return what `results_on` does; a method called ``name, tuned`` is ``name`` with what its trials chose."""
    results = results_on(values)
    return [
        replace(one, tuned=one.method.endswith("tuned"), family=one.method.removesuffix(", tuned")) for one in results
    ]


BOTH = {name: dict.fromkeys("ab", value) for name, value in (
    ("fedavg", 50.0), ("fedavg, tuned", 60.0), ("fedavg + feddecorr", 54.0), ("fedavg + feddecorr, tuned", 61.0),
)}  # fmt: skip


def pages_of(results, folder):
    files = site.pages(folder, [Summary("b", "B", "", "paper", "b/", {}, tuple(results), ())])
    return {
        path.relative_to(folder).as_posix(): content.decode()
        for path, content in files.items()
        if path.suffix == ".html"
    }


def test_a_place_is_one_among_the_methods_that_share_a_task(tmp_path):
    tasks = {"fedavg": "a", "moon": "a", "fedprox": "a", "scaffold": "bc", "fednova": "bc"}
    results = results_on({one: dict.fromkeys(names, 50.0 + i) for i, (one, names) in enumerate(tasks.items())})
    page = pages_of(results, tmp_path)["methods/fednova.html"]
    assert re.findall("Place (.*?) of (\\d+)", page)[0] == ("B 1", "2")


def test_the_page_of_a_method_says_where_it_stands(tmp_path):
    results = tuned_on({"fedavg": {"a": 50.0, "b": 50.0}, "moon": {"a": 60.0, "b": 61.0}, "fedavg, tuned": {"a": 55.0}})
    pages = pages_of(results, tmp_path)
    [said] = re.findall('<ul class="placed">(.*?)</ul>', pages["methods/moon.html"], re.DOTALL)
    said = " ".join(re.sub("<[^>]*>", " ", said).split())
    assert said.startswith("Place 1 of 2; +10.5 points over FedAvg (95% CI ")
    assert " Not tuned: Digits, 10 clients, " in said
    assert 'compare.html#a=moon&amp;b=fedavg"' in pages["methods/moon.html"]
    of_base = re.findall("<li>(.*?)<", pages["methods/fedavg.html"])
    assert [line.strip(". ") for line in of_base[:2]] == ["Nothing to compare", "Place 2 of 2"], "tuned first"


def test_a_method_is_set_against_its_base_as_it_comes_and_against_the_tuned_one_where_it_is_tuned(tmp_path):
    page = pages_of(tuned_on(BOTH), tmp_path)[f"methods/{slug('fedavg + feddecorr')}.html"]
    said = re.findall(r"(tuned|\)|FedDecorr) is better by ([\d.]+) points", page)
    assert [round(float(points)) for _, points in said] == [4, 1]


def test_a_method_is_set_against_its_algorithm_with_the_same_settings_and_each_line_names_both(tmp_path):
    """Its lead over the defaults would count what the algorithm's own settings gain."""
    warm, mine = "moon(temperature=1.0)", "moon(temperature=1.0) + feddecorr"
    values = {"moon": 50.0, warm: 53.0, mine: 54.5, f"{mine}, lr=0.1": 56.5, f"{warm}, batch_size=16": 57.0}
    tasks = {name: dict.fromkeys("ab", value) for name, value in values.items()} | {
        f"{mine}, batch_size=16": {"a": 59.0}  # on one task there are too few runs for a difference
    }
    results = [replace(one, family="moon" + " + feddecorr" * (mine in one.method)) for one in results_on(tasks)]
    page = pages_of(results, tmp_path)[f"methods/{slug('moon + feddecorr')}.html"]
    first, name = "MOON (temperature 1) + FedDecorr (released form)", "MOON (temperature 1)"
    for line in (
        f"{first} against {name} (scale paper): {first} is better by 1.",
        f"{first}, batch size 16 against {name}, batch size 16 (scale paper): No interval is given: 3 pairs of runs",
        f"{first}, learning rate 0.1 against MOON (scale paper): {first}, learning rate 0.1 is better by 6.",
    ):
        assert f"<li>{line}" in page
    assert page.count(" against ") == 3


def test_the_page_of_a_dataset_links_to_the_leaderboard_for_each_variant_and_scale(tmp_path):
    """The leaderboard opens with one variant, one kind of test images and one scale."""
    [plain] = results_on({"fedavg": {"a": 50.0}})
    variants = [("digits", "paper"), ("digits(limit=500)", "small"), ("digits(limit=500)", "paper")]
    results = [replace(plain, task=replace(plain.task, dataset=label, scale=scale)) for label, scale in variants]
    results += [replace(plain, task=replace(plain.task, tested="own"))]
    page = pages_of(results, tmp_path)["datasets/digits.html"]
    links = re.findall(r'<a href="\.\./index\.html#([^"]*=[^"]*)">([^<]*)</a>', page)
    assert {text: parse_qs(unescape(address)) for address, text in links} == {
        f"{of_label('dataset', label)}, scale {scale}": {"dataset": [label], "tested": ["all"], "scale": [scale]}
        for label, scale in variants
    }
    assert len(links) == 3


def test_ranks_and_the_best_are_those_of_results_of_one_kind(tmp_path):
    pages = pages_of(tuned_on(BOTH), tmp_path)
    for family, rank in (("fedavg", "2 of 2"), ("fedavg + feddecorr", "1 of 2")):
        page = pages[f"methods/{slug(family)}.html"]
        assert re.findall(r">(\d of \d)<", page) == [rank] * 4, "on two tasks, with the defaults and tuned"
    rows = pages["datasets/digits.html"].partition("Tasks on this")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    assert re.findall(r'<td class="score" data-v="(\d)">', rows) == ["2", "2"], "two methods, not four"
    best = re.findall(r'<td class="label">(FedAvg[^<]*)<span class="n">(FedAvg[^:]*):', rows)
    assert len(best) == 2
    assert all("tuned" in tuned and "tuned" not in default for default, tuned in best)


def test_of_results_with_diverged_runs_alone_the_best_of_a_task_has_the_highest_mean(tmp_path):
    results = [replace(one, lost=(7,)) for one in results_on({"fedavg": {"a": 60.0}, "moon": {"a": 80.0}})]
    rows = pages_of(results, tmp_path)["datasets/digits.html"].partition("Tasks on this")[2]
    assert re.findall(r'<td class="label">(FedAvg|MOON)', rows) == ["MOON"]


def test_tasks_of_different_fleets_and_unseen_clients_have_different_names_and_a_filter(tmp_path):
    [plain] = results_on({"fedavg": {"a": 50.0}})
    others = [{"fleet": "stragglers(share=0.9)"}, {"fleet": "dropout(rate=0.3)"}, {"unseen": 0.2}]
    results = [plain, *(replace(plain, task=replace(plain.task, **other)) for other in others)]
    pages = pages_of(results, tmp_path)
    names = re.findall(r'<td class="label task">(.*?)</td>', pages["methods/fedavg.html"])
    assert len(set(names)) == 4
    assert plain.task.fleet not in names
    data = json.loads(re.search(r'id="data">(.*?)</script>', pages["index.html"])[1])
    at = [name for name, _ in FILTERS].index("fleet")
    assert [task[at] for task in data["tasks"]] == ["reliable", *(o.get("fleet", "reliable") for o in others)]
    assert set(data["says"]["fleet"]) == {"reliable", *(o["fleet"] for o in others[:2])}
    assert len(set(data["short"])) == 4
    assert data["same"] == {"1": 0, "2": 0}, "fleets with the same scores"
    for other in results[:3]:
        fleet = [result.task for result in results if result.task.fleet == other.task.fleet]
        assert frozenset(fleet) in set(choices([result.task for result in results]))


def test_a_board_with_other_seeds_of_a_few_methods_changes_no_row_of_a_ranking():
    """Their longer results could be compared with each other alone."""
    first = results_on({name: {"a": 50.0 + i} for i, name in enumerate(("fedavg", "fedprox", "moon"))})
    other = [
        replace(one, point=f"other{one.point}", seeds={str(seed): 40.0 for seed in range(3, 8)}) for one in first[:2]
    ]
    longer = [replace(one, seeds=one.seeds | {"3": 51.0, "4": 52.0}) for one in first[:2]]
    across = [replace(one, seeds={str(seed): 40.0 for seed in range(2, 10)}) for one in first[:2]]
    for order in (1, -1):
        assert merged_of([first, other][::order]) == by_method(first)
        assert merged_of([first, across][::order]) == by_method(first), "one seed of them is the others', too"
        assert merged_of([first, longer][::order]) == by_method([*longer, first[2]]), (
            "more seeds of the same pairs count"
        )


def test_tuned_results_compete_with_those_of_the_budget_that_most_methods_have():
    """More trials are no merit of a method."""
    usual = [replace(one, tuned=True, budget="12 trials") for one in results_on({n: {"a": 50.0} for n in "xyz"})]
    more = [replace(one, budget="60 trials", point=f"other{one.point}") for one in usual[:1]]
    default = [replace(one, method="d", tuned=False, budget="") for one in usual[:1]]
    for order in (1, -1):
        assert merged_of([usual, more, default][::order]) == by_method([*usual, *default])
    assert merged_of([more]) == by_method(more)


def merged_of(boards):
    summaries = [Summary("b", "B", "", "paper", "b/", {}, tuple(results), ()) for results in boards]
    return by_method(merged(summaries))


def by_method(results):
    return {one.method: one for one in results}


def test_a_method_run_on_easier_tasks_does_not_pass_one_that_beats_it_where_both_were_run():
    """Its share of methods beaten is the larger one: on two tasks more it meets weaker ones."""
    weak = {f"weak{i}": {"easy": 50.0 + i, "easier": 40.0 + i} for i in range(3)}
    strong = {f"strong{i}": {"hard": 80.0 + i, "harder": 90.0 + i} for i in range(3)}
    rivals = {"one": {"hard": 70.0, "harder": 70.0}, "other": {"hard": 60.0, "harder": 60.0, "easy": 90.0}}
    rows = {row.method: row.place for row in ranking(results_on(weak | strong | rivals))}
    assert rows["one"].first < rows["other"].first
    assert rows["one"].last < rows["other"].last
    order = list(rows)
    assert order.index("one") < order.index("other")


def test_ablations_compete_only_if_asked_for():
    results = results_on({"plain": {"a": 50.0, "b": 50.0}, "variant": {"a": 60.0, "b": 60.0}})
    marked = [replace(result, ablation=result.method == "variant") for result in results]
    assert [(row.method, row.place.text) for row in ranking(marked)] == [("plain", "1")]
    assert [(row.method, row.place.text) for row in ranking(marked, True)] == [("variant", "1"), ("plain", "2")]


def test_runs_on_other_clients_images_than_most_of_their_seed_are_not_compared(summary):
    """A C library that draws another partition makes another experiment of the same cell."""
    digests = {"0": "aaa", "1": "bbb", "2": "ccc"}
    results = [replace(one, partitions=digests) for one in results_on({name: {"a": 50.0} for name in ("x", "y", "z")})]
    odd = replace(results[2], partitions=digests | {"1": "other"}, lost=(2,))
    found = merged([replace(summary, results=(*results[:2], odd))])
    assert [list(one.outcomes) for one in found] == [[0, 1, 2], [0, 1, 2], [0, 2]]
    gone = replace(odd, partitions=dict.fromkeys(digests, "other"))
    assert merged([replace(summary, results=(*results[:2], gone))]) == results[:2]
    assert merged([replace(summary, results=results)]) == results


def test_copies_of_a_dataset_are_told_apart_by_name(summary):
    """JPEG copies of a dataset, or its files in another decoder's pixels, are other images of one name."""
    publisher, jpeg = results_on({"x": {"a": 50.0}, "y": {"a": 60.0}})
    publisher = replace(publisher, task=replace(publisher.task, dataset="cifar10(limit=5000)", digest="0123456789ab"))
    jpeg = replace(jpeg, task=replace(publisher.task, digest="12e345678901"))
    unknown = replace(jpeg, method="z", task=replace(jpeg.task, digest=""))
    found = merged([replace(summary, results=(publisher, jpeg, unknown))])
    assert [sentence(one.task).partition(", 10 clients")[0] for one in found] == [
        "CIFAR-10 (5,000 images, images sha256:0123456789ab)",
        "CIFAR-10 (5,000 images, images sha256:12e345678901)",
        "CIFAR-10 (5,000 images)",
    ]
    assert merged([replace(summary, results=(publisher, unknown))]) == [publisher, unknown]


def test_what_some_board_has_as_a_method_of_its_own_is_no_ablation(summary):
    first = summary.results[0]
    for order in ((first, replace(first, ablation=True)), (replace(first, ablation=True), first)):
        assert merged([replace(summary, results=order)]) == [first]


@pytest.mark.parametrize(
    ("protocol", "settings", "names"),
    [
        ("spherefed_cifar100", {"algorithm": "fednova", "protocol.lr": [0.01, 0.1]}, ["fednova", "fednova, lr=0.1"]),
        ("feddecorr_cifar10", {"algorithm": "moon", "algorithm.temperature": [1.0, 0.5]},
         ["moon", "moon(temperature=0.5)"]),
        ("default", {"algorithm": "moon", "algorithm.temperature": [1.0, 0.5]}, ["moon(temperature=1.0)", "moon"]),
        ("spherefed_cifar100", {"addons": ["spherefed"], "addon.spherefed.criterion": ["mse", "ce"]},
         ["fedavg + spherefed", "fedavg + spherefed(criterion=ce)"]),
    ],
)  # fmt: skip
def test_a_method_is_named_by_the_settings_that_its_protocol_does_not_imply(protocol, settings, names):
    """A tuned learning rate goes unnamed, and so the default does not; another loss has another rate of its own."""
    cells = cells_of(board({"protocol": protocol, "partition": "iid", **settings}))
    assert [method_name(planned) for planned in cells] == names


def place_of(row):
    """Return place and range of a packed row, as the script writes them."""
    _, place, first, last, *_ = row
    if place == 0:
        return "—", ""
    shown = f"{-place}=" if isinstance(place, int) and place < 0 else str(place)
    return shown, "" if not last else str(first) if first == last else f"{first}–{last}"


def test_the_page_ranks_each_choice_of_tasks(summary, tmp_path):
    page = site.pages(tmp_path, [summary])[tmp_path / "index.html"].decode()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert [set(views) for views in data["views"]] == [{"1", "2", "3"}]
    tasks = list(dict.fromkeys(result.task for result in summary.results))
    for bits, (headline, _, about, reference, packed) in data["views"][0].items():
        rows = [[int(part) if part.lstrip("-").isdecimal() else part for part in row.split(",")]
                for row in packed.split(";")]  # fmt: skip
        chosen = frozenset(task for i, task in enumerate(tasks) if int(bits, 16) >> i & 1)
        expected = Comparisons(summary.results).ranking(chosen)
        assert [(data["methods"][row[0]][0], *place_of(row)) for row in rows] == [
            (row.method, row.place.text, row.place.range if row.place.range != row.place.text else "")
            if row.place.tested
            else (row.method, "—", "")
            for row in expected
        ]
        assert data["methods"][reference][0] == "fedavg"
        gains = {data["methods"][row[0]][0]: row[4:] for row in rows}
        assert gains["fedavg"] == []
        for row in expected:
            if isinstance(row.gain, Withheld):
                assert [data["whys"][why] for why in gains[row.method]] == [row.gain.reason]
            elif row.method != "fedavg":
                mean, below, above = gains[row.method]
                assert [tenths / 10 for tenths in (mean, mean - below, mean + above)] == pytest.approx(
                    [row.gain.mean, row.gain.low, row.gain.high], abs=0.0501
                )
        said = "FedProx + FedDecorr (paper form) leads: +" if len(chosen) == 2 else "No winner can be named"
        assert data["texts"][headline].startswith(said)
        assert f"{len(chosen)} task" in data["texts"][about]


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        ((1.25, 0.37, 2.14, 0.01), "A is better by 1.25 points (95% CI 0.37 to 2.14; 2 tasks, 6 paired runs)."),
        ((-1.25, -2.14, -0.37, 0.01), "B is better by 1.25 points (95% CI 0.37 to 2.14; 2 tasks, 6 paired runs)."),
        (
            (-1.25, -2.14, -0.37, 0.872),
            "No clear winner: B is ahead by 1.25 points on average (95% CI 0.37 to 2.14), "
            "but the tests of the 2 tasks, combined, do not confirm it (p = 0.87).",
        ),
        (
            (-1.66, -3.81, 0.44, 0.1),
            "No clear winner: B is ahead by 1.66 points on average, "
            "but the 95% interval (−0.44 to +3.81) includes zero.",
        ),
        ((0, 0, 0, 1.0), "No clear winner: both have the same mean (2 tasks, 6 paired runs)."),
    ],
)
def test_a_difference_is_one_sentence(gap, said):
    assert with_names(verdict(Difference(*gap, 2, 6, "")), "A", "B") == said


def test_a_difference_that_is_withheld_is_one_sentence_too():
    assert verdict(Withheld("3 pairs are too few")) == "No interval is given: 3 pairs are too few."
    said = "B is ahead: 1 run diverged, none of B. No interval is given."
    assert with_names(verdict(Withheld("1 run diverged", -1)), "A", "B") == said


def test_names_are_put_into_a_sentence_as_they_are():
    assert with_names("{a} is better than {b}", "{b}", "{a}") == "{b} is better than {a}"


def test_of_several_results_the_one_with_most_seeds_counts(summary):
    first = summary.results[0]
    fewer = replace(first, seeds={"0": 1.0})
    for order in ((fewer, first), (first, fewer)):
        assert merged([replace(summary, results=order)]) == [first]


def test_names_are_inert_on_every_page(summary, tmp_path):
    results = tuple(
        replace(one, method=NASTY, family=NASTY, task=replace(one.task, partition=NASTY, model=NASTY, protocol=NASTY))
        for one in summary.results[:1]
    )
    nasty = replace(summary, title=NASTY, description=NASTY, results=results + summary.results[1:])
    files = site.pages(tmp_path, [nasty], [(NASTY, NASTY)])
    picture = files.pop(tmp_path / "preview.png")
    assert picture.startswith(b"\x89PNG")
    assert len(files) == 8  # overview, comparison, five methods, one dataset
    for path, content in files.items():
        text = content.decode()
        page = Page(text)
        assert not any(tag == "img" for tag, _ in page.elements)
        assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
        assert page.values("style") == []
        assert len(re.findall("</script", text)) == len(re.findall("<script", text))
        assert re.fullmatch(r"[a-z0-9_-]+\.html", path.name)
        assert path.parent in (tmp_path, tmp_path / "methods", tmp_path / "datasets")


def test_names_and_values_in_a_docstring_are_set_as_code():
    assert coded("is `name`; ``x=<1>`` it's") == "is <code>name</code>; <code>x=&lt;1&gt;</code> it&#39;s"


def test_the_points_of_a_docstring_are_a_list(tmp_path):
    page = pages_of(tuned_on(BOTH), tmp_path)[f"methods/{slug('fedavg + feddecorr')}.html"]
    [listed] = re.findall(r"<ul>(.*?)</ul>", page.partition("What it is")[2].partition("Results on all")[0], re.DOTALL)
    points = re.findall(r"<li>(.*?)</li>", listed)
    assert [point.partition("</code>")[0] for point in points] == [
        f"<code>form={form}" for form in ("paper", "pseudocode", "released")
    ]


def test_different_names_have_different_files():
    names = [
        "fedavg",
        "fedavg + feddecorr",
        "fedavg - feddecorr",
        "FedAvg",
        "../fedavg",
        "fedavg/feddecorr",
        "<b>",
        "<i>",
    ]
    assert len({slug(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_-]+", slug(name)) for name in names)
