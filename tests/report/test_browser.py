"""The pages in a real browser, from files, without a network."""

import csv
import io
import itertools
import json
import math
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from fedspan.benchmark.bibliography import papers
from fedspan.benchmark.names import of_method_label
from fedspan.benchmark.report import partitions, site
from fedspan.benchmark.report.headline import points, ratio
from fedspan.benchmark.report.overall import Comparisons, merged, verdict, with_names
from fedspan.benchmark.report.overview import Overview, carried
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.statistics import mean_of
from fedspan.benchmark.report.summary import Summary
from fedspan.benchmark.report.units import fixed
from fedspan.benchmark.spec.board import Figure, Scale, Table
from fedspan.benchmark.spec.plan import plan
from tests.helpers import PATIENCE
from tests.report.made import GRID, METHODS, board, cells_of, results_of, seeded, stopped
from tests.report.test_badges import verified
from tests.report.test_site import results_on, tuned_on

pytestmark = pytest.mark.browser

BROWSER, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    """A site with one board at two scales: six methods on two partitions, three seeds each, some of them repeated."""
    folder = tmp_path_factory.mktemp("browser")
    marked = [GRID | {"algorithm": ["fedavg"]}, GRID | {"algorithm": ["fedprox"], "addons": METHODS[:2]}]
    example = board(
        *marked,
        GRID | {"algorithm": ["fedprox"], "addons": METHODS[2:], "ablation": True},
        title="An <em>example</em>",
        tables=[Table(title="Accuracy"), Table(title="By add-ons", rows=("algorithm", "addons"))],
        figures=[Figure(kind="accuracy"), Figure(kind="spectrum")],
        scales={"smoke": Scale({"protocol.rounds": 2})},
    )
    cells = cells_of(example)
    records = [one for i, one in enumerate(seeded(cells)) if i not in (3, 4, 5)]
    records[-1] = stopped(cells[-1], "diverged", "round 2: the loss is not finite")
    small = plan(example.expand({"scale": ["smoke"]}))
    results = results_of(folder / "results", [*records, *seeded(small)[:24]])
    for cell in cells[6:11]:
        verified(results, cell, "differs" if cell == cells[10] else "identical")
    pages = folder / "pages"
    summaries = [write_report(example, grid, results, pages).summary for grid in (cells, small)]
    partitions.draw_partitions(cells[::18], pages / site.PARTITIONS, folder)
    for path, content in site.pages(pages, summaries, [("later", "A board without results")]).items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return pages


