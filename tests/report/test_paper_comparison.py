"""A report can show ours beside what a paper prints, and never passes the one off as the other."""

import csv
import io
import sys

import pytest

from fedbeyond.cli import main
from fedbeyond.errors import ConfigError
from fedbeyond.report import layout, paper_comparison, table
from fedbeyond.report.page import page
from report.test_table import line

PACS = ("photo", "art_painting", "cartoon", "sketch")


def lines(methods, targets=PACS, seeds=(0, 1)):
    """One round a run: 50 % with seed 0, 60 % with seed 1."""
    return [line(m, t, s, 0, 0.9, 0.5 + s / 10, rounds=1) for m in methods for t in targets for s in seeds]


def ours(*methods, targets=PACS):
    return table.tabulate(lines(methods, targets))


def body(both):
    return {row[0]: row[1:] for row in paper_comparison.rows(both)}


def test_a_printed_row_stands_right_under_the_method_it_names():
    both = paper_comparison.compare_with_paper(ours("fedavg+ga", "fedavg"), "ga/table1_pacs")
    head, *rows = paper_comparison.rows(both)
    assert head == ["method", *PACS, "average"]
    assert rows[0] == ["fedavg+ga", *["55.0 ± 7.1"] * 5]
    assert rows[1] == ["  as printed in ga, table1_pacs", "93.97", "81.28", "76.73", "82.57", "83.64"]
    assert rows[2][0] == "fedavg" and rows[3][1:] == ["92.77", "77.29", "77.97", "81.03", "82.26"]


def test_rows_that_were_not_run_follow_by_their_printed_names_once():
    both = paper_comparison.compare_with_paper(ours("fedavg"), "ga/table1_pacs")
    names = [row[0] for row in paper_comparison.rows(both)]
    assert names[:3] == ["method", "fedavg", "  as printed in ga, table1_pacs"]
    assert "FedCSA +GA, as printed" in names and "FedAvg, as printed" not in names
    assert len(names) == 1 + 1 + 19  # head, ours, all nineteen of theirs


def test_a_variant_of_ours_does_not_stand_over_the_printed_row_of_the_same_name():
    both = paper_comparison.compare_with_paper(ours("ccst", "elcfs", targets=("human_breast",)), "feddag/table2_midog")
    names = [row[0] for row in paper_comparison.rows(both)]
    assert names[1:4] == ["ccst", "elcfs", "  as printed in feddag, table2_midog"]
    assert "CCST†, as printed" in names and "ELCFS†, as printed" not in names


def test_standard_deviations_are_printed_where_the_paper_has_them():
    both = paper_comparison.compare_with_paper(ours("fedsb"), "fedsb/table1_pacs")
    assert body(both)["  as printed in fedsb, table1_pacs"][0] == "94.19 ± 0.1"
    assert r"$94.19 \pm 0.1$" in layout.latex(paper_comparison.rows(both), both.caption)


def test_columns_are_the_union_and_an_average_over_other_domains_is_not_shown():
    both = paper_comparison.compare_with_paper(ours("fedavg", targets=("sketch", "painting")), "ga/table1_pacs")
    head, mine, theirs, *_ = paper_comparison.rows(both)
    assert head == ["method", "sketch", "painting", "photo", "art_painting", "cartoon", "average"]
    assert mine[1:] == ["55.0 ± 7.1", "55.0 ± 7.1", "-", "-", "-", "-"]
    assert theirs[1:] == ["81.03", "-", "92.77", "77.29", "77.97", "82.26"]


def test_options_may_be_spelled_in_any_order():
    both = paper_comparison.compare_with_paper(ours("fedsb(smoothing=0.0, budget=45)"), "fedsb/table6_pacs")
    assert body(both)["  as printed in fedsb, table6_pacs"][-1] == "80.27"
    assert not paper_comparison.same_method("fedsb", "fedsb(budget=45)") and not paper_comparison.same_method("", "")


def test_the_table_is_found_that_has_the_domains_and_the_most_methods():
    assert paper_comparison.compare_with_paper(ours("fedavg", "fedprox(mu=0.1)"), "ga").table == "table1_pacs"
    assert (
        paper_comparison.compare_with_paper(ours("fedavg+ga(step=0.2)", "fedavg+ga(step=0)"), "ga").table
        == "table3_pacs"
    )
    home = ("art", "clipart", "product", "real_world")
    assert (
        paper_comparison.compare_with_paper(ours("scaffold", "mine", targets=home), "ga").table == "table1_officehome"
    )


def test_a_table_of_averages_only_knows_the_domains_of_its_data():
    both = paper_comparison.compare_with_paper(ours("fedavg+ga(step=0.2)"), "ga/table3_pacs")
    _, mine, theirs, *_ = paper_comparison.rows(both)
    assert mine[-1] == "55.0 ± 7.1" and theirs[1:] == ["-", "-", "-", "-", "82.83"]
    part = paper_comparison.compare_with_paper(ours("fedavg+ga(step=0.2)", targets=("photo",)), "ga/table3_pacs")
    assert paper_comparison.rows(part)[1][-1] == "-"


