"""Tables come from result lines, under a selection rule that is named."""

import pytest

from fedbeyond.errors import ConfigError, StorageError
from fedbeyond.evaluation.selection import select_round, selection_score
from fedbeyond.experiment.results import averaged as averaged_lines
from fedbeyond.experiment.results import load
from fedbeyond.report import layout, statistics, table
from fedbeyond.report.curves import curve
from fedbeyond.report.page import page


def line(method, target, seed, number, val, test, rounds=3, setting="a"):
    scores = {"x": {"val": {"accuracy": val, "loss": 1.0}}, target: {"test": {"accuracy": test, "loss": 1.0}}}
    left = {"x": {"parameters": {"model": 1000 + number}}}
    return {
        "method": method, "target": target, "seed": seed, "round": number, "rounds": rounds, "setting": setting,
        "scores": scores, "weights": {}, "rejected": [], "bytes_up": left,
    }  # fmt: skip


# the best validation is in round 1, the best test in round 0, the last round is 2
CURVES = {("fedavg", 0): (0.5, 0.6, 0.9), ("fedavg", 1): (0.7, 0.8, 0.1), ("fedavg+ga", 0): (0.9, 0.7, 0.3)}
LINES = [
    line(method, target, seed, number, (0.1, 0.9, 0.5)[number], tests[number])
    for (method, seed), tests in CURVES.items()
    for target in ("a", "b")
    for number in range(3)
]


@pytest.mark.parametrize(
    ("rule", "fedavg", "ga"),
    [("source-validation", [60, 80], [70]), ("last", [90, 10], [30]), ("oracle", [90, 80], [90])],
)
def test_a_rule_picks_the_round_it_says(rule, fedavg, ga):
    found = table.tabulate(LINES, rule)
    assert found.scores("fedavg", "a") == pytest.approx(fedavg)
    assert found.average("fedavg+ga") == pytest.approx(ga)


def test_the_oracle_is_called_what_it_is():
    assert "ORACLE" in table.tabulate(LINES, "oracle").caption
    assert "ORACLE" not in table.tabulate(LINES, "last").caption


def test_numbers_are_mean_and_standard_deviation_over_seeds():
    text = table.text(table.tabulate(LINES))
    assert "70.0 ± 14.1" in text and "source-validation" in text  # of 60 and 80
    assert "over up to 2 seeds" in text  # ga has one
    assert table.number([70.04]) == "70.0" and table.number([]) == "-"


def test_runs_that_are_not_finished_are_left_out_and_counted():
    found = table.tabulate([*LINES, line("fedsb", "a", 0, 0, 0.9, 0.9)])
    assert found.methods == ("fedavg", "fedavg+ga") and "1 unfinished" in found.caption


def test_a_method_without_all_targets_has_no_average():
    found = table.tabulate([entry for entry in LINES if (entry["method"], entry["target"]) != ("fedavg+ga", "b")])
    assert found.average("fedavg+ga") == [] and found.scores("fedavg+ga", "b") == []


def test_tables_come_as_markdown_latex_and_csv():
    found = table.tabulate(LINES)
    assert "| fedavg | 70.0 ± 14.1 | 70.0 ± 14.1 | 70.0 ± 14.1 |" in layout.markdown(table.rows(found), found.caption)
    latex = layout.latex(table.rows(found), found.caption)
    assert r"fedavg & $70.0 \pm 14.1$" in latex and latex.count(r"\\") == 3 and r"(\%)" in latex
    csv = table.csv(found).splitlines()
    assert csv[0] == "method,target,seed,round,accuracy,in_mean_rank" and len(csv) == 7
    assert '"fedavg","a",0,2,60.0000,yes' in csv and '"fedavg","a",1,2,80.0000,no' in csv  # ga has no seed 1


def test_the_page_needs_nothing_but_itself_and_escapes_names():
    lines = [*LINES, *[{**entry, "method": "<script>x"} for entry in LINES if entry["method"] == "fedavg"]]
    html = page(lines, table.tabulate(lines))
    assert '70.0<span class="spread"> ± 14.1</span>' in html
    assert "<script>x" not in html and "&lt;script&gt;x" in html
    assert "src=" not in html and "@import" not in html
    assert "1,002" in html  # the most that left a site


def test_one_run_under_two_settings_is_refused_and_two_runs_under_two_are_marked():
    other = [{**entry, "setting": "b"} for entry in LINES if entry["method"] == "fedavg+ga"]
    with pytest.raises(ConfigError, match=r"fedavg\+ga, a unseen, seed 0 was run under two settings \(a, b\)"):
        table.tabulate([*LINES, *other])
    mixed = table.tabulate([*[entry for entry in LINES if entry["method"] == "fedavg"], *other])
    assert "NOT COMPARABLE" in mixed.caption and "NOT" not in table.tabulate(LINES).caption


