"""Figures from result lines: what they draw is what the lines say."""

from statistics import mean, stdev

import pytest

from fedbeyond.report import classes, curves, gallery, sensitivity, site_weights, table
from fedbeyond.report.figure import INK, PALETTE, SOFT
from support.result_lines import TARGETS, bench, line, scores


def records(figure):
    head, *body = figure.data
    return [dict(zip(head, row, strict=True)) for row in body]


def drawn(lines, baseline="fedavg"):
    return {figure.name: figure for figure in gallery.figures(table.tabulate(lines), baseline)}


LINES = bench(["fedavg", "fedavg+ga", "scaffold"], seeds=(0, 1, 2))


def test_a_curve_is_the_mean_over_seeds_of_what_the_lines_hold():
    figure = drawn(LINES)["rounds"]
    found = {(r["method"], r["target"], int(r["round"])): r for r in records(figure)}
    assert len(found) == 3 * 4 * 4
    for (method, target, played), told in found.items():
        values = [
            100 * one["scores"][target]["test"]["accuracy"]
            for one in LINES
            if (one["method"], one["target"], one["round"] + 1) == (method, target, played)
        ]
        assert len(values) == int(told["seeds"]) == 3
        assert float(told["accuracy"]) == pytest.approx(mean(values), abs=1e-4)
        assert float(told["std"]) == pytest.approx(stdev(values), abs=1e-4)
    (first, *_) = figure.picture.axes
    assert [axis.get_title() for axis in figure.picture.axes] == [f"{target} unseen" for target in TARGETS]
    (baseline,) = [curve for curve in first.lines if curve.get_label() == "fedavg"]
    assert baseline.get_color() == INK and list(baseline.get_xdata()) == [1, 2, 3, 4]
    heights = [float(found["fedavg", "cartoon", played]["accuracy"]) for played in (1, 2, 3, 4)]
    assert list(baseline.get_ydata()) == pytest.approx(heights, abs=1e-4)
    assert len(first.collections) == 3  # a band for each


def test_the_chosen_rounds_are_marked_on_curves_and_in_their_numbers():
    tests = {0: (0.2, 0.6, 0.4), 1: (0.3, 0.5, 0.7)}  # of seeds, by round; validation is best in round 2, or in 3
    lines = [
        line("fedavg", "a", seed, number, 3, {"a": value, "b": 0.9 if number == 1 + seed else 0.1})
        for seed, values in tests.items()
        for number, value in enumerate(values)
    ]
    figure = curves.over_rounds(table.tabulate(lines), "fedavg")
    (curve,) = figure.picture.axes[0].lines
    assert curve.get_markevery() == [1, 2] and "Rings: the chosen rounds" in figure.caption
    assert [told["chosen by"] for told in records(figure)] == ["0", "1", "1"]
    assert figure.hover[curve.get_gid()].texts[1] == "fedavg, round 2: 55.0 ± 7.1 (2 seeds); chosen by 1 of 2 seeds"
    points = [(number, 0.0, 0.0, 1) for number in range(1, 501)]
    assert {8, 500} <= {point[0] for point in curves.thinned(points, {8})} and (8, 0.0, 0.0, 1) not in curves.thinned(
        points
    )


def test_confusion_matrices_are_side_by_side_and_a_domain_without_runs_stays_empty():
    pairs = [("fedavg", "a"), ("fedavg", "b"), ("fedavg", "c"), ("moon", "b"), ("moon", "a")]
    lines = [line(method, target, 0, 0, 1, {target: scores([[4, 0], [1, 3]]), "q": 0.5}) for method, target in pairs]
    figure = classes.confusion(table.tabulate(lines), "moon", ["cat", "dog"])
    width, height = figure.picture.get_size_inches()
    titles = [axis.get_title() for axis in figure.picture.axes]
    assert len(titles) == 5 and width > height and titles[0] == "a unseen\nfedavg"
    many = scores([[int(i == j) for j in range(65)] for i in range(65)])
    figure = classes.confusion(table.tabulate([line("fedavg", "a", 0, 0, 1, {"a": many, "q": 0.5})]), "fedavg")
    assert len(figure.picture.axes[0].get_xticks()) <= classes.MAX_TICKS


