"""Differences, intervals, corrected p-values and ranks, against scipy and by hand."""

import pytest
from scipy import stats

from fedbeyond.errors import ConfigError
from fedbeyond.report import layout, statistics
from fedbeyond.report.leaders import leaders
from fedbeyond.report.page import answer
from fedbeyond.report.table import rows, tabulate


def lines(numbers: dict[str, dict[str, list[float]]], metric: str = "accuracy") -> list[dict]:
    """Runs of one round: method -> target -> what each seed reached."""
    return [
        {
            "method": method,
            "target": target,
            "seed": seed,
            "setting": "s",
            "round": 0,
            "rounds": 1,
            "scores": {"own": {"val": {"accuracy": 0.5}}, target: {"test": {"accuracy": 0.5} | {metric: value}}},
        }
        for method, targets in numbers.items()
        for target, values in targets.items()
        for seed, value in enumerate(values)
    ]


BASE = {"a": [0.50, 0.52], "b": [0.60, 0.61]}
RUNS = {
    "fedavg": BASE,
    "up": {"a": [0.55, 0.56], "b": [0.64, 0.67]},
    "bytes_down": {"a": [0.49, 0.53], "b": [0.58, 0.55]},
}


def test_differences_are_paired_by_target_and_seed():
    up, down = statistics.differences(tabulate(lines(RUNS)), "fedavg")
    gaps = [5.0, 4.0, 4.0, 6.0]
    assert (up.method, up.pairs, up.mean) == ("up", 4, pytest.approx(4.75))
    low, high = stats.t.interval(0.95, 3, 4.75, stats.sem(gaps))
    assert (up.low, up.high) == (pytest.approx(low), pytest.approx(high))
    p = stats.ttest_rel([55, 56, 64, 67], [50, 52, 60, 61]).pvalue
    q = stats.ttest_rel([49, 53, 58, 55], [50, 52, 60, 61]).pvalue
    assert up.t == pytest.approx(min(1, 2 * p)) and down.t == pytest.approx(max(2 * p, q))  # Holm's


def test_a_pair_that_one_method_lacks_does_not_count():
    some = {**RUNS, "up": {"a": [0.55, 0.56], "b": [0.64]}}
    assert statistics.differences(tabulate(lines(some)), "fedavg")[0].pairs == 3


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.5, 0.9]) == [1.0, 1.0] and statistics.holm([]) == []


def test_wilcoxon_is_scipys_and_survives_ties_and_zeros():
    gaps = [1.0, 2.5, -0.5, 3.0, 4.0, 0.25]
    assert statistics.signed_ranks(gaps) == pytest.approx(stats.wilcoxon(gaps).pvalue)
    assert statistics.signed_ranks([0.0, 0.0, 0.0]) == 1.0
    assert 0 < statistics.signed_ranks([0.0, 1.0, 1.0, 2.0]) <= 1
    assert statistics.t_test([2.0, 2.0]) == 1.0  # no spread: the test has nothing to say


def test_ranks_share_ties():
    same = {"x": {"a": [0.5]}, "y": {"a": [0.5]}, "z": {"a": [0.9]}}
    assert statistics.ranks(tabulate(lines(same))) == {"x": 2.5, "y": 2.5, "z": 1.0}
    errors = {"x": {"a": [0.1]}, "y": {"a": [0.2]}}
    assert statistics.ranks(tabulate(lines(errors, "calibration_error"), metric="calibration_error"))["x"] == 1.0


def test_the_caption_says_over_which_pairs_ranks_are_and_who_lacks_the_others():
    caption = statistics.caption(tabulate(lines(RUNS)), "fedavg")
    assert caption.endswith("; mean ranks over the 4 pairs that all 3 methods have")
    some = {**RUNS, "up": {"a": [0.55], "b": [0.64]}, "bytes_down": {"a": [0.49, 0.53]}}
    caption = statistics.caption(tabulate(lines(some)), "fedavg")
    assert "; mean ranks over the 1 pair that all 3 methods have; left out: 3 of 4 pairs (up lacks " in caption
    assert caption.endswith("(up lacks a seed 1, b seed 1; bytes_down lacks b seed 0, b seed 1)")
    wide = {"fedavg": {"a": [0.5] * 9}, "up": {"a": [0.6]}}
    assert "(up lacks a seed 1, a seed 2, a seed 3, 5 more)" in statistics.caption(tabulate(lines(wide)), "fedavg")
    apart = {"fedavg": {"a": [0.5]}, "up": {"b": [0.6]}}
    assert "; no mean ranks; left out: 2 of 2 pairs" in statistics.caption(tabulate(lines(apart)), "fedavg")


def test_the_best_and_those_not_distinguishable_from_it_are_marked():
    best = {"a": [0.56, 0.57], "b": [0.66, 0.67]}
    found = tabulate(lines({**RUNS, "best": best, "once": {"a": [0.1]}}))
    assert [row[0] for row in rows(found, "fedavg")] == [
        *("method", "best", "up", "fedavg (baseline)", "bytes_down", "once")
    ]
    marked, meaning = leaders(found)
    assert marked == ("best", "up") and "paired t-test over target and seed, p at least 0.05 after Holm's" in meaning
    cells = rows(found)
    text, markdown, latex = (write(cells, "", marked) for write in (layout.text, layout.markdown, layout.latex))
    assert text.count("*") == 2 and "61.5 ± 0.7*" in text and len({len(row) for row in text.splitlines()[4:8]}) <= 2
    assert "| **61.5 ± 0.7** |" in markdown and markdown.count("**") == 4
    assert latex.count(r"$\mathbf{") == 2


def test_with_too_few_pairs_only_the_best_is_marked_and_the_meaning_says_so():
    marked, meaning = leaders(tabulate(lines({"x": {"a": [0.5]}, "y": {"a": [0.9]}})))
    assert marked == ("y",) and meaning == (
        "the best average (no test which others may be as good: 1 pair of target and seed, fewer than 3)"
    )
    assert leaders(tabulate(lines({"x": {"a": [0.5]}}))).methods == ()
    errors = {"x": {"a": [0.1, 0.1, 0.2]}, "y": {"a": [0.6, 0.7, 0.7]}, "z": {"a": [0.5]}}
    found = leaders(tabulate(lines(errors, "calibration_error"), metric="calibration_error"))
    assert found.methods == ("x",) and found.meaning.endswith("; not tested, with fewer than 3 pairs: z")


def test_the_answer_names_the_difference_and_its_uncertainty():
    said = answer(tabulate(lines(RUNS)), "fedavg")
    assert "up is better than fedavg by 4.8 ± 1.5 points over 4 runs of each" in said and "corrected for 2" in said
    assert "no method is better than up" in answer(tabulate(lines(RUNS)), "up")
    once = {"fedavg": {"a": [0.5]}, "up": {"a": [0.6]}}
    assert "the effect of chance is not known" in answer(tabulate(lines(once)), "fedavg")
    assert "nothing to compare" in answer(tabulate(lines({"fedavg": BASE})), "fedavg")


def test_a_baseline_that_was_not_run_and_a_metric_that_is_not_there_are_named():
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        statistics.differences(tabulate(lines(RUNS)), "fedavgs")
    found = tabulate(lines(RUNS), metric="auc")
    with pytest.raises(ConfigError, match="hold no auc"):
        found.average("up")
    with pytest.raises(ConfigError, match="did you mean 'auc'"):
        tabulate(lines(RUNS), metric="auk")