def test_two_results_for_one_round_are_refused():
    with pytest.raises(ConfigError, match="two different results for round 1"):
        table.tabulate([*LINES, line("fedavg", "a", 0, 0, 0.3, 0.3)])
    assert table.tabulate([*LINES, *LINES]) == table.tabulate(LINES)


@pytest.mark.parametrize("content", [b"5\n", b'{"round": 0, "seconds": 1}\n', b"\xff\xfe\n", b"[1]\n"])
def test_files_that_are_no_results_are_told(tmp_path, content):
    (tmp_path / "odd.jsonl").write_bytes(content)
    with pytest.raises(StorageError, match=r"odd\.jsonl"):
        load([tmp_path / "odd.jsonl"])


def test_an_unknown_rule_is_told():
    with pytest.raises(ConfigError, match="did you mean 'oracle'"):
        table.tabulate(LINES, "orakel")


def test_a_folder_without_results_is_told(tmp_path):
    with pytest.raises(StorageError, match="holds no results"):
        load([tmp_path])
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(StorageError, match=r"notes\.txt, line 1 is not JSON"):
        load([tmp_path / "notes.txt"])


def test_a_domain_that_was_unseen_in_two_ways_is_told():
    pair = line("fedavg", "a", 0, 0, 0.5, 0.5, rounds=1)
    both = pair | {"target": "a+b", "scores": pair["scores"] | {"b": {"test": {"accuracy": 0.3, "loss": 1.0}}}}
    found = table.tabulate([both])
    assert found.targets == ("a", "b") and found.scores("fedavg", "b") == [30]
    assert found.average("fedavg") == pytest.approx([40]) and table.unseen(both) == pytest.approx(0.4)
    assert "a,0,1,50.0000" in table.csv(found).replace('"', "") and "b unseen" in page([both], found)
    with pytest.raises(ConfigError, match="a was unseen in two runs"):
        table.tabulate([both, pair])


def test_a_round_is_chosen_by_domains_whose_clients_count_by_their_images():
    def client(accuracy, images):
        return {"val": {"accuracy": accuracy, "loss": 1.0}, "domain": "photo", "images": images}

    scores = {"photo-0": client(1.0, 10), "photo-1": client(0.5, 90), "sketch": {"val": {"accuracy": 0.25}}}
    assert selection_score({"scores": scores}) == pytest.approx((0.55 + 0.25) / 2)


def test_a_round_in_which_a_hard_domain_was_away_is_not_chosen_for_that():
    def judged(number, guest=True, **vals):
        scores = {name: {"val": {"accuracy": accuracy}} for name, accuracy in vals.items()}
        unseen = {"sketch": {"test": {"accuracy": 0.5}}} if guest else {}
        return line("fedavg", "sketch", 0, number, 0, 0) | {"scores": scores | unseen}

    run = [judged(0, easy=0.9), judged(1, easy=0.8, hard=0.4), judged(2, easy=0.9), judged(3, easy=0.7, hard=0.5)]
    assert select_round(run)["round"] == 2  # (0.9 + 0.4) / 2, against 0.6 twice: the first knew nothing of the hard one
    assert select_round([*run, judged(4, easy=0.7, hard=0.9)])["round"] == 4
    away = [judged(0, easy=0.6), judged(1, guest=False, easy=0.9), judged(2, easy=0.7)]
    assert table.RULES["source-validation"](away)["round"] == 2  # nobody knows how good the second is
    assert table.RULES["oracle"](away)["round"] == 0


def test_rounds_that_were_not_judged_are_passed_over_by_every_rule_and_the_page():
    pair = [line("fedavg", "a", 0, number, (0.1, 0.9, 0.5)[number], (0.9, 0.3, 0.6)[number]) for number in range(3)]
    del pair[0]["scores"]
    rules = {"source-validation": [30], "last": [60], "oracle": [60]}
    assert {rule: table.tabulate(pair, rule).scores("fedavg", "a") for rule in rules} == {
        rule: pytest.approx(want) for rule, want in rules.items()
    }
    found = table.tabulate(pair)
    points = curve(found, "fedavg", "a")
    assert points == [(2, pytest.approx(30), 0.0, 1), (3, pytest.approx(60), 0.0, 1)]  # rounds played, percent
    assert "30.0" in page(pair, found)


