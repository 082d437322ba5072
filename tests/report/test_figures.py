import itertools
import re
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report import labels
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.drawing import MOST_LINES
from fedspan.benchmark.report.figures import _look, _plot, description, files, inline
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.pages import TEMPLATES
from fedspan.benchmark.report.panels import draw
from fedspan.benchmark.report.style import COLOURS, LINES, fill_of
from fedspan.benchmark.report.sweeps import order_along_x, short
from fedspan.benchmark.spec.board import Figure
from tests.report.made import board, cells_of, record, results_of, stopped

SEEDS = {"partition": "iid", "seed": [0, 1, 2], "protocol.rounds": 3}


def luminance(colour):
    """Return the relative luminance of a colour (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return np.dot(linear, [0.2126, 0.7152, 0.0722])


def test_lines_stand_out_on_the_page_in_light_and_in_dark():
    light, dark = (TEMPLATES / "base.css").read_text().split("prefers-color-scheme: dark")
    paper = {"light": "#ffffff", "dark": re.search("--paper: (#[0-9a-f]{6})", dark)[1]}
    for scheme, css in (("light", light), ("dark", dark)):
        colours = re.findall(r"--line-\d: (#[0-9a-f]{6})", css)
        assert scheme == "dark" or colours == [colour.lower() for colour in COLOURS]
        for colour in colours[:LINES]:
            low, high = sorted([luminance(colour), luminance(paper[scheme])])
            assert (high + 0.05) / (low + 0.05) >= 3, (scheme, colour)


@pytest.fixture
def drawn(tmp_path):
    def drawn(cells, records, figure):
        return draw(collect(cells, results_of(tmp_path, records)), Axes(cells), figure, 1)

    return drawn


def test_a_line_is_the_mean_and_sample_deviation_over_seeds_at_each_round(drawn):
    cells = cells_of(board(SEEDS))
    curves = np.array([[10.0, 50.0, 90.0], [20.0, 60.0, 93.0], [30.0, 40.0, 99.0]])
    records = [
        record(planned, curve={"round": [1, 2, 3], "accuracy": list(values)})
        for planned, values in zip(cells, curves, strict=True)
    ]
    ((line,),) = [panel.lines for panel in drawn(cells, records, Figure()).panels]
    np.testing.assert_allclose(line.x, [1, 2, 3])
    np.testing.assert_allclose(line.mean, curves.mean(0))
    np.testing.assert_allclose(line.std, curves.std(0, ddof=1))
    assert line.n == 3


def test_a_spectrum_is_the_mean_of_logarithms_and_zeros_stand_at_the_floor(drawn):
    cells = cells_of(board(SEEDS))[:2]
    spectra = [[4.0, 1.0, 0.0], [1.0, 0.5, 0.25]]
    records = [
        record(p, spectra={"global": {"singular_values": values}}) for p, values in zip(cells, spectra, strict=True)
    ]
    ((line,),) = [panel.lines for panel in drawn(cells, records, Figure(kind="spectrum")).panels]
    np.testing.assert_allclose(line.x, [1, 2, 3])
    np.testing.assert_allclose(line.mean[:2], np.log(np.array(spectra)[:, :2]).mean(0))
    np.testing.assert_allclose(line.mean[2], (np.log(4e-12) + np.log(0.25)) / 2)


def test_a_row_has_the_same_look_in_every_panel_and_no_two_rows_share_one(drawn):
    cells = cells_of(board())
    drawing = drawn(cells, [record(p) for p in cells if p.cell.seed == 0], Figure())
    assert [panel.title for panel in drawing.panels] == ["alpha 0.05", "IID"]
    for panel in drawing.panels:
        assert [drawing.labels[line.number] for line in panel.lines] == [line.label for line in panel.lines]
    looks = [_look(i) for i in range(MOST_LINES)]
    assert len({(str(look["color"]), str(look["linestyle"])) for look in looks}) == MOST_LINES
    for one, other in itertools.pairwise(looks):
        assert one["linestyle"] != other["linestyle"], "neighbours differ in grey too"
    fills = [fill_of(i) for i in range(MOST_LINES)]
    assert len(set(fills)) == MOST_LINES
    assert all(one[1] != other[1] for one, other in itertools.pairwise(fills)), "neighbours differ in grey too"


def test_more_lines_than_can_be_told_apart_are_refused(drawn):
    cells = cells_of(board({"partition": "iid", "clients": list(range(1, 30))}))
    with pytest.raises(UserError, match=r"29 lines are too many to tell apart \(at most 28\); select some with where"):
        drawn(cells, [], Figure(rows=("clients",)))
    assert len(drawn(cells, [], Figure(rows=("clients",), where={"clients": [1, 2]})).labels) == 2
    with pytest.raises(UserError, match=r"29 bars are too many to tell apart \(at most 28\); select some with where"):
        drawn(cells, [], Figure(kind="bars", rows=("clients",)))
    with pytest.raises(UserError, match=r"29 panels are too many to tell apart \(at most 24\)"):
        drawn(cells, [], Figure(kind="sweep", x="partition", columns=("clients",)))


def test_a_caption_speaks_of_several_seeds_only_where_there_are_some(drawn):
    cells = cells_of(board(SEEDS))
    assert drawn(cells, [record(cells[0])], Figure()).caption == "Test accuracy (%) against round: one seed."
    several = drawn(cells, [record(p) for p in cells], Figure()).caption
    assert several == "Test accuracy (%) against round: mean of the seeds, shaded ± one sample standard deviation."


def test_only_finished_runs_are_drawn(drawn):
    cells = cells_of(board(SEEDS))
    drawing = drawn(cells, [record(cells[0]), stopped(cells[1], "diverged", "why")], Figure())
    assert [line.n for panel in drawing.panels for line in panel.lines] == [1]
    assert "1 of 3 runs diverged or failed and are excluded from means" in drawing.problems
    empty = drawn(cells[1:2], [], Figure())
    assert empty.panels[0].lines == ()
    assert description(empty, empty.panels[0]) == "No finished run."
    assert "no finished run" in inline(empty)[0]


@pytest.mark.parametrize("kind", ["accuracy", "local_spectrum", "shares"])  # a line, panels per client, a map
def test_every_kind_of_figure_is_written_before_there_is_any_record(drawn, kind):
    drawing = drawn(cells_of(board({"partition": "iid"}))[:1], [], Figure(kind=kind))
    assert all(panel.empty for panel in drawing.panels)
    assert files(drawing)["svg"]
    assert "no finished run" in inline(drawing)[0]


def test_records_without_what_is_drawn_are_a_problem(drawn):
    cells = cells_of(board(SEEDS))
    records = [record(cells[0]), record(cells[1], None), {k: v for k, v in record(cells[2]).items() if k != "spectra"}]
    records[1]["curve"]["accuracy"] = [None, None]
    assert "1 of 3 finished records hold no accuracy per round" in drawn(cells, records, Figure()).problems[0]
    assert "set diagnostics.spectra=true" in drawn(cells, records, Figure(kind="spectrum")).problems[0]


def test_inline_figures_follow_the_page_and_break_no_policy(drawn):
    cells = cells_of(board())
    for svg in inline(drawn(cells, [record(p, 60.0 + p.cell.seed) for p in cells], Figure())):
        assert "style" not in svg
        assert "http" not in svg
        assert "currentColor" in svg
        for number in range(6):
            assert f"var(--line-{number})" in svg
            assert svg.count(f'data-line="{number}"') == 2, "a line and its band"


# the papers' other figures --------------------------------------------------------------------------


def test_local_models_have_a_panel_per_client_and_the_gap_is_named(drawn):
    cells = cells_of(board(SEEDS))[:2]
    spectra = {
        "global": {"singular_values": [3.0, 1.0]},
        "local": {str(client): {"singular_values": [4.0, 2.0]} for client in (0, 3)},
        "gap": {"0": 0.5, "3": 0.7},
    }
    records = [record(planned, spectra=spectra) for planned in cells]
    local = drawn(cells, records, Figure(kind="local_spectrum"))
    assert [panel.title for panel in local.panels] == ["IID, client 0", "IID, client 3"]
    np.testing.assert_allclose(local.panels[0].lines[0].mean, np.log([4.0, 2.0]))
    assert len(drawn(cells, records, Figure(kind="local_spectrum", clients=(3,))).panels) == 1
    [panel] = drawn(cells, records, Figure(kind="gap", rows=(), clients=(3,))).panels
    assert panel.note == "R = 0.70"
    assert [line.label for line in panel.lines] == ["global model", "local model of client 3"]
    np.testing.assert_allclose(panel.lines[0].mean, np.log([3.0, 1.0]))


def test_local_models_are_those_of_the_runs_whose_last_round_had_the_client(drawn):
    """With some clients a round, the local models of two seeds or two columns may be of different clients."""
    skews = [{"partition": "iid"}, {"partition": "dirichlet"}]
    cells = cells_of(board({"partition": skews, "seed": [0, 1]}))
    records = [
        record(planned, spectra={
            "global": {"singular_values": [3.0, 1.0]},
            "local": {client: {"singular_values": [4.0, 2.0]}},
            "gap": {client: 0.5},
        })
        for planned, client in zip(cells, "0399", strict=True)
    ]  # fmt: skip
    for kind in ("local_spectrum", "gap"):
        panels = drawn(cells, records, Figure(kind=kind, rows=(), clients=(3,))).panels
        assert [panel.empty for panel in panels] == [False, True]
        assert {line.n for line in panels[0].lines} == {1}
    assert [panel.note for panel in panels] == ["R = 0.50", ""]


def test_a_sweep_has_a_place_for_every_label_of_its_axis(drawn):
    cells = cells_of(board({"partition": "iid", "clients": [2, 5], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}))
    records = [record(p, 10.0 * p.cell.clients + p.cell.seed) for p in cells]
    drawing = drawn(cells, records, Figure(kind="sweep", x="clients"))
    assert drawing.ticks == ("2", "5")
    for line in drawing.panels[0].lines:
        np.testing.assert_allclose(line.x, [2, 5])
        np.testing.assert_allclose(line.mean, [20.5, 50.5])
        np.testing.assert_allclose(line.std, [np.std([0, 1], ddof=1)] * 2)
    with pytest.raises(UserError, match="needs x"):
        drawn(cells, records, Figure(kind="sweep"))


def test_bars_are_shares_of_the_first_row_in_each_column(drawn):
    cells = cells_of(board({"partition": "iid", "clients": [2, 5], "algorithm": ["fedavg", "fedprox"], "seed": [0, 1]}))
    first = {"fedavg": 4.0, "fedprox": 2.0}
    records = [record(p, p.cell.clients * (1 + p.cell.seed) * first[p.cell.algorithm.name]) for p in cells]
    [panel] = drawn(cells, records, Figure(kind="bars", columns=("clients",), relative=True)).panels
    assert [list(line.mean) for line in panel.lines] == [[1.0, 1.0], [0.5, 0.5]]
    for line, share in zip(panel.lines, (1.0, 0.5), strict=True):
        np.testing.assert_allclose(line.std, [share * np.std([1, 2], ddof=1) / 1.5] * 2)


def test_columns_without_a_run_of_the_first_row_have_no_ratio_and_a_problem_says_so(drawn):
    cells = cells_of(board({"partition": "iid", "clients": [2, 5], "algorithm": ["fedavg", "fedprox", "fedavgm"]}))
    figure = Figure(kind="bars", columns=("clients",), relative=True)
    others = [record(p, 50.0) for p in cells if p.cell.algorithm.name != "fedavg"]
    nothing = drawn(cells, others, figure)
    [panel] = nothing.panels
    assert (panel.lines, description(nothing, panel)) == ((), "No ratio to FedAvg.")
    why = "it has no finished run there, or their mean is zero"
    assert nothing.problems == (f"no ratio to FedAvg, the first row, in 2 of 2 columns: {why}",)
    first = next(record(p, 25.0) for p in cells if p.cell.algorithm.name == "fedavg")
    some = drawn(cells, [*others, first], figure)
    assert [(line.x.tolist(), line.mean.tolist()) for line in some.panels[0].lines] == [
        ([0.0], [1.0]), ([0.0], [2.0]), ([0.0], [2.0])
    ]  # fmt: skip
    assert some.problems == (f"no ratio to FedAvg, the first row, in 1 of 2 columns: {why}",)


def test_every_part_that_a_figure_of_a_page_refers_to_is_in_it(drawn):
    """Bars of the second row on are hatched: their fill is a pattern."""
    cells = cells_of(board({"partition": "iid", "clients": [2, 5], "algorithm": ["fedavg", "fedprox"]}))
    [svg] = inline(drawn(cells, [record(p, 50.0) for p in cells], Figure(kind="bars", columns=("clients",))))
    wanted = {*re.findall(r"url\(#([^)]+)\)", svg), *re.findall(r'href="#([^"]+)"', svg)}
    assert len(re.findall(r'fill="url\(#', svg)) == 2
    assert wanted <= {*re.findall(r'\bid="([^"]+)"', svg)}


def test_shares_have_a_line_at_one_and_are_called_ratios(drawn):
    cells = cells_of(board({"partition": "iid", "clients": [2, 5], "algorithm": ["fedavg", "fedprox"]}))
    records = [record(p, 10.0) for p in cells]
    drawing = drawn(cells, records, Figure(kind="bars", columns=("clients",), relative=True))
    assert (drawing.kind.y, drawing.level) == ("Ratio to FedAvg", 1.0)
    plain = drawn(cells, records, Figure(kind="bars", columns=("clients",)))
    assert plain.level is None
    assert (plain.caption, drawing.caption) == (
        "Accuracy (trained), %: one seed.", "Accuracy (trained), %, over that of FedAvg: one seed.",
    )  # fmt: skip


def test_numbers_that_are_swept_over_lie_as_far_apart_as_they_are_and_in_order(drawn):
    skews = [{"partition": "dirichlet", "partition.alpha": alpha} for alpha in (5.0, 0.05, 0.5)]
    cells = cells_of(board({"partition": skews, "seed": [0, 1]}))
    records = [record(p, 10.0 * p.cell.partition.alpha) for p in cells]
    drawing = drawn(cells, records, Figure(kind="sweep", x="partition", columns=()))
    assert (drawing.ticks, drawing.places) == (("0.05", "0.5", "5.0"), (0.05, 0.5, 5.0))
    assert drawing.kind.x == "Alpha"
    [line] = drawing.panels[0].lines
    np.testing.assert_allclose(line.mean, 10 * line.x)
    assert "0.5 at 0.05, 5 at 0.5, 50 at 5.0" in description(drawing, drawing.panels[0])


def test_zero_lies_one_step_before_the_smallest_number_of_a_logarithmic_axis(drawn):
    cells = cells_of(board({"partition": "iid", "algorithm": "fedprox", "algorithm.mu": [0.0, 0.001, 0.1]}))
    drawing = drawn(cells, [record(p) for p in cells], Figure(kind="sweep", x="algorithm.mu", columns=()))
    plot = Canvas().add_subplot()
    _plot(plot, drawing, drawing.panels[0], None)
    zero, small, large = (plot.transData.transform((place, 0))[0] for place in drawing.places)
    assert (large - small) / 3 < small - zero < (large - small), "two decades lie between the other two"


def test_places_that_are_no_numbers_are_called_as_people_call_them(drawn):
    skews = [{"partition": "iid"}, {"partition": "dirichlet", "partition.alpha": 0.5}]
    cells = cells_of(board({"partition": skews}))
    drawing = drawn(cells, [record(p) for p in cells], Figure(kind="sweep", x="partition", columns=()))
    assert (drawing.ticks, drawing.places) == (("IID", "alpha 0.5"), ())


@pytest.mark.parametrize(
    "labels",
    [
        ["a(x=0.1, y=1)", "a(x=0.1, y=2)", "a(x=0.5, y=1)"],
        ["a(x=0.1, y=1)", "a(x=0.5, y=2)"],
        ["a(x=0.1)", "b(y=0.5)"],
        ["1", "1.0"],
    ],
)
def test_labels_that_differ_in_more_than_a_number_have_names_and_no_positions(labels):
    assert order_along_x(labels, labels) == (labels, tuple(labels), ())
    assert order_along_x(["a(x=0.5, y=1)", "a(x=0.1, y=1)"], labels)[1:] == (("0.1", "0.5"), (0.1, 0.5))


@pytest.mark.parametrize(
    ("called", "shown"),
    [
        (["ConvNet", "ResNet18 (group norm)"], ["ConvNet", "ResNet18"]),
        (["ResNet18 (batch norm)", "ResNet18 (group norm)"], ["ResNet18 (batch norm)", "ResNet18 (group norm)"]),
    ],
)
def test_names_of_places_are_short_where_that_tells_them_apart(called, shown):
    assert list(short(called)) == shown


UNITS = st.sampled_from(["IID", "alpha 0.5", "ResNet18", "(group norm)", "+"])


@given(st.lists(st.lists(UNITS, min_size=1, max_size=4), min_size=1, max_size=5), st.floats(0.5, 6))
def test_names_of_places_leave_room_for_their_neighbours(ticks, inches):
    names = [" ".join(units) for units in ticks]
    room = int(0.95 * inches / len(ticks) / labels.LETTER)
    for name, units, lines in zip(names, ticks, labels.x_tick_lines(names, inches), strict=True):
        assert lines.split() == name.split(), "nothing is cut"
        assert all(len(line) <= max(room, labels.NARROWEST, *map(len, units)) for line in lines.split("\n"))


def test_what_stands_in_parentheses_stays_together_where_it_finds_room():
    assert labels.wrapped("FedAvg + FedDecorr (released form)", 22) == ["FedAvg + FedDecorr", "(released form)"]
    assert labels.wrapped("MOON (projection 64 to 256)", 12) == ["MOON", "(projection", "64 to 256)"]


@pytest.mark.parametrize("kind", ["accuracy", "spectrum"])
def test_nothing_of_a_figure_lies_outside_of_it(drawn, kind):
    cells = cells_of(board())
    spectra = {"global": {"singular_values": [1e4, 1.0, 1e-9]}}
    drawing = drawn(cells, [record(p, 60.0 + p.cell.seed, spectra=spectra) for p in cells], Figure(kind=kind))
    kept = []
    with patch("fedspan.benchmark.report.figures.save", lambda canvas, *_, **__: kept.append(canvas) or b""):
        files(drawing)
    kept[0].draw_without_rendering()
    inside = kept[0].bbox
    for plot in kept[0].axes:
        for words in (plot.yaxis.label, plot.xaxis.label, plot.title):
            box = words.get_window_extent()
            assert box.x0 >= inside.x0 - 1, words
            assert box.y0 >= inside.y0 - 1, words
            assert box.x1 <= inside.x1 + 1, words
            assert box.y1 <= inside.y1 + 1, words


def test_bands_of_percentages_end_at_a_hundred(drawn):
    cells = cells_of(board(SEEDS))
    records = [
        record(
            p, curve={"round": [1, 3], "accuracy": [(0.0, 0.0, 30.0)[p.cell.seed], (90.0, 100.0, 100.0)[p.cell.seed]]}
        )
        for p in cells
    ]
    drawing = drawn(cells, records, Figure())
    assert (drawing.panels[0].lines[0].mean + drawing.panels[0].lines[0].std).max() > 100
    bands = []
    with patch("matplotlib.axes.Axes.fill", lambda _, x, y, **__: bands.append(y) or [Line2D([], [])]):
        inline(drawing)
    assert [(y.min(), y.max()) for y in bands] == [(0.0, 100.0)]


def test_few_lines_are_named_at_their_ends_and_many_in_a_legend(drawn):
    cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]}))
    two = drawn(cells, [record(p, 60.0) for p in cells], Figure())
    assert labels.direct(two, two.panels[0])
    half = replace(two.panels[0], lines=two.panels[0].lines[:1])
    assert not labels.direct(two, half), "a line that the panel lacks has no end there"
    assert not labels.direct(replace(two, labels=("a",) * 6), two.panels[0])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.2)), min_size=1, max_size=6))
def test_names_keep_their_order_and_cover_no_other(ends):
    ends = sorted(ends)
    wanted, sizes = [end for end, _ in ends], [size for _, size in ends]
    found = labels.spread_out(wanted, sizes)
    for (low, small), (high, large) in itertools.pairwise(zip(found, sizes, strict=True)):
        assert high - low >= (small + large) / 2 - 1e-9
    if all(b - a >= (s + t) / 2 for (a, s), (b, t) in itertools.pairwise(ends)):
        inside = all(s / 2 <= a <= 1 - s / 2 for a, s in ends)
        assert found == pytest.approx(wanted) or not inside, "where there is room nothing moves"
    if sum(sizes) < 1:
        assert found[0] - sizes[0] / 2 >= -1e-9, "none lies below the plot"
        assert found[-1] + sizes[-1] / 2 <= 1 + 1e-9, "none lies above it"


def test_a_legend_on_the_page_shows_what_the_plot_shows(drawn):
    cells = cells_of(board(SEEDS))[:1]
    points = drawn(cells, [record(cells[0], diagnostics=DIAGNOSTICS["sphere"])], Figure(kind="sphere"))
    assert [labels.swatch(points, i).count("<line") for i in range(2)] == [0, 0], "markers alone"
    assert labels.swatch(points, 0) != labels.swatch(points, 1)
    lines = drawn(cells, [record(cells[0])], Figure())
    assert "stroke-dasharray" in labels.swatch(lines, 1)
    assert "<line" in labels.swatch(lines, 0)


def test_the_swatches_of_bars_are_told_apart_by_colour_and_hatch_as_the_bars_are(drawn):
    cells = cells_of(board(SEEDS))[:1]
    bars = drawn(cells, [record(cells[0])], Figure(kind="bars", columns=("clients",)))
    assert len({labels.swatch(bars, number) for number in range(MOST_LINES)}) == MOST_LINES


def test_shades_have_a_scale_with_the_value_of_the_darkest(drawn):
    cells = cells_of(board(SEEDS))
    drawing = drawn(cells, [record(p, diagnostics=DIAGNOSTICS["shares"]) for p in cells], Figure(kind="shares"))
    assert drawing.panels[0].most == 5
    [svg] = inline(drawing)
    assert [f">{text}<" in svg for text in ("0", "5", "Images")] == [True] * 3


DIAGNOSTICS = {
    "penalty": {"penalties": {"feddecorr": {"0": [0.3, 0.2], "1": [0.4, 0.1]}}},
    "shares": {"shares": [[5, 0, 1], [2, 2, 2]]},
    "spaces": {"spaces": [[0.9, 0.1], [0.2, 0.8]]},
    "tsne": {"embedding": {"points": [[0.0, 1.0], [2.0, 3.0]], "classes": [5, 7], "clients": [2, 2]}},
    "sphere": {"embedding": {"points": [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], "classes": [0, 1], "clients": [None] * 2}},
}


@pytest.mark.parametrize("kind", DIAGNOSTICS)
def test_diagnostics_are_drawn_from_the_first_seed_as_file_and_on_the_page(drawn, kind):
    cells = cells_of(board(SEEDS))
    records = [record(p, diagnostics=DIAGNOSTICS[kind]) for p in cells]
    drawing = drawn(cells, records, Figure(kind=kind))
    assert drawing.problems == ()
    assert not drawing.panels[0].empty
    made = files(drawing)
    assert made == files(drawing)
    assert made["png"].startswith(b"\x89PNG")
    [svg] = inline(drawing)
    assert "first seed" in drawing.caption
    assert "style" not in svg


@pytest.mark.parametrize("kind", [*DIAGNOSTICS, "local_spectrum", "gap"])
def test_records_without_diagnostics_are_a_problem_that_says_what_to_set(drawn, kind):
    cells = cells_of(board(SEEDS))
    drawing = drawn(cells, [record(p) for p in cells], Figure(kind=kind))
    assert "set diagnostics." in drawing.problems[0]
    assert all(panel.empty for panel in drawing.panels)


def test_shares_have_a_column_per_client_a_row_per_class_and_the_counts_in_words(drawn):
    cells = cells_of(board(SEEDS))
    drawing = drawn(cells, [record(p, diagnostics=DIAGNOSTICS["shares"]) for p in cells], Figure(kind="shares"))
    np.testing.assert_allclose(drawing.panels[0].shades, [[1, 0.4], [0, 0.4], [0.2, 0.4]])
    words = description(drawing, drawing.panels[0])
    assert "At most 5 images of a class" in words
    assert "client 0: 6 images of 2 classes; client 1: 6 images of 3 classes" in words


def test_points_behind_the_sphere_are_told_from_those_in_front(drawn):
    cells = cells_of(board(SEEDS))[:1]
    [panel] = drawn(cells, [record(cells[0], diagnostics=DIAGNOSTICS["sphere"])], Figure(kind="sphere")).panels
    assert [points.label for points in panel.points] == ["class 0", "class 1"]
    assert [bool(points.far[0]) for points in panel.points] == [False, True]


def test_a_picture_of_one_row_refuses_two(drawn):
    cells = cells_of(board({"partition": "iid", "algorithm": ["fedavg", "fedprox"]}))
    records = [record(p, diagnostics=DIAGNOSTICS["spaces"]) for p in cells]
    with pytest.raises(UserError, match="shows one row per panel, got 2; name it in columns"):
        drawn(cells, records, Figure(kind="spaces"))