def test_of_many_methods_the_best_and_the_baseline_have_colours():
    many = bench([f"fedprox(mu={i})" for i in range(40)] + ["fedavg"], targets=["photo"], seeds=(0,), rounds=2)
    found = table.tabulate(many)
    figure = curves.over_rounds(found, "fedavg")
    (axis,) = figure.picture.axes
    grey = [curve for curve in axis.lines if curve.get_color() == SOFT]
    best = set(table.best_first(found)[: curves.COLOURED]) - {"fedavg"}
    assert {curve.get_label() for curve in axis.lines} - {c.get_label() for c in grey} == best | {"fedavg"}
    assert len(grey) == 41 - len(best) - 1 and f"the other {len(grey)} methods" in figure.caption
    assert len(records(figure)) == 41 * 2  # the numbers of all are there
    assert {part.line for part in figure.hover.values()} == best | {"fedavg", curves.OTHERS}


def test_a_long_run_is_drawn_with_as_many_points_as_can_be_seen_and_written_whole():
    long = [line("fedavg", "a", 0, i, 500, {"a": i / 500, "b": 0.5}) for i in range(500)]
    figure = curves.over_rounds(table.tabulate(long), "fedavg")
    played = list(figure.picture.axes[0].lines[0].get_xdata())
    assert len(played) == curves.MAX_POINTS and (played[0], played[-1]) == (1, 500)
    assert len(records(figure)) == 500


def test_the_best_come_first_and_less_is_better_of_errors():
    made = [
        line(method, "a", 0, 0, 1, {"a": {"accuracy": value, "calibration_error": value}, "b": 0.5})
        for method, value in (("fedavg", 0.5), ("moon", 0.9), ("fedsr", 0.7))
    ]
    assert table.best_first(table.tabulate(made)) == ["moon", "fedsr", "fedavg"]
    errors = table.tabulate(made, metric="calibration_error")
    assert table.best_first(errors) == ["fedavg", "fedsr", "moon"]


def test_differences_are_drawn_with_their_intervals():
    figure = drawn(LINES)["differences"]
    for told in records(figure):
        found = table.tabulate(LINES)
        gaps = [
            found.score(told["method"], target, seed) - found.score("fedavg", target, seed)
            for target in TARGETS
            for seed in (0, 1, 2)
        ]
        half = 2.200985 * stdev(gaps) / 12**0.5  # Student's t with 11 degrees of freedom, 97.5 %
        assert float(told["points"]) == pytest.approx(mean(gaps), abs=1e-3)
        assert float(told["high"]) == pytest.approx(mean(gaps) + half, abs=1e-3)


def test_weights_and_gaps_are_those_of_the_lines():
    figures = drawn(LINES)
    for name, key in (("weights", "weight"), ("ga-gaps", "gap")):
        found = records(figures[name])
        assert {told["method"] for told in found} == {"fedavg+ga"}  # the weights of the others stay
        for told in found:
            values = [
                (one["weights"] if key == "weight" else one["diagnostics"]["gaps"])[told["site"]]
                for one in LINES
                if (one["method"], one["target"], str(one["round"] + 1)) == ("fedavg+ga", told["target"], told["round"])
            ]
            assert float(told[key]) == pytest.approx(mean(values), abs=1e-6) and told["seeds"] == "3"
    assert {told["round"] for told in records(figures["ga-gaps"])} == {"2", "3", "4"}  # the first has none


def test_a_site_that_was_not_asked_does_not_make_weights_move():
    even = {"x": 0.5, "y": 0.5}
    asked = [{"weights": even}, {"weights": {"x": 1.0}}, {"weights": even}]
    assert not site_weights.weights_change(asked) and site_weights.weights_change(
        [*asked, {"weights": {"x": 0.6, "y": 0.4}}]
    )


def gap_lines(method, first, second):
    """Two runs of one round: a is unseen, then b; c takes part in both."""
    tells = [("a", {"b": 0.1, "c": first}), ("b", {"a": 0.3, "c": second})]
    return [
        line(method, target, 0, 0, 1, {"a": 0.5, "b": 0.5, "c": 0.5}, diagnostics={"gaps": gaps})
        for target, gaps in tells
    ]


