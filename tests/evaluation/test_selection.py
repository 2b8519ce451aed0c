"""The selected round is the best on source validation, and no small site decides alone."""

import csv
import json
import random
from dataclasses import replace

import pytest
import torch

from fedbeyond.cli import main
from fedbeyond.errors import ConfigError
from fedbeyond.evaluation.selection import DomainScore, groups, pooled_mean, select_round, selection_score
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.export.export import CARD, export
from fedbeyond.report import table
from fedbeyond.spec import format_value


def client(accuracy, images=100, loss=1.0, **more):
    return {"val": {"accuracy": accuracy, "loss": loss, **more}, "images": images}


def run(*rounds):
    """The lines of a run, whose rounds are clients by name."""
    return [
        {"method": "fedavg", "target": "z", "seed": 0, "round": number, "rounds": len(rounds), "setting": "a",
         "scores": scores | {"z": {"test": {"accuracy": 0.5, "loss": 1.0}}}}
        for number, scores in enumerate(rounds)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        ({"a": 24, "b": 20, "c": 22, "e": 1, "f": 6}, [["e", "f", "b"], ["c"], ["a"]]),  # 7 are too few: b joins
        ({"a": 50, "s": 12, "t": 9}, [["t", "s"], ["a"]]),  # 21 are enough
        ({"s": 3, "t": 4}, [["s", "t"]]),  # nobody is left to join
        ({"b": 20, "a": 20}, [["a"], ["b"]]),
        ({"d": 30, "c": 30, "e": 19}, [["e", "c"], ["d"]]),  # of equals, the first by name
    ],
)
def test_domains_with_fewer_than_20_samples_are_pooled(samples, want):
    assert groups(samples) == want


def test_groups_count_equally_and_domains_in_a_group_by_their_samples():
    domains = {"a": DomainScore(0.5, 2.0, 40), "s": DomainScore(1.0, 0.5, 5), "t": DomainScore(0.2, 1.5, 15)}
    value, loss = pooled_mean(domains)
    assert value == pytest.approx((0.5 + (5 * 1.0 + 15 * 0.2) / 20) / 2)  # 0.45; counted equally: 0.567
    assert loss == pytest.approx((2.0 + (5 * 0.5 + 15 * 1.5) / 20) / 2)


def test_one_validation_sample_does_not_choose_a_constant_model():
    constant = {"a": client(0.6, 50), "b": client(0.6, 50), "e": client(1.0, 1)}
    good = {"a": client(0.75, 50), "b": client(0.75, 50), "e": client(0.0, 1)}
    lines = run(constant, good)
    assert select_round(lines) is lines[1]  # unweighted means: 0.733 and 0.5
    assert selection_score(lines[1]) == pytest.approx((0.75 * 50 / 51 + 0.75) / 2)  # e joins a


def test_clients_of_one_domain_are_counted_together_before_it_is_called_small():
    half = client(1.0, 10) | {"domain": "a"}
    lines = run({"a-0": half, "a-1": half, "b": client(0.5, 80)})
    assert selection_score(lines[0]) == pytest.approx(0.75)  # 20 samples: a domain of its own


def test_ties_go_to_the_lower_loss_and_then_to_the_later_round():
    lines = run({"a": client(0.8, loss=0.9)}, {"a": client(0.8, loss=0.4)}, {"a": client(0.8, loss=0.5)})
    assert select_round(lines) is lines[1]
    lines = run({"a": client(0.8)}, {"a": client(0.8)}, {"a": client(0.7, loss=0.1)})
    assert select_round(lines) is lines[1]
    lines = run({"a": client(0.8, loss=0.9)}, {"a": client(0.8, loss=float("nan"))})
    assert select_round(lines) is lines[0]


def test_accuracies_that_differ_by_rounding_alone_are_a_tie():
    def share(right):
        return float(torch.tensor(right) / 50)

    lines = run(
        {"a": client(share(5), 50, loss=0.5), "b": client(share(15), 50, loss=0.5)},
        {"a": client(share(10), 50), "b": client(share(10), 50)},
    )
    assert sum(lines[0]["scores"][name]["val"]["accuracy"] for name in "ab") != 2 * share(10)  # float32
    assert select_round(lines) is lines[0] and select_round(lines[::-1]) is lines[0]


