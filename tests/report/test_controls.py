"""A reader of the page sorts and filters tables, hides lines, and reads values under the pointer."""

import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from fedbeyond.report.write import write_report
from support.browser import assert_nothing_went_wrong, cells, look
from support.result_lines import TARGETS, bench, write

pytestmark = pytest.mark.slow
METHODS = ["fedavg", "fedavg+ga", "moon", "scaffold", "fedsr", "fedprox(mu=0.1)", "fedgma"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write(bench(METHODS, seeds=(0, 1), classes=7), tmp_path_factory.mktemp("report") / "runs")
    write_report([folder], "source-validation", "html", folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def opened(page, report):
    page.get(report.as_uri())
    yield page
    assert_nothing_went_wrong(page, report.as_uri())


def column(browser, place):
    return [row[place] for row in cells(browser, "table")[1:]]


def averages(browser):
    return [float(text.split()[0]) for text in column(browser, -1)]


def test_tables_are_sorted_by_keyboard_and_say_so(opened):
    *found, majority = averages(opened)
    assert found == sorted(found, reverse=True) and column(opened, 0)[-1] == "majority class"
    average, method = (opened.find_elements(By.CSS_SELECTOR, "table thead th button")[i] for i in (5, 0))
    heading = average.find_element(By.XPATH, "..")
    assert heading.get_attribute("aria-sort") == "descending"
    average.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "ascending" and averages(opened) == [*sorted(found), majority]
    method.send_keys(Keys.SPACE)
    assert column(opened, 0)[:-1] == sorted(METHODS) and heading.get_attribute("aria-sort") is None
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert opened.execute_script(outline) == "solid"  # the focus can be seen


def test_tables_are_filtered_by_words(opened):
    field = opened.find_element(By.CSS_SELECTOR, ".tools input")
    field.send_keys("fed mu")
    shown = "return [...document.querySelector('table').tBodies[0].rows].filter(row => row.checkVisibility()).length"
    assert opened.execute_script(shown) == 1
    assert opened.find_element(By.CSS_SELECTOR, ".tools [role=status]").text == "1 of 8 rows"
    field.send_keys(Keys.CONTROL + "a", Keys.DELETE)
    assert opened.execute_script(shown) == 8


def test_the_best_and_the_baseline_are_marked_and_cells_say_their_rounds(opened):
    strong = [each.text for each in opened.find_elements(By.CSS_SELECTOR, "table td.average strong")]
    assert strong and strong[0] == cells(opened, "table")[1][-1]
    (baseline,) = opened.find_elements(By.CSS_SELECTOR, "tr.baseline th")
    assert baseline.text == "fedavg"
    hint = opened.find_element(By.CSS_SELECTOR, "table td").get_attribute("title")
    assert hint.startswith("Chosen round of seed 0: ") and ", seed 1: " in hint and hint.endswith(" of 4")
    (runs,) = [
        t for t in opened.find_elements(By.CSS_SELECTOR, "details table") if "chosen" in t.get_attribute("outerHTML")
    ]
    assert len(runs.find_elements(By.CSS_SELECTOR, "tbody tr")) == len(METHODS) * len(TARGETS) * 2


def test_lines_are_hidden_and_shown_and_tell_their_values(opened):
    slide = opened.find_element(By.ID, "figure-rounds")
    button = next(each for each in slide.find_elements(By.CSS_SELECTOR, ".tools button") if each.text == "moon")
    visible = """
    const drawn = part => part.getBoundingClientRect().width > 0;
    return [...arguments[0].querySelectorAll('[data-line=moon]')].filter(drawn).length;
    """
    assert opened.execute_script(visible, slide) == 2 * len(TARGETS)  # lines and bands
    button.send_keys(Keys.ENTER)
    assert opened.execute_script(visible, slide) == 0 and button.get_attribute("aria-pressed") == "false"
    button.send_keys(Keys.ENTER)
    assert opened.execute_script(visible, slide) == 2 * len(TARGETS)
    line = slide.find_element(By.CSS_SELECTOR, "[data-line=moon][data-texts*=round]")
    texts = json.loads(line.get_attribute("data-texts"))
    for other in slide.find_elements(By.CSS_SELECTOR, ".tools button[aria-pressed=true]"):
        if other != button:
            other.send_keys(Keys.ENTER)  # a hidden line has no values
    for place in (0, 3):
        point_at(opened, line, place)
        assert tip(opened) == texts[place] and texts[place].startswith(f"moon, round {place + 1}: ")


def point_at(browser, line, place):
    """Move the pointer to a point of a line."""
    where = """
    const [line, place] = arguments, svg = line.closest("svg");
    const point = [...line.querySelector("path").getAttribute("d").matchAll(/[ML] (\\S+) (\\S+)/g)][place];
    const now = svg.getScreenCTM();
    return [now.a * point[1] + now.e, now.d * point[2] + now.f];
    """
    browser.execute_script("arguments[0].closest('svg').scrollIntoView({block: 'center', behavior: 'instant'})", line)
    drawn(browser)
    x, y = browser.execute_script(where, line, place)
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


def drawn(browser):
    """Wait until the page is drawn, and has seen that it was scrolled or resized."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def tip(browser):
    (found,) = browser.find_elements(By.CSS_SELECTOR, ".tip")
    return found.text


def test_confusion_matrices_are_side_by_side_within_a_screen_and_name_their_classes(opened):
    opened.find_element(By.ID, "tab-figure-confusion").click()
    svg = opened.find_element(By.CSS_SELECTOR, "#figure-confusion svg")
    assert svg.size["height"] <= 900 and svg.size["width"] > svg.size["height"]
    group = svg.find_element(By.CSS_SELECTOR, "[data-texts]")
    texts = json.loads(group.get_attribute("data-texts"))
    assert " predicted as " in texts[0] and not texts[0][0].isdigit()
    opened.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg)
    shapes = "return [...arguments[0].querySelectorAll('path, use')].filter(shape => !shape.closest('defs'))"
    boxes = [shape.rect for shape in opened.execute_script(shapes, group)]
    assert len(boxes) == len(texts)  # a square for each text, in the same order: by rows, then by columns
    assert [(box["y"], box["x"]) for box in boxes] == sorted((box["y"], box["x"]) for box in boxes)
    drawn(opened)
    ActionChains(opened).move_to_element(opened.execute_script(shapes, group)[0]).move_by_offset(4, 6).perform()
    assert tip(opened) == texts[0]


def test_on_a_phone_the_average_comes_first(opened):
    wide = cells(opened, "table")
    look(opened, "light", 390)
    drawn(opened)
    assert cells(opened, "table") == [[row[0], row[-1], *row[1:-1]] for row in wide]
    assert opened.find_elements(By.CSS_SELECTOR, "table .average")[0].is_displayed()
    look(opened, "light", 1200)
    drawn(opened)
    assert cells(opened, "table") == wide