def test_bars_of_gaps_are_means_and_deviations_of_each_source_domain_with_ga_and_with_fixed_weights():
    lines = gap_lines("fedavg+ga", 0.2, 0.4) + gap_lines("fedavg+ga(step=0)", 0.5, 0.9)
    figure = site_weights.gap_bars(table.tabulate(lines))
    found = {(told["weights"], told["source"]): told for told in records(figure)}
    assert found["GA's", "c"]["mean gap"] == "0.300000" and found["GA's", "c"]["std of gap"] == "0.141421"
    assert found["fixed", "c"]["mean gap"] == "0.700000" and found["fixed", "c"]["std of gap"] == "0.282843"
    assert found["fixed", "a"]["mean gap"] == "0.300000" and found["fixed", "a"]["values"] == "1"
    means, _ = figure.picture.axes
    heights = [[bar.get_height() for bar in bars] for bars in means.containers]
    assert heights == [pytest.approx([0.3, 0.1, 0.3]), pytest.approx([0.3, 0.1, 0.7])]
    assert "with and without" in figure.title and "No run has" not in figure.caption


def test_bars_of_gaps_say_how_to_get_those_without_ga():
    lines = gap_lines("fedavg+ga(step=0.2)+rc", 0.2, 0.4)
    figure = site_weights.gap_bars(table.tabulate(lines))
    assert "run fedavg+ga(step=0)+rc, " in figure.caption and "without" not in figure.title


def test_without_ga_there_is_no_figure_of_it():
    assert not {"weights", "ga-gaps", "gap-bars"} & set(drawn(bench(["fedavg", "scaffold"])))


def test_an_option_that_runs_differ_in_is_found_with_its_default():
    (found,) = sensitivity.sweeps(("fedprox(mu=1)", "fedavg", "fedprox", "fedprox(mu=0.1)+ga", "fedprox(mu=0.1)"))
    assert (found.part, found.option, found.rest) == ("fedprox", "mu", "fedprox")
    assert found.methods == {"0.01": "fedprox", "0.1": "fedprox(mu=0.1)", "1": "fedprox(mu=1)"}


def test_an_option_of_a_wrapper_is_found_and_a_preset_is_what_it_sets():
    (found,) = sensitivity.sweeps(("fedavg+ga(step=0.2)", "fedavg+ga"))
    assert (found.part, found.rest) == ("ga", "fedavg+ga") and list(found.methods) == ["0.05", "0.2"]
    (norm,) = sensitivity.sweeps(("fedavg+ga:paper", "fedavg+ga"))
    assert norm.option == "norm" and norm.methods == {"max": "fedavg+ga:paper", "maxabs": "fedavg+ga"}


@pytest.mark.parametrize(
    "methods",
    [
        ("fedavg", "fedprox", "scaffold"),  # other methods
        ("fedavg+ga(step=0.2, decay=false)", "fedavg+ga"),  # two options at once
        ("fedprox(mu=0.1)", "fedprox(mu=1)+ga"),  # another wrapper too
        ("fedprox", "fedprox(mu=0.01)"),  # the same value, said and unsaid
        ("own(a=1)", "other(a=2)", "<no spelling", "a b"),
    ],
)
def test_runs_that_do_not_differ_in_one_option_alone_make_no_figure(methods):
    assert list(sensitivity.sweeps(methods)) == []


def test_options_of_methods_that_are_not_known_here_count_as_they_are_spelled():
    (found,) = sensitivity.sweeps(("own(b=1, a=1)", "own(a=2, b=1)", "own:small(a=3, b=1)"))
    assert found.option == "a" and found.methods == {"1": "own(b=1, a=1)", "2": "own(a=2, b=1)"}


def test_sensitivity_is_the_table_against_the_option():
    names = {"0": "fedprox(mu=0)", "0.01": "fedprox", "1": "fedprox(mu=1)"}
    lines = bench([*names.values(), "fedavg"])
    (figure,) = sensitivity.figures(table.tabulate(lines))
    found = table.tabulate(lines)
    assert figure.name == "sensitivity-fedprox-mu"
    for told in records(figure):
        method = names[told["mu"]]
        values = found.average(method) if told["target"] == "average" else found.scores(method, told["target"])
        assert told["method"] == method and float(told["accuracy"]) == pytest.approx(mean(values), abs=1e-4)
        assert float(told["std"]) == pytest.approx(stdev(values), abs=1e-4)
    (axis,) = figure.picture.axes
    assert axis.get_xscale() == "symlog" and [t.get_text() for t in axis.get_xticklabels()] == list(names)
    assert len(records(figure)) == 3 * 5


