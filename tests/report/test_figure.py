"""A figure as files and as part of a page."""

import csv
import json
from itertools import combinations

import pytest

from fedbeyond.report import classes, site_weights, table
from fedbeyond.report.figure import INK, PALETTE, Figure, panels, save, shortened, svg, themed
from support.result_lines import bench

LONG = "fedprox(mu=0.0123456789)+ga+mixstyle"
CLASSES = ["Mehltau, eine lange Bezeichnung der Klasse A", "Mehltau, eine lange Bezeichnung der Klasse B", "x"]
SITES = {"cartoon": "Clinic of the Far North (2021)", "photo": "Tierklinik Müller & Söhne"}


def example(name="curves"):
    picture, (left, right) = panels(2)
    left.plot([0, 1, 2], [1, 4, 9])
    left.set_title("a <b> & c")
    right.bar([0, 1], [2, 3])
    return Figure(name, "Squares", "Squares of numbers", picture, [["x", "y"], ["1", "1"], ["2", "4,5"]])


def test_a_figure_is_written_with_its_numbers_and_the_same_bytes_every_time(tmp_path):
    first = [path.read_bytes() for path in save(example(), tmp_path / "a")]
    assert first == [path.read_bytes() for path in save(example(), tmp_path / "b")]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {f"curves.{e}" for e in ("svg", "png", "csv", "json")}
    with open(tmp_path / "a" / "curves.csv") as file:
        assert list(csv.reader(file)) == [["x", "y"], ["1", "1"], ["2", "4,5"]]
    drawn = (tmp_path / "a" / "curves.svg").read_text()
    assert PALETTE[0] in drawn and INK in drawn and "a &lt;b&gt; &amp; c" in drawn


def test_on_a_page_colours_are_the_pages_and_ids_a_figures_own():
    one, other = (themed(svg(example(name)), name) for name in ("one", "other"))
    assert "var(--c0)" in one and "var(--ink)" in one and PALETTE[0] not in one
    assert one.startswith("<svg") and "width=" not in one.partition(">")[0]
    ids = [set(part.split('"')[0] for part in each.split(' id="')[1:]) for each in (one, other)]
    assert ids[0] and not ids[0] & ids[1]


def test_long_names_are_cut_and_stay_distinct():
    assert shortened(["photo", "healthy leaf", "rust"], 9) == ["photo", "healthy …", "rust"]
    assert shortened(["class-0001", "class-0002", "x"], 9) == ["clas…0001", "clas…0002", "x"]
    assert shortened(["same name twice", "same name twice"], 9) == ["same nam…", "same nam…"]


@pytest.mark.parametrize("kind", ["recall", "confusion", "weights", "gap_bars"])
def test_long_names_of_ones_own_data_leave_room_for_the_figure(kind):
    text = json.dumps(bench(["fedavg", LONG]), ensure_ascii=False)
    for short, name in SITES.items():
        text = text.replace(short, name)
    told = table.tabulate(json.loads(text))
    of_classes = kind in ("recall", "confusion")
    figure = getattr(classes, kind)(told, "fedavg", CLASSES) if of_classes else getattr(site_weights, kind)(told)
    svg(figure)  # a layout that collapses is a warning, and so an error here
    drawn = figure.picture.axes
    assert min(axis.get_window_extent().height for axis in drawn) > 40
    ticks = [label for axis in drawn for label in axis.get_xticklabels() if label.get_rotation() in (0, 90)]
    labels = [label for label in (*ticks, *(axis.title for axis in drawn)) if label.get_text()]
    for one, other in combinations(labels, 2):
        assert not one.get_window_extent().overlaps(other.get_window_extent()), (one.get_text(), other.get_text())