def test_where_several_tables_fit_or_none_does_there_is_a_choice():
    with pytest.raises(ConfigError, match=r"2 tables of ga fit .*--beside ga/table1_pacs: .*table1_pacs, table3"):
        paper_comparison.compare_with_paper(ours("fedavg", "fedavg+ga"), "ga")
    with pytest.raises(ConfigError, match=r"no table of ga fits .*unseen: moon.*table2_domainnet"):
        paper_comparison.compare_with_paper(ours("fedavg", targets=("moon",)), "ga")
    with pytest.raises(ConfigError, match="no table of ga fits"):
        paper_comparison.compare_with_paper(ours("fedprox(mu=7)"), "ga")
    with pytest.raises(ConfigError, match="nothing finished; unseen: none"):
        paper_comparison.compare_with_paper(ours(), "ga")


def test_unknown_papers_and_tables_are_told_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"did you mean 'fedsb'\? \(known: fedadg, feddag, fedgca, fedsb, ga\)"):
        paper_comparison.compare_with_paper(ours("fedavg"), "fedsp")
    with pytest.raises(ConfigError, match="ga has no table 'table1_pasc'; did you mean 'table1_pacs'"):
        paper_comparison.compare_with_paper(ours("fedavg"), "ga/table1_pasc")


def test_a_table_on_other_domains_is_refused():
    with pytest.raises(ConfigError, match=r"no unseen domain in common: it has clipart, .*the runs have photo"):
        paper_comparison.compare_with_paper(ours("fedavg", targets=("photo",)), "ga/table2_domainnet")


def test_the_caption_says_whose_numbers_they_are():
    told = paper_comparison.compare_with_paper(ours("fedavg"), "ga/table1_pacs").caption
    assert "source-validation" in told and "ga, table1_pacs; accuracy" in told
    assert "under their own protocol, and not by us" in told and "NOT COMPARABLE" not in told


def test_other_metrics_than_accuracy_are_never_silently_set_beside_it():
    midog = ("human_breast", "canine_lung")
    both = paper_comparison.compare_with_paper(ours("feddag(rho=1e-07)", targets=midog), "feddag")
    assert (both.table, both.metric) == ("table2_midog", "accuracy")
    assert body(both)["  as printed in feddag, table2_midog"][:2] == ["76.9 ± 0.2", "73.6 ± 2.0"]
    both = paper_comparison.compare_with_paper(
        ours("feddag(rho=1e-07)", targets=("hospital_0",)), "feddag/table5_camelyon17"
    )
    assert both.metric == "auc_weighted" and "NOT COMPARABLE: theirs is auc_weighted" in both.caption


def test_it_comes_as_markdown_latex_and_csv():
    both = paper_comparison.compare_with_paper(
        ours("fedgca:paper", targets=("svhn", "usps", "synth", "mnist_m")), "fedgca/table3_digits"
    )
    rows = paper_comparison.rows(both)
    assert "| P, P^G, as printed | 44.55 | 76.39 | 60.94 | 85.23 | - |" in layout.markdown(rows, both.caption)
    latex = layout.latex(rows, both.caption)
    assert r"P, P\textasciicircum{}G, as printed & 44.55" in latex and r"mnist\_m" in latex
    found = list(csv.DictReader(io.StringIO(paper_comparison.as_csv(both))))
    assert [entry["source"] for entry in found] == ["ours"] * 8 + ["fedgca/table3_digits"] * 20
    assert found[0]["value"] == "50.0000" and found[0]["round"] == "1"  # as everywhere that people read
    assert found[0]["seed"] == "0" and found[0]["metric"] == "accuracy"
    assert found[-1]["row"] == "P, P^G, M, M^G" and found[-1]["method"] == "fedgca:paper"
    assert found[-1]["value"] == "85.74"


def test_the_page_has_a_section_for_it_only_when_asked():
    every = lines(["fedavg"])
    both = paper_comparison.compare_with_paper(table.tabulate(every), "ga/table1_pacs")
    ours = table.tabulate(every)
    html = page(every, ours, both)
    assert "Comparison with ga, table1_pacs" in html and 'class="theirs"' in html and "92.77" in html
    assert "Comparison" not in page(every, ours) and 'class="theirs"' not in page(every, ours)


@pytest.mark.parametrize("style", ["text", "markdown", "latex", "csv", "html"])
def test_the_command_line_prints_it_in_every_format(style, tmp_path, capsys, monkeypatch):
    import json

    (tmp_path / "r.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines(["fedavg"])))
    words = ["report", tmp_path / "r.jsonl", "--beside", "ga/table1_pacs", "--format", style, "--out", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["fedbeyond", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert not end.value.code and "92.77" in (tmp_path / "out").read_text("utf-8")
    monkeypatch.setattr(sys, "argv", ["fedbeyond", "report", str(tmp_path / "r.jsonl"), "--beside", "gaa"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2 and "did you mean 'ga'" in capsys.readouterr().err