@pytest.fixture(scope="module")
def address(site_folder):
    return (site_folder / "example" / "index.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not BROWSER.exists() or not DRIVER.exists():
        pytest.skip(f"{BROWSER} and {DRIVER} are needed")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        yield driver
        driver.quit()


@pytest.fixture
def page(browser, address):
    """The page, fresh, in a desktop window."""
    return opened(browser, address, 1280, 900)


def opened(browser, address, width, height, scheme="light"):
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get("about:blank")  # from an address to another one of the same page nothing is loaded
    browser.get(address)
    return browser


def site_of(results, folder, browser, address="index.html"):
    """Write the pages over results of no board, and open one of them."""
    for path, content in site.pages(folder, [Summary("b", "B", "", "paper", "b/", {}, tuple(results), ())]).items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return opened(browser, f"{folder.as_uri()}/{address}", 1280, 900)


def all_of(page, selector):
    return page.find_elements("css selector", selector)


def one(page, selector):
    return page.find_element("css selector", selector)


def rows(page, table=1):
    """Return the labels of the visible rows in their order."""
    return [row.text for row in all_of(page, f"#table-{table} > .scroll tbody th") if row.is_displayed()]


def column(page, index, table=1):
    """Return the numbers of one column, None where there is none."""
    cells = all_of(page, f"#table-{table} > .scroll tbody tr > :nth-child({index + 1})")
    values = [cell.get_attribute("data-v") for cell in cells]
    return [None if value is None else float(value) for value in values]


def heads(page, table=1):
    return all_of(page, f"#table-{table} > .scroll thead th")


def test_nothing_is_asked_from_outside_and_nothing_is_wrong(browser, site_folder):
    pages = sorted(site_folder.glob("**/*.html"))
    assert len(pages) > 25
    runs = [path for path in pages if path.parent.name == "runs"]
    for path in [*(path for path in pages if path not in runs), runs[0]]:
        page = opened(browser, path.as_uri(), 1280, 900)
        page.execute_script("for (const b of document.querySelectorAll('button')) b.click()")
        page.execute_script("for (const d of document.querySelectorAll('details')) d.open = !d.open")
        sent = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
        asked = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
        assert {url.split("#")[0] for url in asked} - {path.as_uri(), "data:,"} == set()
        assert page.get_log("browser") == [], path


def test_every_link_of_the_site_leads_somewhere(browser, site_folder):
    checked, outside = set(), {paper.link for paper in papers().values()}
    for path in sorted(site_folder.glob("**/*.html")):
        page = opened(browser, path.as_uri(), 1280, 900) if path.parent.name != "runs" or not checked else None
        if page is None:
            continue
        links = page.execute_script("return [...document.querySelectorAll('a[href]')].map((a) => a.href)")
        for address in links:
            if address.startswith("https:"):
                assert address in outside, f"{path}: {address}"
                continue
            file, _, anchor = address.partition("#")
            target = Path(unquote(urlparse(file).path))
            assert target.is_file(), f"{path}: {address}"
            if anchor and "=" not in anchor:
                assert f'id="{anchor}"' in target.read_text(encoding="utf-8"), f"{path}: {address}"
            checked.add(address)
    assert len(checked) > 50


def test_the_policy_stops_what_is_not_the_pages_own(page):
    page.execute_script(
        "document.body.insertAdjacentHTML('beforeend', '<p id=styled style=\"color:red\">x</p>');"
        "const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s);"
    )
    assert page.execute_script("return window.foreign") is None
    assert len([entry for entry in page.get_log("browser") if "Content Security Policy" in entry["message"]]) == 2


def test_a_score_sorts_best_first_then_reversed_then_as_the_grid(page):
    original = column(page, 1)
    assert None in original
    best_first = sorted((v for v in original if v is not None), reverse=True)
    for order, expected in (("descending", best_first), ("ascending", best_first[::-1])):
        one(heads(page)[1], "button").click()
        assert heads(page)[1].get_attribute("aria-sort") == order
        assert column(page, 1) == [*expected, None], "what has no number stays last"
    one(heads(page)[1], "button").click()
    assert heads(page)[1].get_attribute("aria-sort") is None
    assert column(page, 1) == original


def test_sorting_works_by_keyboard_and_marks_one_column_only(page):
    from selenium.webdriver.common.keys import Keys

    one(heads(page)[1], "button").send_keys(Keys.ENTER)
    one(heads(page)[0], "button").send_keys(Keys.SPACE)
    assert rows(page) == sorted(rows(page))
    assert [head.get_attribute("aria-sort") for head in heads(page)[:3]] == ["ascending", None, None]


def test_a_row_keeps_its_numbers_when_sorted(page):
    before = dict(zip(rows(page), column(page, 2), strict=True))
    one(heads(page)[1], "button").click()
    assert dict(zip(rows(page), column(page, 2), strict=True)) == before


def test_rows_are_filtered_by_words_and_counted(page):
    search = one(page, "#table-1 input")
    search.send_keys("PAPER prox")
    assert rows(page) == ["FedProx + FedDecorr (paper form)"]
    assert one(page, "#table-1 output").text == "1 of 6 rows"
    assert "t1.words=PAPER+prox" in page.current_url
    assert len(rows(page, table=2)) == 6, "the other table has its own filter"
    search.send_keys("\ue00c")  # escape
    assert len(rows(page)) == 6


def test_rows_and_columns_are_chosen_by_axis(page):
    from selenium.webdriver.support.ui import Select

    selects = {label.text.split("\n")[0]: one(label, "select") for label in all_of(page, "#table-1 label:has(select)")}
    assert list(selects) == ["Algorithm", "Add-ons", "Partition"]
    Select(selects["Algorithm"]).select_by_visible_text("FedProx")
    Select(selects["Add-ons"]).select_by_visible_text("no add-ons")
    assert rows(page) == ["FedProx"]
    Select(selects["Partition"]).select_by_visible_text("IID")
    shown = [head.text for head in heads(page) if head.is_displayed()]
    assert shown == ["Method", "IID", "Time", "Compute", "Traffic", "Memory"]
    [row] = [row for row in all_of(page, "#table-1 > .scroll tbody tr") if row.is_displayed()]
    assert len([cell for cell in all_of(row, ":scope > *") if cell.is_displayed()]) == len(shown)


def test_the_address_of_a_board_holds_filters_words_and_order(browser, page, site_folder):
    from selenium.webdriver.support.ui import Select

    Select(one(page, "#table-1 label:has(select) select")).select_by_visible_text("FedProx")
    one(page, "#table-1 input").send_keys("decorr")
    one(heads(page)[1], "button").click()
    shown, address = rows(page), page.current_url
    assert 0 < len(shown) < 6
    page = opened(browser, address, 1280, 900)
    assert rows(page) == shown
    assert heads(page)[1].get_attribute("aria-sort") == "descending"
    page.execute_script("location.hash = ''")
    wait(page, lambda: len(rows(page)) == 6)
    assert heads(page)[1].get_attribute("aria-sort") is None


def follow_anchor(page):
    """Go to an anchor of the page, as its skip link does, and return after the page's scripts have noticed."""
    page.execute_async_script(
        "const done = arguments[0]; addEventListener('hashchange', () => setTimeout(done), { once: true });"
        "document.querySelector('a.skip').click()"
    )
    assert page.current_url.endswith("#content")


def test_a_link_within_a_board_leaves_words_choices_and_order(page):
    from selenium.webdriver.support.ui import Select

    Select(one(page, "#table-1 label:has(select) select")).select_by_visible_text("FedProx")
    one(page, "#table-1 input").send_keys("decorr")
    one(heads(page)[1], "button").click()
    shown = rows(page)
    assert 0 < len(shown) < 6
    follow_anchor(page)
    assert rows(page) == shown
    assert heads(page)[1].get_attribute("aria-sort") == "descending"
    one(page, "#table-1 input").send_keys(" paper")
    assert "t1.words=decorr+paper" in page.current_url
    assert "t1.sort=1.descending" in page.current_url, "the address has all choices again"


def test_a_number_leads_to_its_runs_by_keyboard_and_they_to_their_records(page):
    from selenium.webdriver.common.keys import Keys

    one(page, "#table-1 a.entry").send_keys(Keys.ENTER)
    assert "/runs/" in page.current_url
    links = all_of(page, "td a")
    assert len(links) == 3
    assert "fedspan run partition=dirichlet partition.alpha=0.05 algorithm=fedprox" in one(page, "body").text
    key = links[0].text
    links[0].click()
    assert json.loads(one(page, "pre").text)["key"] == key


def test_a_line_can_be_hidden_in_all_panels(page):
    button = one(page, "#figure-1 .legend button")
    lines = all_of(page, "#figure-1 .plot [data-line='0']")
    assert len(lines) == 4
    assert all(line.is_displayed() for line in lines)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(line.is_displayed() for line in lines)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_page_scrolls_sideways_but_tables_do(browser, site_folder, address, width):
    runs = next((site_folder / "runs").iterdir())
    shown = [site_folder / "index.html", site_folder / "compare.html", runs]
    shown += [next((site_folder / kind).iterdir()) for kind in ("methods", "datasets")]
    for path in [path.as_uri() for path in shown] + [address]:
        page = opened(browser, path, width, 740)
        assert page.execute_script("return document.documentElement.scrollWidth") <= width, path
    if width == 360:
        scroll = one(page, "#table-1 > .scroll")
        assert page.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", scroll)
        first = one(page, "#table-1 > .scroll tbody th")
        before = first.rect["x"]
        page.execute_script("arguments[0].scrollLeft = 200", scroll)
        assert first.rect["x"] == pytest.approx(before, abs=1), "the first column stays"
        assert first.rect["width"] < 0.5 * width


def test_a_ranking_of_three_tasks_needs_no_scrolling_on_a_desktop(browser, tmp_path):
    tasks = dict.fromkeys(("alpha 0.05", "alpha 0.5", "IID"), 60.0)
    methods = ("fedavg", "fedprox", "moon + feddecorr (released form)")
    site_of(results_on(dict.fromkeys(methods, tasks), noise=12.0), tmp_path, browser)
    page = opened(browser, (tmp_path / "index.html").as_uri(), 1440, 900)
    shown = [heading.is_displayed() for heading in all_of(page, "#ranking thead th")]
    assert shown == [True] * 10, "each task has a column"
    hidden = "const frame = document.querySelector('#ranking .scroll'); return frame.scrollWidth - frame.clientWidth"
    assert page.execute_script(hidden) == 0


def test_figures_are_legible_on_a_phone(browser, address):
    page = opened(browser, address, 360, 740)
    for plot in all_of(page, ".panels .plot"):
        assert 300 <= plot.rect["width"] <= 360
        assert one(plot, "text").rect["height"] >= 10
    for plot in all_of(page, ".drawn .plot"):
        assert one(plot, "text").rect["height"] >= 10


def luminance(colour):
    return sum(map(int, colour[colour.index("(") + 1 : -1].split(",")[:3]))


def test_dark_and_light_follow_the_reader(browser, site_folder, address):
    others = [site_folder / "index.html", site_folder / "compare.html", next((site_folder / "runs").iterdir())]
    for path in [path.as_uri() for path in others] + [address]:
        for scheme, dark in (("dark", True), ("light", False)):
            page = opened(browser, path, 1280, 900, scheme)
            body = one(page, "body")
            ink, paper = (luminance(body.value_of_css_property(name)) for name in ("color", "background-color"))
            assert (ink > paper) == dark
            if path == address:
                axis = one(page, ".plot text")
                assert (luminance(axis.value_of_css_property("fill")) > paper) == dark


def test_without_script_everything_is_there(browser, address, site_folder):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = opened(browser, address, 1280, 900)
        assert len(rows(page)) == 6
        assert not one(page, "#table-1 .tools").is_displayed()
        one(page, "#table-1 a.entry").click()
        assert "/runs/" in page.current_url
        page = opened(browser, (site_folder / "index.html").as_uri(), 1280, 900)
        assert len(all_of(page, "#ranking tbody tr")) == 5
        assert not one(page, "#filters").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.fixture
def overview(browser, site_folder):
    return opened(browser, (site_folder / "index.html").as_uri(), 1280, 900)


@pytest.fixture
def compare(browser, site_folder):
    return opened(browser, (site_folder / "compare.html").as_uri(), 1280, 900)


def choose(page, name, value):
    from selenium.webdriver.support.ui import Select

    Select(one(page, f"select[name={name}]")).select_by_visible_text(value)


def texts(page, selector):
    return [found.text for found in all_of(page, selector)]


RANKED = (
    "[...document.querySelectorAll('#ranking tbody tr')]"
    ".map((row) => [...row.cells].map((cell) => cell.textContent.trim().replace(/\\s+/g, ' ')))"
)


def ranked(page):
    return page.execute_script(f"return {RANKED}")


def wait(page, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, PATIENCE).until(lambda _: condition())


def first_screen(page):
    return [one(page, f"#{name}").text for name in ("headline", "more", "about")] + ranked(page)


def test_the_script_ranks_as_the_page_was_made(browser, overview, site_folder):
    with_script = first_screen(overview)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = opened(browser, (site_folder / "index.html").as_uri(), 1280, 900)
        without = [one(page, f"#{name}").text for name in ("headline", "more", "about")]
        cells = [[cell.get_property("textContent") for cell in all_of(row, "th, td")] for row in
                 all_of(page, "#ranking tbody tr")]  # fmt: skip
        assert without + [[" ".join(cell.split()) for cell in row] for row in cells] == with_script
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(with_script) == 3 + 5, "without ablations"


def test_filters_choose_tasks_and_rank_anew(overview):
    assert texts(overview, "select[name=scale] option") == ["own", "smoke"], "scales are never mixed"
    assert len(all_of(overview, "#results tbody tr")) == 9
    choose(overview, "partition", "IID")
    assert "1 task" in one(overview, "#about").text
    assert len(all_of(overview, "#results tbody tr")) == len(ranked(overview)) == 5
    assert overview.current_url.endswith("#partition=iid"), "the choice can be shared"
    choose(overview, "ablations", "ranked too")
    assert len(all_of(overview, "#results tbody tr")) == len(ranked(overview)) == 6
    choose(overview, "ablations", "left out")
    choose(overview, "partition", "all")
    choose(overview, "scale", "smoke")
    assert len(all_of(overview, "#results tbody tr")) == 8
    assert all("2 rounds" in text for text in texts(overview, "#results td.task"))


def gain_text(line, view):
    if line.gain:
        middle, low, high = map(points, line.gain)
        return f"{'' if line.gain[0] < 0 else '+'}{middle} ({low} to {high})"
    return f"withheld: {line.why}" if line.why else "reference" if line.method == view.reference else ""


def expected_rows(view):
    def score(result):
        if result is None:
            return "—"
        spread = "" if result.std is None else f" ± {points(carried(result.std))}"
        lost = f" {result.diverged} diverged" if result.diverged else ""
        return f"{points(carried(result.mean))}{spread}{lost}" if result.seeds else "diverged"

    def known(value, unit="", write=points):
        return write(value) + unit if math.isfinite(value) else "—"

    def place(line):
        return f"{line.place_text}, possible places {line.range}" if line.range else line.place_text

    def mean(line):
        fewer = (
            f"{line.runs} of {view.most_runs} runs" if math.isfinite(line.mean) and line.runs < view.most_runs else ""
        )
        return known(line.mean) + fewer

    return [
        [place(line), line.name + line.note, gain_text(line, view), *map(score, line.scores),
         mean(line), *(known(cost, "×", ratio) for cost in line.costs), line.repeated]
        for line in view.lines
    ]  # fmt: skip


# choices, rows, sentences and headings in one question: there are hundreds of settings
SHOWN = f"""
    const text = (node) => node.checkVisibility() ? node.innerText.trim() : "";
    return [
        Object.fromEntries(arguments[0].map((name) => [name, document.querySelector(`[name=${{name}}]`).value])),
        {RANKED},
        ["headline", "more", "about"].map((name) => text(document.getElementById(name))),
        [...document.querySelectorAll("#ranking thead th")].map(text),
    ];
"""


@pytest.mark.slow
def test_every_filter_shows_what_python_makes_of_the_comparisons(overview, site_folder):
    """Each setting of all filters at once; one that chooses no task takes the others back."""
    results = merged(site.summaries_in(site_folder))
    first, seen = Overview(results, Comparisons(results)), set()
    names = ["dataset", "partition", "skew", "clients", "tested", "model", "scale", "ablations"]
    options = {
        name: overview.execute_script(
            "return [...document.querySelector(`[name=${arguments[0]}]`).options].map((o) => o.value)", name
        )
        for name in names
    }
    for values in itertools.product(*options.values()):
        chosen = dict(zip(names, values, strict=True))
        overview.execute_script(
            "for (const [name, value] of Object.entries(arguments[0]))"
            " document.querySelector(`[name=${name}]`).value = value;"
            "document.querySelector('[name=scale]').dispatchEvent(new Event('change'));",
            chosen,
        )
        chosen, rows, shown, headings = overview.execute_script(SHOWN, names)
        ablations = bool(chosen.pop("ablations"))
        tasks = frozenset(
            r.task for r in results if all(v in ("all", str(getattr(r.task, field))) for field, v in chosen.items())
        )
        assert tasks
        view = first.view(tasks, ablations)
        assert rows == expected_rows(view), chosen
        assert shown == [view.headline, view.more, view.about]
        assert headings[3 : 3 + len(view.headings)] == list(view.headings)
        seen.add(json.dumps(expected_rows(view)))
    assert len(seen) > 8


@pytest.mark.parametrize("tuned", [True, False])
def test_where_no_result_is_an_ablation_a_ranking_with_ablations_is_that_without(browser, tmp_path, tuned):
    names = {"fedavg": {"a": 50.0}, "fedprox": {"a": 60.0}, "moon": {"a": 70.0}}
    results = tuned_on(names | {f"{name}, tuned": scores for name, scores in names.items()})
    results = [one if one.tuned == tuned else replace(one, ablation=one.family == "moon") for one in results]
    page = site_of(results, tmp_path, browser, f"index.html#tuned={'yes' if tuned else 'no'}")
    without = first_screen(page)
    assert len(without) == 3 + 3
    choose(page, "ablations", "ranked too")
    assert first_screen(page) == without


def test_a_shared_address_restores_the_choice(browser, site_folder):
    page = opened(browser, (site_folder / "index.html").as_uri() + "#scale=smoke&skew=0.05", 1280, 900)
    assert all("alpha 0.05" in text for text in texts(page, "#results td.task"))
    assert one(page, "#filters output").text == "5 of 6 methods, 5 of 19 results"
    label = one(page, "#filters label:has([name=skew])").get_property("textContent")
    assert label.startswith("Alpha"), "the filter is called as the setting"


def test_a_dataset_chosen_on_the_page_or_in_an_address_is_shown_whatever_the_page_opens_with(browser, tmp_path):
    """Its tasks may be of another scale, or tested on other images."""
    shared = results_on({"fedavg": {"a": 50.0}, "fedprox": {"a": 60.0}})
    [other] = results_on({"moon": {"a": 70.0}})
    other = replace(other, task=replace(other.task, dataset="mnist", tested="own", scale="smoke"))
    page = site_of([*shared, other], tmp_path, browser)
    assert sorted(texts(page, "#ranking tbody th a")) == ["FedAvg", "FedProx"]
    choose(page, "dataset", "MNIST")
    assert texts(page, "#ranking tbody th a") == ["MOON"]
    page = opened(browser, (tmp_path / "index.html").as_uri() + "#dataset=mnist", 1280, 900)
    assert texts(page, "#ranking tbody th a") == ["MOON"]


def test_sorting_a_long_list_sorts_what_is_not_shown_too_and_more_of_it_takes_the_focus(browser, tmp_path):
    values = {f"algorithm{i:03}": {"a": float(i % 97)} for i in range(130)}
    page = site_of(results_on(values | {"fedavg": {"a": 99.0}}), tmp_path, browser)
    shown = "return [...document.querySelectorAll('#results tbody tr')].filter((row) => row.offsetHeight).length"
    assert page.execute_script(shown) == 100
    all_of(page, "#results thead button")[2].click()
    best = [float(text.split()[0]) for text in texts(page, "#results tbody td.score")[:100]]
    assert best[0] == pytest.approx(99.0, abs=0.05)
    assert best == sorted(best, reverse=True)
    one(page, "#show").click()
    assert page.execute_script(shown) == 131
    assert not one(page, "#show").is_displayed()
    assert page.execute_script(
        "return document.activeElement === document.querySelectorAll('#results tbody a.entry')[100]"
    )


def pressed(page):
    return texts(page, "#ranking [name=tuned][aria-pressed=true]")


def test_the_page_opens_with_tuned_methods_and_shows_the_others_where_nothing_is_tuned(browser, tmp_path):
    names = {"fedavg": {"a": 50.0}, "fedprox": {"a": 60.0}}
    results = tuned_on(names | {f"{name}, tuned": scores for name, scores in names.items()})
    [other] = results_on({"moon": {"a": 70.0}})
    other = replace(other, task=replace(other.task, dataset="mnist"))
    page = site_of([*results, other], tmp_path, browser)
    address = (tmp_path / "index.html").as_uri()
    written = (tmp_path / "index.html").read_text()
    assert re.findall(r'name="tuned" value="\w+" aria-pressed="(\w+)"', written) == ["false", "true"]
    assert pressed(page) == ["tuned"]
    choose(page, "dataset", "MNIST")
    assert (pressed(page), texts(page, "#ranking tbody th a")) == (["default"], ["MOON"])
    choose(page, "dataset", "Digits")
    assert pressed(page) == ["tuned"]
    assert "tuned=" not in page.current_url
    one(page, "#ranking [name=tuned][value=no]").click()
    assert pressed(page) == ["default"]
    assert page.current_url.endswith("#tuned=no")
    page.refresh()
    assert pressed(page) == ["default"]
    assert pressed(opened(browser, address + "#dataset=mnist&tuned=yes", 1280, 900)) == ["default"]


def test_the_switch_finds_tuned_methods_at_another_scale(browser, tmp_path):
    results = tuned_on({"fedavg": {"a": 50.0}, "fedprox": {"a": 60.0}, "fedavg, tuned": {"b": 55.0}})
    results[2] = replace(results[2], task=replace(results[2].task, scale="smoke"))
    page = site_of(results, tmp_path, browser)
    assert pressed(page) == ["default"]
    one(page, "#ranking [name=tuned][value=yes]").click()
    assert (pressed(page), texts(page, "#ranking tbody th a")) == (["tuned"], ["FedAvg"])


@pytest.mark.parametrize(
    "elsewhere", [{"tuned": True}, {"ablation": True}, {"scale": "own"}, {"dataset": "mnist"}], ids=str
)
def test_a_method_that_the_filters_hide_is_named_and_shown_on_request(browser, tmp_path, elsewhere):
    here = results_on({"fedavg": {"a": 50.0, "b": 50.0}, "fedprox": {"a": 60.0}})
    [hidden] = results_on({"moon": {"a": 70.0}})
    where = {name: value for name, value in elsewhere.items() if name in ("scale", "dataset")}
    hidden = replace(
        hidden, task=replace(hidden.task, **where), **{k: v for k, v in elsewhere.items() if k not in where}
    )
    page = site_of([*here, hidden], tmp_path, browser)
    search, button = one(page, "#filters input"), one(page, "#wider")
    search.send_keys("prox")
    assert not button.is_displayed()
    search.clear()
    search.send_keys("mo")
    assert one(page, "#filters output").text == "No result with these filters. Elsewhere: MOON"
    button.click()
    assert "MOON" in [cell.text for cell in all_of(page, "#ranking tbody th a") if cell.is_displayed()]
    assert not button.is_displayed()
    search.clear()
    search.send_keys("nothing has this name")
    assert (one(page, "#filters output").text[:14], button.is_displayed()) == ("0 of 3 methods", False)


def test_the_ranking_downloads_as_numbers(browser, tmp_path):
    results = results_on({"fedavg": {"a": 50.0, "b": 40.0}, "fedprox": {"a": 60.0, "b": 45.0}, "moon": {"a": 20.0}})
    page = site_of(results, tmp_path, browser)
    one(page, "#filters input").send_keys("fed")
    page.execute_script("URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; }")
    one(page, "#csv").click()
    saved = page.execute_async_script("window.saved.then(arguments[arguments.length - 1])")
    lines = list(csv.DictReader(io.StringIO(saved)))
    assert [line["method"] for line in lines] == ["FedProx", "FedAvg"]
    prox, average = lines
    [gain, low, high] = (float(prox[name]) for name in ("gain", "gain low", "gain high"))
    assert low <= gain <= high
    assert gain == pytest.approx(7.5, abs=0.1)
    assert (prox["runs"], average["gain"], average["withheld"]) == ("3", "", "")
    means = {name: float(average[name]) for name in average if name.endswith(": mean")}
    assert sorted(means.values()) == pytest.approx([40, 50], abs=0.1)
    assert all(average[name.replace("mean", "n")] == "3" for name in means)
    assert all(average[name.replace("mean", "diverged")] == "0" for name in means)


def test_a_mean_over_fewer_runs_than_that_of_others_says_so(browser, tmp_path):
    results = results_on({"fedavg": {"a": 50.0}, "fedprox": {"a": 60.0}})
    results[1] = replace(results[1], seeds={"0": 60.0})
    page = site_of(results, tmp_path, browser)
    means = {row[1]: row[-4] for row in ranked(page)}
    assert means == {"FedProx": "60.01 of 3 runs", "FedAvg": "50.0"}


def test_a_link_from_a_dataset_shows_all_its_tasks_of_that_variant_and_scale(browser, tmp_path):
    [plain] = results_on({"fedavg": {"a": 50.0}})
    others = [{"partition": "b", "tested": "own"}, {"partition": "c", "dataset": "digits(limit=500)"}, {"scale": "own"}]
    results = [plain, *(replace(plain, task=replace(plain.task, **other)) for other in others)]
    site_of(results, tmp_path, browser)
    page = opened(browser, (tmp_path / "datasets" / "digits.html").as_uri(), 1280, 900)
    links = {link.text: link.get_attribute("href") for link in all_of(page, "#content a[href*='tested=all']")}
    shown = {text: len(all_of(opened(browser, link, 1280, 900), "#results tbody tr")) for text, link in links.items()}
    assert shown == {"Digits, scale paper": 2, "Digits (500 images), scale paper": 1, "Digits, scale own": 1}


def test_texts_are_sorted_by_the_numbers_in_them(browser, tmp_path):
    alphas = ["0.01", "0.05", "0.1", "0.3", "0.5", "1.0", "10.0"]
    [first] = results_on({"fedavg": {"a": 50.0}})
    results = tuple(
        replace(first, task=replace(first.task, partition=f"dirichlet(alpha={alpha})", skew=float(alpha)))
        for alpha in sorted(alphas, key=lambda alpha: alpha[::-1])
    )
    page = site_of(results, tmp_path, browser)
    said = [f"alpha {float(alpha):g}" for alpha in alphas]
    assert texts(page, "select[name=partition] option") == ["all", *said]
    page = opened(browser, (tmp_path / "methods" / "fedavg.html").as_uri(), 1280, 900)
    one(all_of(page, "#content .table thead th")[1], "button").click()
    assert [text.split(", ")[2] for text in texts(page, "#content .table td.task")] == said
    rates = [
        "CIFAR-10 (900 images)",
        "CIFAR-10 (5,000 images)",
        "CIFAR-100",
        "lr 1e-05",
        "lr 0.0001",
        "lr 0.001",
        "lr 0.1",
    ]
    assert page.execute_script("return arguments[0].sort(inOrder)", rates[::-1]) == rates


def test_words_order_and_filters_of_the_ranking_are_in_the_address_and_follow_it(browser, overview):
    choose(overview, "partition", "IID")
    one(overview, "#filters input").send_keys("decorr")
    one(all_of(overview, "#ranking thead th")[1], "button").click()
    shown = first_screen(overview)
    address = overview.current_url
    again = opened(browser, address, 1280, 900)
    assert first_screen(again) == shown
    assert all_of(again, "#ranking thead th")[1].get_attribute("aria-sort") == "ascending"
    again.execute_script("location.hash = 'scale=smoke'")
    wait(again, lambda: one(again, "select[name=scale]").get_property("value") == "smoke")
    assert one(again, "#filters input").get_property("value") == ""
    assert one(again, "select[name=partition]").get_property("value") == "all"


def test_the_overview_sorts_and_filters_by_words(overview):
    before = [row[1] for row in ranked(overview)]
    one(all_of(overview, "#ranking thead th")[1], "button").click()
    assert [row[1] for row in ranked(overview)] == sorted(before)
    choose(overview, "ablations", "ranked too")
    one(overview, "#filters input").send_keys("PROX paper")
    shown = [row for row in all_of(overview, "#ranking tbody tr") if row.is_displayed()]
    assert [one(row, "th").text for row in shown] == ["FedProx + FedDecorr (paper form)"]


def test_a_board_without_results_is_named_and_folded_away(overview):
    folded = one(overview, "#boards details")
    assert "A board without results" in folded.get_property("textContent")
    assert not one(folded, "li").is_displayed()


def test_a_phone_shows_place_name_gain_and_one_score_without_scrolling_sideways(browser, site_folder):
    page = opened(browser, (site_folder / "index.html").as_uri(), 400, 860)
    heading = [cell.text.split(" ")[0] for cell in all_of(page, "#ranking thead th") if cell.is_displayed()]
    assert heading == ["Place", "Method", "Gain", "Mean"]
    table = one(page, "#ranking table").rect
    assert table["x"] + table["width"] <= 400
    row = one(page, "#ranking tbody tr").rect
    assert row["y"] + row["height"] < 860, "who leads can be read without scrolling"


def test_a_phone_shows_method_task_and_accuracy_of_each_result_without_scrolling_sideways(browser, site_folder):
    for address in ("index.html", "compare.html"):
        page = opened(browser, (site_folder / address).as_uri(), 400, 860)
        cells = all_of(page, "tbody tr:has(.task) td.value:not(td.value ~ td.value)")
        edges = [cell.rect["x"] + cell.rect["width"] for cell in cells]
        assert edges
        assert max(edges) <= 400, address


def test_ratios_of_costs_are_written_alike_by_the_page_and_its_script(compare):
    values = [0.0, 0.00025, 0.0096, 0.0163, 0.049, 0.05, 0.95, 2.25, 12.04]
    said = compare.execute_script("return arguments[0].map((value) => ratioText(value, 1))", values)
    assert said == [f"{ratio(value)}×" for value in values]


def test_scores_and_their_means_are_rounded_alike_by_the_page_and_its_script(compare):
    values = [62.125, 0.125, 1.005, 2.675, 60.0, 0.0, 99.995, -0.125, -0.001]
    said = compare.execute_script("return arguments[0].map((value) => written(value, 2))", values)
    assert said == [fixed(value).replace("-", "−") for value in values]
    listed = [51.65, 94.6, 56.7]
    assert (
        compare.execute_script("return written(mean(arguments[0]), 1)", listed) == fixed(mean_of(listed), 1) == "67.7"
    )


def test_the_comparison_opens_with_the_first_of_the_leaderboard_and_its_reference(compare, site_folder):
    results = merged(site.summaries_in(site_folder))
    overview = Overview(results, Comparisons(results))
    view = overview.view(overview.opening)
    shown = texts(compare, "#compare thead th")[1:3]
    assert shown == [of_method_label(view.lines[0].method), of_method_label(view.reference)]
    choose(compare, "partition", "IID")
    assert one(compare, "#filters output").text.startswith("1 common task:")


def test_times_are_compared_where_one_kind_of_machine_took_both(compare):
    choose(compare, "a", "FedProx + FedDecorr (released form)")
    choose(compare, "b", "FedProx")
    times = texts(compare, "#compare tbody td:nth-child(5)")
    assert all(time.endswith("×") for time in times)
    compare.execute_script(
        "site.results.forEach((one, i) => { one.machine = i; }); arguments[0].click()", one(compare, "#swap")
    )
    assert set(texts(compare, "#compare tbody td:nth-child(5)")) == {"—"}
    assert "—" not in texts(compare, "#compare tbody td:nth-child(6)"), "counted costs compare"
    compare.refresh()


def test_a_diverged_run_decides_a_comparison_where_the_other_method_ran_its_seed(compare):
    choose(compare, "a", "FedProx + FedDecorr (released form)")
    choose(compare, "b", "FedProx")
    run = """
        const [slug, score] = arguments;
        for (const one of site.results.filter((one) => one.method.name === slug)) one.scores[9] = score;
        document.querySelector("#swap").click(); document.querySelector("#swap").click();
    """
    gaps = texts(compare, "#compare tbody td:nth-child(4)")
    compare.execute_script(run, "FedProx", None)
    assert texts(compare, "#compare tbody td:nth-child(4)") == gaps
    compare.execute_script(run, "FedProx + FedDecorr (released form)", 1.0)
    assert set(texts(compare, "#compare tbody td:nth-child(4)")) == {"—"}
    assert one(compare, "#filters output").text == "2 common tasks: 2 higher, 0 lower"
    compare.refresh()


def test_two_methods_are_compared_task_by_task(compare):
    choose(compare, "a", "FedProx + FedDecorr (released form)")
    choose(compare, "b", "FedProx")
    tasks = texts(compare, "#compare tbody th")
    assert len(tasks) == 2
    gaps = [float(cell.get_attribute("data-v")) for cell in all_of(compare, "#compare tbody td:nth-child(4)")]
    means = [
        [float(c.get_attribute("data-v")) for c in all_of(row, "td")[:2]]
        for row in all_of(compare, "#compare tbody tr")
    ]
    assert gaps == pytest.approx([a - b for a, b in means])
    assert "2 common tasks: 2 higher, 0 lower" in one(compare, "#filters output").text
    there = one(compare, ".verdict").text
    one(compare, "#swap").click()
    assert "0 higher, 2 lower" in one(compare, "#filters output").text
    assert [float(c.get_attribute("data-v")) for c in all_of(compare, "#compare tbody td:nth-child(4)")] == [
        -g for g in gaps
    ]
    assert one(compare, ".verdict").text == there, "who is better does not depend on who is named first"
    choose(compare, "partition", "IID")
    assert len(all_of(compare, "#compare tbody th")) == 1


def test_a_method_whose_run_diverged_is_behind_and_no_difference_is_made_of_the_rest(compare):
    choose(compare, "a", "FedProx + FedDecorr (paper form)")
    choose(compare, "b", "FedProx")
    rows = {one(row, "th").text: texts(row, "td") for row in all_of(compare, "#compare tbody tr")}
    [iid] = [cells for task, cells in rows.items() if "IID" in task]
    assert "1 diverged" in iid[0]
    assert iid[2] == "—"
    assert sum(cells[2] == "—" for cells in rows.values()) == 1
    assert "2 common tasks: 1 higher, 1 lower" in one(compare, "#filters output").text
    assert one(compare, ".verdict").text == (
        "FedProx is ahead: 1 run diverged on the tasks that both have, none of FedProx. No interval is given."
    )


def test_the_verdict_is_the_one_of_the_statistics_whoever_is_named_first(compare, site_folder):
    comparisons = Comparisons(merged(site.summaries_in(site_folder)))
    choose(compare, "scale", "own")
    said = set()
    for first, second in itertools.permutations(comparisons.methods, 2):
        choose(compare, "a", of_method_label(first))
        choose(compare, "b", of_method_label(second))
        tasks = frozenset(task for task in comparisons.results[first] if task.scale == "own")
        one_of, other = sorted((first, second))
        gap = comparisons.gap(one_of, other, tasks)
        expected = with_names(verdict(gap), of_method_label(one_of), of_method_label(other))
        assert one(compare, ".verdict").text == expected
        said.add(expected.partition(" is ")[0])
    assert len(said) > 1


def test_a_difference_is_that_of_runs_of_one_seed(browser, tmp_path):
    here, there, apart = results_on({name: {"a": 50.0} for name in ("fedavg", "fedprox", "moon")})
    results = (
        replace(here, seeds={"0": 50.0, "1": 60.0, "2": 70.0}),
        replace(there, seeds={"1": 61.0, "2": 73.0, "3": 10.0}),
        replace(apart, seeds={"7": 90.0, "8": 90.0, "9": 90.0}),
    )
    page = site_of(results, tmp_path, browser, "compare.html")
    choose(page, "a", "FedProx")
    choose(page, "b", "FedAvg")
    assert one(page, "#compare tbody td:nth-child(4)").text == "+2.00"
    choose(page, "a", "MOON")
    assert one(page, "#compare tbody td:nth-child(4)").text == "—"
    assert one(page, ".verdict").text == "MOON and FedAvg have no seed in common at scale paper."
    assert one(page, "#filters output").text == "1 common task: 0 higher, 0 lower"


def test_a_comparison_can_be_shared(compare, browser):
    choose(compare, "a", "FedProx")
    address = compare.current_url
    page = opened(browser, address, 1280, 900)
    first = "return document.querySelector('[name=a]').selectedOptions[0].text"
    assert page.execute_script(first) == "FedProx"
    page.execute_script("location.hash = location.hash.replace('a=fedprox', 'a=fedavg')")
    wait(page, lambda: page.execute_script(first) == "FedAvg")
    assert page.title.startswith("FedAvg against")


def test_a_code_that_no_method_has_is_named_instead_of_replaced_silently(compare, browser, site_folder):
    known = one(compare, ".verdict").text
    page = opened(browser, f"{(site_folder / 'compare.html').as_uri()}#a=fedfoo&b=fedprox", 1280, 900)
    assert one(page, ".verdict").text.startswith("No method here has the code fedfoo, which this address names. ")
    choose(page, "b", "FedProx")
    page.execute_script("location.hash = ''")
    wait(page, lambda: one(page, ".verdict").text == known)


def test_two_methods_without_a_common_task_at_a_scale_are_told_where_they_have_one(browser, tmp_path):
    paired = results_on({"fedavg": {"a": 50.0}, "fedprox": {"a": 60.0}})
    [other] = results_on({"moon": {"a": 70.0}})
    alone = replace(other, task=replace(other.task, scale="smoke"))
    page = site_of([*paired, alone], tmp_path, browser, "compare.html#a=fedavg&b=fedprox&scale=smoke")
    sentence = "FedAvg and FedProx have no task in common at scale smoke. They have at scale paper."
    assert one(page, ".verdict").text == sentence


def test_a_link_within_the_comparison_leaves_both_methods_and_the_order(compare):
    choose(compare, "a", "FedProx")
    choose(compare, "b", "FedAvg")
    one(all_of(compare, "#compare thead th")[3], "button").click()
    shown = texts(compare, "#compare tbody th")
    follow_anchor(compare)
    assert texts(compare, "#compare thead th")[1:3] == ["FedProx", "FedAvg"]
    one(compare, "#swap").click()
    assert texts(compare, "#compare thead th")[1:3] == ["FedAvg", "FedProx"]
    assert all_of(compare, "#compare thead th")[3].get_attribute("aria-sort") == "descending"
    assert len(shown) == 2


def test_every_page_has_a_title_one_heading_and_named_controls(browser, site_folder):
    paths = [site_folder / "index.html", site_folder / "compare.html", site_folder / "example" / "index.html"]
    paths += [next((site_folder / kind).iterdir()) for kind in ("methods", "datasets", "runs")]
    for path in paths:
        page = opened(browser, path.as_uri(), 1280, 900)
        assert page.title.endswith("FedSpan")
        assert len(all_of(page, "h1")) == 1
        for control in all_of(page, "input, select, button, a[href], [tabindex='0']"):
            if control.is_displayed():
                assert control.accessible_name, f"{path}: {control.get_attribute('outerHTML')[:200]}"


@pytest.mark.slow
def test_axe_finds_nothing_serious(browser, site_folder):
    """`nox -s slow` brings axe-core; elsewhere FEDSPAN_AXE names its file."""
    script = Path(os.environ.get("FEDSPAN_AXE", ""))
    if not script.is_file():
        pytest.skip("FEDSPAN_AXE does not name axe-core's axe.min.js")
    paths = [site_folder / "index.html", site_folder / "compare.html", site_folder / "example" / "index.html"]
    paths += [next((site_folder / kind).iterdir()) for kind in ("methods", "datasets", "runs")]
    for path, (width, scheme) in itertools.product(paths, [(1440, "light"), (1440, "dark"), (400, "light")]):
        page = opened(browser, path.as_uri(), width, 900, scheme)
        page.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
        page.execute_script(script.read_text(encoding="utf-8"))
        found = page.execute_async_script(
            "const done = arguments[0];"
            "axe.run().then((r) => done(r.violations.map((v) => [v.impact, v.id, v.nodes[0].html])))"
        )
        assert [one for one in found if one[0] in ("serious", "critical")] == [], (path, width, scheme)


def test_print_leaves_out_what_paper_cannot_do(page):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not one(page, "#table-1 .tools").is_displayed()
        assert not one(page, "nav").is_displayed()
        assert one(page, "#table-1 > .scroll").value_of_css_property("overflow") == "visible"
        # chromium repeats a heading on the next page unless it is a box of its own
        assert {head.value_of_css_property("display") for head in all_of(page, "#table-1 thead button")} == {"contents"}
        assert page.execute_cdp_cmd("Page.printToPDF", {})["data"]
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