def test_the_loss_of_a_tie_is_pooled_as_the_accuracy_is():
    lines = run(
        {"a": client(0.8, 99, loss=0.5), "e": client(0.8, 1, loss=9.0)},  # 0.585 by samples, 4.75 counted equally
        {"a": client(0.8, 99, loss=0.6), "e": client(0.8, 1, loss=0.6)},
    )
    assert select_round(lines) is lines[0]


def test_a_small_domain_that_was_away_keeps_its_last_result_in_the_pool():
    lines = run(
        {"a": client(0.5, 30), "s": client(0.9, 10), "t": client(0.1, 10)},
        {"a": client(0.6, 30), "t": client(0.3, 10)},  # (0.6 + (0.9 + 0.3) / 2) / 2 = 0.6
        {"a": client(0.65, 30), "s": client(0.5, 10), "t": client(0.5, 10)},  # (0.65 + 0.5) / 2 = 0.575
    )
    assert select_round(lines) is lines[1]


def test_a_late_domain_counts_with_its_first_result_in_the_rounds_before():
    late = client(1.0, 30)
    lines = run({"a": client(0.8, 30)}, {"a": client(0.9, 30)}, {"a": client(0.1, 30), "c": late})
    assert select_round(lines) is lines[1]  # c is 1.0 in all three
    hard = [client(0.1, 30), client(0.6, 30)]
    lines = run(
        {"a": client(0.9, 30)},  # (0.9 + 0.1) / 2
        {"a": client(0.8, 30), "c": hard[0]},  # 0.45
        {"a": client(0.7, 30), "c": hard[1]},  # 0.65: the round before c came does not look best
    )
    assert [select_round(lines[:count]) for count in (1, 2, 3)] == [lines[0], lines[0], lines[2]]


def test_lines_of_older_versions_count_every_domain_equally_unless_they_hold_its_counts():
    old = {"a": {"val": {"accuracy": 0.4, "loss": 1.0}}, "b": {"val": {"accuracy": 0.8, "loss": 1.0}}}
    assert selection_score({"scores": old}) == pytest.approx(0.6)
    counted = {"a": {"val": {"accuracy": 0.5, "loss": 1.0, "confusion": [[1, 1], [0, 0]]}}, "b": old["b"]}
    assert selection_score({"scores": counted}) == pytest.approx(
        (2 * 0.5 + 20 * 0.8) / 22
    )  # not known: as many as needed


def mixed(right, wrong, healthy=0, missed=0):
    """A client with sick samples found and missed, and healthy ones found and missed."""
    confusion = [[healthy, missed], [wrong, right]]
    recalls = [row[place] / sum(row) for place, row in enumerate(confusion) if sum(row)]
    samples = healthy + missed + right + wrong
    shares = {"accuracy": (right + healthy) / samples, "balanced_accuracy": sum(recalls) / len(recalls)}
    return {"val": shares | {"loss": 1.0, "confusion": confusion}, "images": samples}


def test_a_constant_model_is_not_chosen_by_balanced_accuracy_though_most_sites_have_its_class_alone():
    """Three sites with 30 healthy samples each, and one with 80 healthy and 20 sick."""
    constant = {name: mixed(0, 0, healthy=30) for name in "abc"} | {"d": mixed(0, 20, healthy=80)}
    useful = {name: mixed(0, 0, healthy=24, missed=6) for name in "abc"} | {"d": mixed(16, 4, healthy=66, missed=14)}
    lines = run(constant, useful)
    assert select_round(lines, "balanced_accuracy") is lines[1] and select_round(lines) is lines[0]
    assert selection_score(lines[0], "balanced_accuracy") == pytest.approx(0.5)
    # healthy 24 * 3 + 66 of 170, sick 16 of 20
    assert selection_score(lines[1], "balanced_accuracy") == pytest.approx((138 / 170 + 16 / 20) / 2)


def test_balanced_accuracy_of_a_domain_is_that_of_its_clients_samples_together():
    """Each client has one class: the recall of a client is no balanced accuracy."""
    clients = {"a-0": mixed(0, 0, healthy=72), "a-1": mixed(0, 28)}
    lines = run({name: one | {"domain": "a"} for name, one in clients.items()})
    assert selection_score(lines[0], "balanced_accuracy") == pytest.approx(0.5)
    assert selection_score(lines[0]) == pytest.approx(0.72)


