"""Pages in a real browser: a report from disk, and runs watched while they go on."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from fedbeyond._io import write
from fedbeyond.report.write import write_report
from support.browser import assert_nothing_went_wrong, cells, look
from support.paths import ROOT
from support.watched import begin, held, plan, play, serving

pytestmark = pytest.mark.slow
RESULTS = ROOT / "benchmarks" / "results" / "styles.jsonl"
CONTROLS = """
const kinds = "a[href], button, input, select, textarea, summary, [role=tab], [tabindex='0']";
const usable = node => node.checkVisibility({visibilityProperty: true}) && !node.disabled;
window.controls = [...document.querySelectorAll(kinds)].filter(usable);
const name = node => (node.tagName + " " + (node.getAttribute("aria-label") || node.textContent).trim()).slice(0, 60);
// of a group through which arrows lead, one control is reached by Tab
const list = node => node.matches("[role=tab]") && node.closest("[role=tablist]");
const group = node => node.type === "radio" ? "radio " + node.name : list(node) ? "tabs " + name(list(node)) : null;
return window.controls.map((node, place) => group(node) || place + " " + name(node));
"""
CONTRAST = """
const lit = text => { const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const paper = lit(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll("h1, h2, p, li, caption, figcaption, td.last")].filter(n => n.checkVisibility())
    .map(n => lit(getComputedStyle(n).color)).map(ink => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
"""


def until(browser, condition, seconds: float = 30):
    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(condition)


def says(browser, place: str, text: str, seconds: float = 30) -> None:
    """Wait until a part of the page holds a text."""
    try:
        until(browser, lambda _: text in shown(browser, place), seconds)
    except Exception:
        raise AssertionError(f"{place} says {shown(browser, place)!r}, not {text!r}") from None


def shown(browser, place: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0]).innerText", place)


def assert_fits(browser) -> None:
    """Nothing is cut off on a phone, and text can be read in either light."""
    papers = []
    for scheme in ("light", "dark"):
        for width in (375, 1200):
            look(browser, scheme, width)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        papers.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        contrasts = browser.execute_script(CONTRAST)
        assert len(contrasts) > 3 and min(contrasts) > 4.5
    assert papers[0] != papers[1]


def assert_every_control_is_reached_by_tab(browser) -> int:
    wanted = browser.execute_script(CONTROLS)
    browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = set()
    for _ in range(2 * len(wanted) + 10):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        place = browser.execute_script("return window.controls.indexOf(document.activeElement)")
        if place >= 0:
            reached.add(wanted[place])
    assert set(wanted) == reached
    return len(wanted)


def test_a_page_with_faults_is_found_out(page, tmp_path):
    faulty = tmp_path / "faulty.html"
    wide = "<p style='width: 90rem'>wide</p><p>and</p><p>three</p><p>more</p>"
    faulty.write_text(f"<title>faults</title><img src=none.png alt=''>{wide}<button tabindex=-1>out of reach</button>")
    page.get(faulty.as_uri())
    with pytest.raises(AssertionError):
        assert_nothing_went_wrong(page, faulty.as_uri())
    with pytest.raises(AssertionError):
        assert_fits(page)
    with pytest.raises(AssertionError, match="out of reach"):
        assert_every_control_is_reached_by_tab(page)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report([RESULTS], "source-validation", "html", path)
    return path


def test_a_report_from_disk_shows_the_numbers_of_its_csv(page, report):
    page.get(report.as_uri())
    write_report([RESULTS], "source-validation", "csv", report.with_suffix(".csv"))
    found: dict[str, dict[str, list[float]]] = {}
    with open(report.with_suffix(".csv")) as file:
        for row in csv.DictReader(file):
            found.setdefault(row["method"], {}).setdefault(row["target"], []).append(float(row["accuracy"]))
    head, *body, majority = cells(page, "table")
    assert majority[0] == "majority class" and len(majority) == len(head)
    assert (
        head[0] == "method" and head[-1] == "average" and set(head[1:-1]) == {"cartoon", "painting", "photo", "sketch"}
    )
    assert {row[0] for row in body} == set(found) and len(body) == len(found)
    for method, *numbers in body:
        values = [found[method][target] for target in head[1:-1]]
        values.append([mean(each) for each in zip(*values, strict=True)])  # of each seed, over targets
        assert numbers == [f"{mean(each):.1f} ± {stdev(each):.1f}" for each in values]
    assert_nothing_went_wrong(page, report.as_uri())


def test_a_report_fits_a_phone_and_is_read_by_day_and_by_night(page, report):
    page.get(report.as_uri())
    assert_fits(page)
    assert_nothing_went_wrong(page, report.as_uri())


def test_every_control_of_a_report_is_reached_by_tab(page, report):
    page.get(report.as_uri())
    assert_every_control_is_reached_by_tab(page)


def test_every_control_of_a_reports_figures_shows_a_figure(page, report):
    page.get(report.as_uri())
    shape = """
    const drawn = node => node.checkVisibility() && node.getBoundingClientRect().height > 20;
    const kinds = "svg, img, canvas, table, figure, pre";
    const inside = node => node.matches(kinds) || [...node.querySelectorAll(kinds)].some(drawn);
    const node = arguments[0], named = node && node.getAttribute("aria-controls");
    const part = named ? document.getElementById(named) : node && node.closest("details");
    if (!part) return inside(document.body);
    const shut = node.getAttribute("aria-expanded") === "false" || (part.matches("details") && !part.open);
    return shut || (drawn(part) && (!named || inside(part)));
    """
    assert page.execute_script(shape, None)
    places = "button, summary, [role=tab]"
    for place in range(len(page.find_elements(By.CSS_SELECTOR, places))):
        found = page.find_elements(By.CSS_SELECTOR, places)
        if place < len(found) and found[place].is_displayed() and found[place].is_enabled():
            page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found[place])
            found[place].click()
            again = page.find_elements(By.CSS_SELECTOR, places)[place]
            assert page.execute_script(shape, again), again.get_attribute("outerHTML")
    assert_nothing_went_wrong(page, report.as_uri())


def test_a_real_bench_is_watched_to_its_end(page, tmp_path):
    settings = ("data=styles(share=0.05)", "network=convnet(width=4)", "train.rounds=3", "train.batch_size=8")
    settings += ("target=sketch", "bench.methods=['fedprox(mu=1e30)', 'fedavg']")
    words = [word for setting in settings for word in ("--set", setting)]
    root = tmp_path / "runs"
    with serving(root) as server:
        origin = f"http://127.0.0.1:{server.port}/"
        page.get(origin)
        says(page, "#summary", "No runs here yet")
        command = [sys.executable, "-m", "fedbeyond", "bench", *words, "--out", str(root)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                says(page, "#summary", "1 of 2 runs done, 1 failed. All runs have ended.", 120)
                assert process.wait(60) == 2  # a run failed
            finally:
                process.kill()
        says(page, "#failures", "numbers that are not finite")
        says(page, "#rounds", "3 of 3")
        line = json.loads((root / "fedavg/sketch/seed-0/results.jsonl").read_text().splitlines()[-1])
        rows = {row[0]: row[1:] for row in cells(page, "#all table")}
        assert rows["fedprox(mu=1e+30)"] == ["sketch", "0", "failed", "0/3", ""]
        assert rows["fedavg"][:4] == ["sketch", "0", "done", "3/3"]
        assert rows["fedavg"][4].endswith(f", unseen {line['scores']['sketch']['test']['accuracy']:.1%}")
        assert len(page.find_elements(By.CSS_SELECTOR, "#charts polyline")) == 1
        assert_fits(page)
        until(page, lambda _: page.find_element(By.CSS_SELECTOR, "#report a").is_displayed())
        assert assert_every_control_is_reached_by_tab(page) == 4  # the report, two methods, the table that scrolls
        page.find_element(By.CSS_SELECTOR, "#report a").click()
        until(page, lambda _: page.current_url == f"{origin}report")
        assert any(row[0] == "fedavg" for row in cells(page, "table"))
        assert_nothing_went_wrong(page, origin)


NASTY = "<img src=x onerror=alert(1)>"


def test_the_live_page_follows_the_files_as_they_grow(page, tmp_path):
    plan(tmp_path, ("fedavg", "sketch", 0), ("fedsb", "sketch", 0), (NASTY, "sketch", 0))
    first = begin(tmp_path, "fedavg")
    with serving(tmp_path) as server, held(first):
        origin = f"http://127.0.0.1:{server.port}/"
        page.get(origin)
        says(page, "#summary", "0 of 3 runs done, 1 running, 2 pending; the time left is known after a round.")
        play(first, 0, unseen=0.125, seconds=100)
        says(page, "#runs", "round 1/4, own 75.0%, unseen 12.5%")
        says(page, "#summary", "about 18 min left")  # 3 + 4 + 4 rounds of 100 s: 1,100 s
        button = page.find_element(By.CSS_SELECTOR, "#key button")
        button.send_keys(Keys.ENTER)
        assert button.get_attribute("aria-pressed") == "true"
        play(first, 1, unseen=0.5, aside=({"site": "photo", "reason": f"not finite {NASTY}"},))
        says(page, "#rounds", "2 of 12")
        says(page, "#replies", f"fedavg, sketch unseen, seed 0, round 2, photo: not finite {NASTY}")
        (line,) = page.find_elements(By.CSS_SELECTOR, "#charts polyline")
        # of 4 rounds over 320: a third each; 12.5 % and 50 % of 180, from above
        assert line.get_attribute("points") == "0.0,157.5 106.7,90.0"
        assert page.switch_to.active_element == button and button.get_attribute("aria-pressed") == "true"
        assert shown(page, "#announcement") == ""  # rounds are not read aloud
        second = begin(tmp_path, "fedsb")
        write(second / "failure.json", json.dumps({"error": f"only 0 of 3 sites answered {NASTY}"}).encode())
        says(
            page, "#failures", f"fedsb, sketch unseen, seed 0, after 0 of 4 rounds: only 0 of 3 sites answered {NASTY}"
        )
        assert shown(page, "#announcement") == "0 of 3 runs done, 1 failed"
        assert NASTY in [row[0] for row in cells(page, "#all table")]
        assert page.find_elements(By.TAG_NAME, "img") == []
        assert_fits(page)
        assert_nothing_went_wrong(page, origin)


def test_the_live_page_says_when_the_watcher_is_gone_and_finds_it_again(page, tmp_path):
    folder = begin(tmp_path, "fedavg")
    play(folder, 0)
    with serving(tmp_path) as server:
        page.get(f"http://127.0.0.1:{server.port}/")
        says(page, "#rounds", "1 of 4")
    says(page, "#disconnected", "No reply from “fedbeyond watch”: this page shows the state at ")
    assert shown(page, "#rounds") == "1 of 4"
    play(folder, 1)
    with serving(tmp_path, server.port):
        says(page, "#rounds", "2 of 4")
        assert not page.find_element(By.ID, "disconnected").is_displayed()
    page.get("about:blank")
