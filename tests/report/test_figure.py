"""A figure as files and as part of a page."""

import csv

from fedbeyond.report.figure import INK, PALETTE, Figure, panels, save, svg, themed


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