def test_the_table_on_own_is_that_of_in_domain_tests_with_domains_counted_equally():
    scores = {
        "x-0": {
            "val": {"accuracy": 0.1},
            "local_test": {"accuracy": 0.5},
            "local_test_images": 30,
            "domain": "x",
            "images": 1,
        },
        "x-1": {
            "val": {"accuracy": 0.1},
            "local_test": {"accuracy": 0.9},
            "local_test_images": 10,
            "domain": "x",
            "images": 9,
        },
        "y": {"val": {"accuracy": 0.1}, "local_test": {"accuracy": 0.2}},
        "a": {"test": {"accuracy": 0.7}},
    }
    lines = [line("fedavg", "a", 0, number, 0.5, 0.7) | {"scores": scores} for number in range(3)]
    found = table.tabulate(lines, where="own")
    assert found.scores("fedavg", "a") == pytest.approx([100 * ((0.5 * 30 + 0.9 * 10) / 40 + 0.2) / 2])
    assert "in-domain tests of the sites" in found.caption and "unseen" not in found.measure
    with pytest.raises(ConfigError, match=r"hold no in-domain local_test; run with train.test = 0.1"):
        table.text(table.tabulate(LINES, where="own"))
    with pytest.raises(ConfigError, match=r"hold no in-domain auc; .* choose another metric"):
        table.text(table.tabulate(lines, metric="auc", where="own"))
    with pytest.raises(ConfigError, match=r"--on owns is not known"):
        table.tabulate(LINES, where="owns")


def ranked(target, auc, recall=(0.5, 0.5)):
    """A run of one round whose unseen domain has an AUC, or samples of one class and none."""
    made = line("fedavg", target, 0, 0, 0.5, 0.5, rounds=1)
    test = made["scores"][target]["test"] | {"recall": list(recall)}
    made["scores"][target]["test"] = test | ({"auc": auc} if auc is not None else {})
    return made


def test_auc_of_an_unseen_domain_with_one_class_is_a_dash_and_is_left_out_of_averages():
    lines = [ranked("a", 0.8), ranked("b", 0.6), ranked("c", None, recall=(0.7, None))]
    lines += [entry | {"method": "moon"} for entry in lines]
    found = table.tabulate(lines, metric="auc")
    assert table.rows(found)[1] == ["fedavg", "80.0", "60.0", "-", "70.0"] and found.average("moon") == [70]
    assert "; no AUC where samples have one class (c): left out of averages" in found.caption
    assert '"fedavg","c",0,1,,no\n' in table.csv(found) and table.best_first(found) == ["fedavg", "moon"]
    (difference,) = statistics.differences(found, "fedavg")
    assert difference.pairs == 2 and statistics.ranks(found) == {"fedavg": 1.5, "moon": 1.5}
    assert "no AUC where samples have one class (c)" in page(lines, found)
    assert "no AUC" not in table.tabulate(lines).caption
    only = table.tabulate([ranked("c", None, recall=(0.7, None))], metric="auc")
    assert table.rows(only)[1] == ["fedavg", "-", "-"] and table.best_first(only) == ["fedavg"]
    with pytest.raises(ConfigError, match="hold no auc: they were made without it"):
        table.text(table.tabulate([ranked("a", None)], metric="auc"))  # two classes: it should have one


def test_in_domain_auc_leaves_out_sites_with_one_class():
    both, alone = {"accuracy": 0.5, "recall": [1, 1]}, {"accuracy": 0.5, "recall": [1, None]}
    made = line("fedavg", "a", 0, 0, 0.5, 0.5, rounds=1)
    made["scores"] |= {
        "x": {"val": both, "local_test": both | {"auc": 0.9}},
        "y": {"val": both, "local_test": both | {"auc": 0.7}},
        "z": {"val": both, "local_test": alone},
    }
    found = table.tabulate([made], metric="auc", where="own")
    assert found.scores("fedavg", "a") == pytest.approx([80]) and "one class (z)" in found.caption


def test_a_table_of_runs_scored_both_ways_says_which_way_and_can_show_the_other():
    """With averaged statistics, here, every accuracy is ten points lower."""
    both = [each | {"scores_average": _lower(each["scores"])} for each in LINES]
    anew, averaged = (table.tabulate(each) for each in (both, averaged_lines(both)))
    assert "BatchNorm statistics re-estimated" in anew.caption and "BatchNorm statistics averaged" in averaged.caption
    assert averaged.scores("fedavg", "a") == pytest.approx([value - 10 for value in anew.scores("fedavg", "a")])
    mixed = [each if each["method"] == "fedavg" else LINES[place] for place, each in enumerate(both)]
    assert "re-estimated where a run has both" in table.tabulate(mixed).caption
    assert "BatchNorm" not in table.tabulate(LINES).caption


def _lower(scores):
    def lower(found):
        return found | {"accuracy": found["accuracy"] - 0.1}

    return {name: {part: lower(found) for part, found in splits.items()} for name, splits in scores.items()}


def test_names_in_tables_are_text():
    """Neither cells, nor tags, nor commands."""
    cells = [["method", "a|b", "<script>"], [r"\input{/etc/passwd}", "1.0 ± 0.1", "$x~y$"]]
    head, _, row, *_ = layout.markdown(cells, "").splitlines()
    assert head == r"| method | a\|b | &lt;script> |" and row.count(" | ") == 2
    written = layout.latex(cells, "")
    assert r"\textbackslash{}input\{/etc/passwd\}" in written and r"\$x\textasciitilde{}y\$" in written
    assert r"$1.0 \pm 0.1$" in written
