"""The page in a real browser, from a file, without a network."""

import json
import tempfile
from pathlib import Path

import pytest

from benchmark.board import Figure, Table
from benchmark.report import build
from tests.report.made import board, cells_of, results_of, seeded, stopped

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
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    example = board(
        title="An <em>example</em>",
        tables=[Table(title="Accuracy"), Table(title="By add-ons", rows=("algorithm", "addons"))],
        figures=[Figure(kind="accuracy"), Figure(kind="spectrum")],
    )
    cells = cells_of(example)
    records = [one for i, one in enumerate(seeded(cells)) if i not in (3, 4, 5)]
    records[-1] = stopped(cells[-1], "diverged", "round 2: the loss is not finite")
    report = build(example, cells, results_of(folder / "results", records), folder / "pages")
    return next(path for path in report.written if path.name == "index.html").as_uri()


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
    browser.get(address)
    return browser


def all_of(page, selector):
    return page.find_elements("css selector", selector)


def one(page, selector):
    return page.find_element("css selector", selector)


def rows(page, table=1):
    """Return the labels of the visible rows in their order."""
    return [row.text for row in all_of(page, f"#table-{table} tbody th") if row.is_displayed()]


def column(page, index, table=1):
    """Return the numbers of one column, None where there is none."""
    cells = all_of(page, f"#table-{table} tbody tr > :nth-child({index + 1})")
    values = [cell.get_attribute("data-v") for cell in cells]
    return [None if value is None else float(value) for value in values]


def heads(page, table=1):
    return all_of(page, f"#table-{table} thead th")


def test_nothing_is_asked_from_outside_and_nothing_is_wrong(page, address):
    page.execute_script("for (const b of document.querySelectorAll('button')) b.click()")
    sent = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
    assert asked - {address, "data:,"} == set()
    assert page.get_log("browser") == []


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
    assert rows(page) == ["fedprox + feddecorr(form=paper)"]
    assert one(page, "#table-1 output").text == "1 of 6 rows"
    assert len(rows(page, table=2)) == 6, "the other table has its own filter"
    search.send_keys("\ue00c")  # escape
    assert len(rows(page)) == 6


def test_rows_and_columns_are_chosen_by_axis(page):
    from selenium.webdriver.support.ui import Select

    selects = {label.text.split("\n")[0]: one(label, "select") for label in all_of(page, "#table-1 label:has(select)")}
    assert list(selects) == ["Algorithm", "Add-ons", "Partition"]
    Select(selects["Algorithm"]).select_by_visible_text("fedprox")
    Select(selects["Add-ons"]).select_by_visible_text("none")
    assert rows(page) == ["fedprox"]
    Select(selects["Partition"]).select_by_visible_text("iid")
    shown = [head.text for head in heads(page) if head.is_displayed()]
    assert shown == ["Method", "iid", "Time", "Compute", "Traffic", "Memory"]
    assert len([cell for cell in all_of(page, "#table-1 tbody tr:nth-child(4) > *") if cell.is_displayed()]) == len(
        shown
    )


def test_a_cell_opens_its_keys_and_commands_and_closes_by_escape(page):
    from selenium.webdriver.common.keys import Keys

    entry = one(page, "#table-1 .entry")
    details = one(page, f"#{entry.get_attribute('popovertarget')}")
    assert not details.is_displayed()
    entry.send_keys(Keys.ENTER)
    assert details.is_displayed()
    assert len(all_of(details, ".key")) == 3
    assert "fedspan run seed=0" in details.text
    one(page, "body").send_keys(Keys.ESCAPE)
    assert not details.is_displayed()


def test_a_line_can_be_hidden_in_all_panels(page):
    button = one(page, "#figure-1 .legend button")
    lines = all_of(page, "#figure-1 .plot [data-line='0']")
    assert len(lines) == 4
    assert all(line.is_displayed() for line in lines)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(line.is_displayed() for line in lines)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways_but_its_tables_do(browser, address, width):
    page = opened(browser, address, width, 740)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    if width == 360:
        scroll = one(page, "#table-1 .scroll")
        assert page.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", scroll)
        first = one(page, "#table-1 tbody th")
        before = first.rect["x"]
        page.execute_script("arguments[0].scrollLeft = 200", scroll)
        assert first.rect["x"] == pytest.approx(before, abs=1), "the first column stays"
        assert first.rect["width"] < 0.5 * width


def test_figures_are_legible_on_a_phone(browser, address):
    page = opened(browser, address, 360, 740)
    for plot in all_of(page, ".plot"):
        assert 300 <= plot.rect["width"] <= 360
        assert one(plot, "text").rect["height"] >= 10


def luminance(colour):
    return sum(map(int, colour[colour.index("(") + 1 : -1].split(",")[:3]))


def test_dark_and_light_follow_the_reader(browser, address):
    for scheme, dark in (("dark", True), ("light", False)):
        page = opened(browser, address, 1280, 900, scheme)
        body = one(page, "body")
        ink, paper = (luminance(body.value_of_css_property(name)) for name in ("color", "background-color"))
        assert (ink > paper) == dark
        axis = one(page, ".plot text")
        assert (luminance(axis.value_of_css_property("fill")) > paper) == dark


def test_without_script_everything_is_there(browser, address):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = opened(browser, address, 1280, 900)
        assert len(rows(page)) == 6
        assert not one(page, "#table-1 .tools").is_displayed()
        one(page, "#table-1 .entry").click()
        assert one(page, "#table-1 .runs").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