def test_balanced_accuracy_is_a_rule_of_its_own_and_the_rule_of_runs_that_name_it():
    lines = run({"a": client(0.9, balanced_accuracy=0.5)}, {"a": client(0.8, balanced_accuracy=0.7)})
    assert table.tabulate(lines).picked["fedavg", "z", 0] is lines[0]
    balanced = table.tabulate(lines, "source-validation-balanced")
    assert balanced.picked["fedavg", "z", 0] is lines[1] and "source-validation balanced accuracy" in balanced.caption
    named = [line | {"select": "source-validation-balanced"} for line in lines]
    assert table.tabulate(named) == balanced._replace(
        picked={("fedavg", "z", 0): named[1]}, runs={("fedavg", "z", 0): named}
    )
    assert table.tabulate(named, "source-validation").picked["fedavg", "z", 0] is named[0]
    other = [line | {"seed": 1} for line in lines]
    with pytest.raises(ConfigError, match=r"differ in train.select \(source-validation, .*choose one with select"):
        table.tabulate([*named, *other])
    with pytest.raises(ConfigError, match=r"hold no balanced_accuracy for validation, which the selection rule needs"):
        table.tabulate(run({"a": client(0.9)}), "source-validation-balanced")


def hospitals(path, seed=0):
    """Write visits to six hospitals: one has three patients, one has patients of one class."""
    rng = random.Random(seed)
    rows = ["hospital,x1,x2,x3,x4,x5,x6,ill"]
    for name, count in {"a": 200, "b": 200, "c": 240, "d": 220, "e": 3, "f": 60}.items():
        for place in range(count):
            ill = name not in "ef" and rng.random() < 0.25
            values = [[0.7, -1.0, 1.0][place]] * 6 if name == "e" else [rng.gauss(0.9 * ill, 1) for _ in range(6)]
            rows.append(",".join([name, *(f"{value:.3f}" for value in values), "yes" if ill else "no"]))
    path.write_text("\n".join(rows) + "\n")
    data = f"table(path={format_value(str(path))}, site=hospital, label=ill)"
    settings = {"network": "mlp(hidden=[16])", "optimizer": "sgd(lr=0.03, momentum=0.9)"}
    return Config(target="a", data=data, train=Train(rounds=6, batch_size=16), **settings)


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """A run on the six hospitals, as the command line makes it."""
    folder = tmp_path_factory.mktemp("six")
    config = hospitals(folder / "visits.csv")
    toml = [f"{key} = {json.dumps(getattr(config, key))}" for key in ("target", "data", "network", "optimizer")]
    (folder / "six.toml").write_text("\n".join([*toml, "[train]", "rounds = 6", "batch_size = 16"]) + "\n")
    return folder


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr("sys.argv", ["fedbeyond", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    return call


def flat(text):
    return " ".join(text.split())


def test_the_model_of_six_hospitals_is_not_the_constant_one_that_an_unweighted_mean_selects(six, call, tmp_path):
    said = call("run", six / "six.toml", "--out", six / "runs")
    place = six / "runs" / "fedavg" / "a" / "seed-0"
    lines = run_folder.lines(place)
    assert [lines[0]["scores"][name]["images"] for name in "bcdef"] == [20, 24, 22, 1, 6]

    def unweighted(line):
        accuracies = [splits["val"]["accuracy"] for splits in line["scores"].values() if "val" in splits]
        return sum(accuracies) / len(accuracies)

    misled = max(lines, key=unweighted)  # what was selected before
    assert misled["round"] == 0 and misled["scores"]["a"]["test"]["recall"] == [1.0, 0.0]
    call("export", place, "--out", tmp_path / "model")
    call("predict", tmp_path / "model", six / "visits.csv", "--out", tmp_path / "predictions.csv")
    answers = [row["class"] for row in csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines())]
    assert len(answers) == 923 and 0.05 < answers.count("yes") / len(answers) < 0.5
    card = json.loads((tmp_path / "model" / CARD).read_text())
    assert card["round"] > 1 and min(card["scores"]["a"]["test"]["recall"]) > 0.5
    rates = card["majority_class"]
    assert card["scores"]["a"]["test"]["accuracy"] > rates["a"] + 0.1 and rates["f"] == 1.0
    own = (23 / 27 + 16 / 24 + 14 / 22) / 3  # healthy: 16 of 20, 1 of 1 and 6 of 6 pooled; 16 of 24; 14 of 22
    assert f"  majority class                 own domains {own:6.1%}   unseen  76.5%\n" in said


def test_warnings_are_the_same_in_check_run_report_and_the_card(six, call, tmp_path):
    few = "warning: fewer than 20 validation samples: e 1, f 6. Such domains are pooled\n  when a round"
    plan = call("check", six / "six.toml")
    assert "  f                    54 / 6   or unseen, all 60   majority class 100%\n" in plan
    assert few in plan and "warning: fewer than 20 training samples: e 2." in plan
    assert "samples of one class only: e ('no'), f ('no')." in plan
    said = call("run", six / "six.toml", "--out", six / "runs")
    assert few in said and "evaluated samples of one class only: f (class 0)." in said
    assert few in call("report", six / "runs") and "% " + few[:60] in call("report", six / "runs", "--format", "latex")
    assert "\n- **warning:** fewer than 20 validation samples: e 1, f 6." in call(
        "report", six / "runs", "--format", "markdown"
    )
    assert "warning" not in call("report", six / "runs", "--format", "csv")
    call("report", six / "runs", "--format", "html", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<strong>Warning:</strong> fewer than 20 validation samples: e 1, f 6." in page
    exported = call("export", six / "runs" / "fedavg" / "a" / "seed-0", "--out", tmp_path / "model")
    warnings = json.loads((tmp_path / "model" / CARD).read_text())["warnings"]
    assert few in exported and len(warnings) == 3 and warnings[1].startswith("fewer than 20 validation samples: e 1")
    for text in (plan, said, exported):
        assert all(len(line) <= 80 for line in text.partition("warning:")[2].splitlines() if line.startswith("  "))


def test_a_constant_model_is_warned_about_wherever_it_is_seen(six, call, tmp_path):
    said = call("run", six / "six.toml", "--out", tmp_path, "--set", "train.rounds=1")
    assert "one class for all samples of a domain: fedavg, a unseen, seed 0 (class 0 on every domain)." in flat(said)
    exported = call("export", tmp_path / "fedavg" / "a" / "seed-0", "--out", tmp_path / "model")
    assert "('no' on every domain). Accuracy there is the share of that class" in flat(exported)
    assert "predicts one class" in json.loads((tmp_path / "model" / CARD).read_text())["warnings"][-1]
    assert "predicts one class" in call("report", tmp_path)


def test_the_key_select_decides_which_model_is_saved_and_exported(tmp_path):
    config = hospitals(tmp_path / "visits.csv", seed=4)
    balanced = replace(config, train=replace(config.train, select="source-validation-balanced"))
    assert balanced.setting() == config.setting()
    assert balanced.digest() != config.digest()
    lines = list(runner.run(runner.prepare(config), tmp_path / "one"))
    others = list(runner.run(runner.prepare(balanced), tmp_path / "two"))
    assert [line | {"select": "source-validation-balanced"} for line in lines] == others
    best, other = select_round(lines)["round"], select_round(lines, "balanced_accuracy")["round"]
    assert best != other  # or this shows nothing
    assert checkpoint.load(tmp_path / "one" / "best.safetensors")[1] == {"round": best}
    assert checkpoint.load(tmp_path / "two" / "best.safetensors")[1] == {"round": other}
    card = json.loads((export(tmp_path / "two", tmp_path / "model") / CARD).read_text())
    assert card["round"] == other + 1
    with pytest.raises(
        ConfigError, match=r"select source-validation: the model is not kept in this run; give source-val\S+-b"
    ):
        export(tmp_path / "two", tmp_path / "model", select="source-validation")


def test_the_card_describes_the_model_that_was_saved_even_if_another_round_would_be_selected_now(six, call, tmp_path):
    call("run", six / "six.toml", "--out", tmp_path, "--set", "train.rounds=2")
    place = tmp_path / "fedavg" / "a" / "seed-0"
    model, notes = checkpoint.load(place / "best.safetensors")
    assert notes == {"round": 1}
    checkpoint.save(place / "best.safetensors", model, round=0)
    card = json.loads((export(place, tmp_path / "model") / CARD).read_text())
    first = run_folder.lines(place)[0]["scores"]["a"]["test"]
    assert card["round"] == 1 and card["scores"]["a"]["test"] == first