def test_of_many_options_those_with_the_most_values_are_drawn():
    switches = [f"fedavg+ga(step={step}, decay={decay}, center={center})"
                for step in (0.1, 0.2, 0.3) for decay in ("true", "false") for center in ("true", "false")]  # fmt: skip
    lines = bench(switches, targets=["photo"], seeds=[0], rounds=1)
    assert len(list(sensitivity.sweeps(table.tabulate(lines).methods))) == 4 + 6 + 6
    figures = sensitivity.figures(table.tabulate(lines))
    assert len(figures) == sensitivity.MAX_FIGURES and all("differ so in 16 ways" in one.caption for one in figures)
    assert [one.data[0][0] for one in figures[:4]] == ["step"] * 4


def test_the_unseen_domain_is_not_said_to_be_left_alone_by_the_oracle():
    told = {rule: curves.over_rounds(table.tabulate(LINES, rule), "fedavg") for rule in table.RULES}
    assert {rule: "not used to choose" in figure.caption for rule, figure in told.items()} == {
        "source-validation": True, "source-validation-balanced": True, "last": True, "oracle": False,
    }  # fmt: skip


def test_an_option_of_words_is_drawn_as_categories():
    lines = bench(["fedavg", "fedavg(weighting=uniform)"])
    (figure,) = sensitivity.figures(table.tabulate(lines))
    (axis,) = figure.picture.axes
    assert axis.get_xscale() == "linear" and [t.get_text() for t in axis.get_xticklabels()] == ["size", "uniform"]


def test_confusion_adds_seeds_up_and_recall_is_their_mean_in_the_chosen_round():
    early, first, second = [[0, 4], [4, 0]], [[3, 1], [0, 4]], [[2, 2], [1, 3]]
    rounds = {0: [early, first], 1: [early, second]}
    lines = [
        line("fedavg", "a", seed, number, 2, {"a": scores(matrix), "b": 0.1 + number})
        for seed, matrices in rounds.items()
        for number, matrix in enumerate(matrices)
    ]
    found = table.tabulate(lines)
    matrix = classes.confusion(found, "fedavg", ["cat", "dog"])
    counts = {(told["true class"], told["predicted"]): told["images"] for told in records(matrix)}
    assert counts == {("cat", "cat"): "5", ("cat", "dog"): "3", ("dog", "cat"): "1", ("dog", "dog"): "7"}
    words = {text.get_text() for text in matrix.picture.axes[0].texts}
    assert words == {"62", "38", "12", "88"}  # percent of 8: 62.5, 37.5, 12.5, 87.5, halves to even
    bars = {told["class"]: told for told in records(classes.recall(found, "fedavg", ["cat", "dog"]))}
    assert float(bars["cat"]["recall"]) == pytest.approx(62.5) and float(bars["dog"]["recall"]) == pytest.approx(87.5)
    assert float(bars["cat"]["std"]) == pytest.approx(17.6777, abs=1e-4)
    assert {told["true class"] for told in records(classes.confusion(found, "fedavg", ["cat"]))} == {"0", "1"}


def test_classes_are_shown_for_the_best_and_the_baseline():
    lines = bench(["fedavg", "scaffold", "moon"], seeds=(0,), images=100)
    assert {told["method"] for told in records(drawn(lines)["recall"])} == {"moon", "fedavg"}
    assert drawn(lines)["recall"].picture.axes[0].containers[0][0].get_facecolor()[:3] == pytest.approx(
        tuple(int(PALETTE[0][i : i + 2], 16) / 255 for i in (1, 3, 5))
    )


def test_a_class_without_images_has_no_bar():
    lines = [line("fedavg", "a", 0, 0, 1, {"a": scores([[4, 0], [0, 0]]), "b": 0.5})]
    bars = records(classes.recall(table.tabulate(lines), "fedavg"))
    assert [told["class"] for told in bars] == ["0"]


def test_a_method_without_runs_on_a_domain_has_no_bars_there():
    pairs = [("fedavg", "a"), ("fedavg", "b"), ("moon", "a")]
    lines = [line(method, target, 0, 0, 1, {target: scores([[4, 0], [1, 3]]), "q": 0.5}) for method, target in pairs]
    bars = records(classes.recall(table.tabulate(lines), "moon"))
    assert {(told["method"], told["target"]) for told in bars} == set(pairs)


def test_lines_of_an_older_version_have_fewer_figures():
    old = [
        {k: v for k, v in line(m, "a", s, n, 3, {"a": 0.5, "b": 0.4}).items() if k != "diagnostics"}
        for m in ("fedavg", "moon")
        for s in (0, 1)
        for n in range(3)
    ]
    assert set(drawn(old)) == {"rounds", "differences"}
    assert drawn([]) == {}
