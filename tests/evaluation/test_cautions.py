"""Results that mislead are warned about: few samples, one class, models that predict one class."""

import pytest

from fedbeyond.evaluation.cautions import (
    SiteSamples,
    constant_class,
    majority_rate,
    predicts_one_class,
    run_warnings,
    site_warnings,
    wrap_warnings,
)
from fedbeyond.report import layout, paper_comparison, table
from support.result_lines import line, scores


def test_sites_are_named_with_their_counts_and_what_to_do():
    sites = {
        "north": SiteSamples("north", 2, 1, [2, 1]),
        "south": SiteSamples("south", 180, 20, [200, 0]),
        "west": SiteSamples("west", 20, 20, [20, 20]),
    }
    training, validation, alone = site_warnings(sites, ("well", "ill"))
    assert training.startswith("fewer than 20 training samples: north 2.") and "merge sites" in training
    assert (
        validation.startswith("fewer than 20 validation samples: north 1.") and "raise train.validation" in validation
    )
    assert alone.startswith("samples of one class only: south ('well').") and "AUC is undefined" in alone
    assert list(site_warnings({"west": sites["west"]})) == []


def test_validation_samples_are_counted_by_domain_and_long_lists_are_cut():
    shared = {f"north-{place}": SiteSamples("north", 90, 10, [50, 50]) for place in range(2)}
    assert list(site_warnings(shared)) == []  # 20 together
    (told,) = site_warnings({f"s{place}": SiteSamples(f"s{place}", 90, place, [50, 50]) for place in range(1, 10)})
    assert "s1 1, s2 2, s3 3, s4 4, s5 5, s6 6, and 3 more." in told


def test_what_is_not_known_is_not_warned_about():
    assert list(site_warnings({"north": SiteSamples("north", None, None, [])})) == []
    assert run_warnings({("fedavg", "a", 0): line("fedavg", "a", 0, 0, 1, {"a": 0.5, "b": 0.5})}) == []
    lone = {"north": SiteSamples("north", None, 1, [1, 0])}  # one sample has one class: that says nothing
    assert len(list(site_warnings(lone))) == 1


@pytest.mark.parametrize(
    ("confusion", "want"),
    [
        ([[30, 0], [10, 0]], 0),
        ([[0, 30], [0, 10]], 1),
        ([[30, 0], [9, 1]], -1),
        ([[30, 0], [0, 0]], -1),  # one class, and that is what it predicts
        ([[0, 30], [0, 0]], -1),
    ],
)
def test_a_model_is_constant_if_samples_of_several_classes_are_predicted_as_one(confusion, want):
    assert constant_class(confusion) == want


def test_a_constant_model_is_told_with_its_class_and_domains():
    def judged(**matrices):
        return line("fedavg", "z", 0, 0, 1, {name: scores(matrix) for name, matrix in matrices.items()})

    everywhere = judged(a=[[30, 0], [10, 0]], z=[[5, 0], [5, 0]])
    assert predicts_one_class(everywhere, ("well", "ill")) == "'well' on every domain"
    some = judged(a=[[30, 0], [10, 0]], b=[[3, 0], [4, 0]], z=[[5, 1], [5, 9]])
    assert predicts_one_class(some) == "class 0 on a"  # 7 samples of b may all be predicted alike by chance
    assert predicts_one_class(judged(a=[[30, 1], [10, 2]], z=[[5, 0], [0, 5]])) == ""
    half = scores([[10, 0], [2, 0]])
    shared = judged(z=[[5, 1], [5, 9]])
    shared["scores"] |= {f"a-{place}": {"val": half, "domain": "a", "images": 12} for place in range(2)}
    assert predicts_one_class(shared) == "class 0 on a"  # 24 samples of two clients
    told = run_warnings({("fedavg", "z", 0): some, ("moon", "z", 1): everywhere, ("moon", "y", 1): everywhere})
    assert "fedavg, z unseen, seed 0 (class 0 on a); moon, z unseen, seed 1 (class 0 on every domain)." in told[-1]


def test_sites_of_several_runs_are_told_once_with_their_fewest_samples():
    runs = {}
    for seed, matrix in enumerate(([[10, 2], [0, 0]], [[4, 1], [2, 1]])):
        runs["fedavg", "z", seed] = line(
            "fedavg", "z", seed, 0, 1, {"a": scores(matrix), "z": scores([[9, 1], [1, 9]])}
        )
    (told,) = run_warnings(runs)  # the second seed has samples of both classes
    assert told.startswith("fewer than 20 validation samples: a 8.")
    few, alone = run_warnings({("fedavg", "z", 0): runs["fedavg", "z", 0]})
    assert "a 12." in few and alone.startswith("evaluated samples of one class only: a (class 0).")


def test_the_majority_class_rate_is_that_of_the_most_frequent_class():
    assert (
        majority_rate([30, 10]) == pytest.approx(0.75) and majority_rate([]) is None and majority_rate([0, 0]) is None
    )


def test_warnings_fit_a_terminal():
    lines = wrap_warnings(["x" * 30 + " " + "word " * 40, "short"])
    assert all(len(one) <= 80 for one in lines) and lines[0].startswith("warning: x") and lines[-1] == "warning: short"
    assert all(one.startswith("  ") for one in lines[1:-1])


def test_a_table_of_accuracies_ends_with_the_majority_class():
    lines = [
        line("fedavg", "a", 0, 0, 1, {"a": scores([[30, 0], [5, 5]]), "b": scores([[9, 1], [1, 9]])}),
        line("fedavg", "b", 0, 0, 1, {"a": scores([[30, 0], [5, 5]]), "b": scores([[10, 2], [1, 7]])}),
    ]
    found = table.tabulate(lines)
    assert table.rows(found)[-1] == ["majority class", "75.0", "60.0", "67.5"]  # 30 of 40, 12 of 20
    assert "| majority class | 75.0 | 60.0 | 67.5 |" in layout.markdown(table.rows(found), found.caption)
    assert len(table.rows(table.tabulate(lines, metric="balanced_accuracy"))) == 2
    for splits in lines[1]["scores"].values():
        for told in splits.values():
            del told["confusion"]
    assert table.rows(table.tabulate(lines))[-1] == ["majority class", "75.0", "-", "-"]
    old = [line("fedavg", "a", 0, 0, 1, {"a": 0.5, "b": 0.5})]
    assert [row[0] for row in table.rows(table.tabulate(old))] == ["method", "fedavg"]


def test_a_paper_beside_the_table_comes_before_the_majority_class():
    domains = ("art_painting", "cartoon", "photo", "sketch")
    lines = [
        line("fedavg", target, 0, 0, 1, {name: scores([[30, 0], [5, 5]]) for name in domains}) for target in domains
    ]
    rows = paper_comparison.rows(paper_comparison.compare_with_paper(table.tabulate(lines), "ga/table1_pacs"))
    assert rows[-1][0] == "majority class" and set(rows[-1][1:]) == {"75.0"} and len({len(row) for row in rows}) == 1
