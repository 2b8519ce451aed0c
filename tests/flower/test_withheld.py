"""A run whose sites withhold their scores ends with its last round; reports, the watch page and exports say so."""

import json
from dataclasses import replace

import pytest

from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.run_state import Run, format_scores
from fedbeyond.export.export import CARD, export
from fedbeyond.flower import app as flower
from fedbeyond.flower import enrolment
from fedbeyond.flower.messages import EVALUATE, Message
from fedbeyond.report import table
from fedbeyond.report.write import write_report
from support.grids import Nodes

flower.PAUSE = 0.0
SITES, GUEST = ("cartoon", "painting", "photo"), "sketch"


@pytest.fixture
def config(small):
    train = Train(rounds=3, batch_size=8, batchnorm="average")
    return Config(method="fedavg+dp(noise=20)", train=train, **small)


def federation(folder, policies, failing=()):
    """Nodes of the built-in data, each with its policy; those that fail evaluate nothing."""

    def answer(context, message):
        if message.subject == EVALUATE and context.node_config["site"] in failing:
            return Message("failure", {"reason": "out of memory"})
        return flower.at_site(context, message)

    app, grid = flower.client_app(answer), {}
    for place, site in enumerate((*SITES, GUEST)):
        own = {"site": site, "data": "styles(share=0.05)", "folder": str(folder / site / "state"), "secret": ""}
        (folder / site).mkdir(parents=True, exist_ok=True)
        (folder / site / "policy.toml").write_text(policies.get(site, ""))
        own |= {"policy": str(folder / site / "policy.toml"), "role": "guest" if site == GUEST else "train"}
        grid[100 - place] = (app, own)
    return Nodes(grid)


def lines_of(config, grid, home):
    return runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 5.0), SITES, (GUEST,), home=home), home)


LIMITED = dict.fromkeys(SITES, "max_epsilon = 8")


def test_a_run_without_scores_selects_its_last_round(config, tmp_path, capsys):
    home = tmp_path / "run"
    lines = list(lines_of(config, federation(tmp_path / "sites", LIMITED), home))
    assert all(set(line["withheld"]) == set(SITES) and not line["rejected"] for line in lines)
    assert all(set(line["scores"]) == {GUEST} and line["diagnostics"]["epsilon"] < 8 for line in lines)
    assert checkpoint.load(home / run_folder.BEST)[1]["round"] == 2
    assert "cartoon withholds its scores" in flower.format_line(lines[-1])
    assert format_scores(lines[-1]).startswith("own -, unseen ")


def test_a_report_says_that_there_are_no_validation_scores(config, tmp_path):
    home = tmp_path / "run"
    lines = list(lines_of(config, federation(tmp_path / "sites", LIMITED), home))
    made = table.tabulate(lines)
    assert [line["round"] for line in made.picked.values()] == [2]
    assert "Accuracy on the unseen domain (%), no validation scores: last round, one seed" in table.text(made)
    others = [{**line, "seed": 1, "scores": {**line["scores"], "photo": {"val": {"accuracy": 1.0}}}} for line in lines]
    mixed = table.tabulate([*lines, *others])
    assert "source-validation accuracy (1 of 2: no validation scores: last round)" in mixed.caption
    assert "no validation scores" not in table.tabulate(lines, "last").selection
    write_report([home], None, "html", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "no validation scores: last round" in page and "policies withhold them" in page


def test_a_card_says_that_there_are_no_validation_scores(config, tmp_path):
    home = tmp_path / "run"
    list(lines_of(config, federation(tmp_path / "sites", LIMITED), home))
    card = json.loads((export(home, tmp_path / "model") / CARD).read_text())
    assert card["round"] == 3 and any(text.startswith("no validation scores: ") for text in card["warnings"])


def test_a_stopped_run_without_scores_is_resumed(config, tmp_path):
    grid, home = federation(tmp_path / "sites", LIMITED), tmp_path / "run"
    next(lines := lines_of(config, grid, home))
    lines.close()
    assert [line["round"] for line in lines_of(config, grid, home)] == [1, 2]
    assert checkpoint.load(home / run_folder.BEST)[1]["round"] == 2


def test_guests_may_withhold_theirs_too(config, tmp_path):
    """Then no table can be made, and watching the run still works."""
    home = tmp_path / "run"
    lines = list(lines_of(config, federation(tmp_path / "sites", LIMITED | {GUEST: "scores = false"}), home))
    assert lines[-1]["scores"] == {} and set(lines[-1]["withheld"]) == {*SITES, GUEST}
    watched = Run(home, (config.method, GUEST, 0), 3)
    watched.read()
    assert watched.state() == ("done", "") and watched.scores() == "own -, unseen -"
    with pytest.raises(ConfigError, match="or a guest did not evaluate that round or withheld its scores"):
        table.text(table.tabulate(lines))


def test_rounds_with_scores_are_preferred_to_later_ones_without(config, tmp_path):
    config, home = replace(config, method="fedavg"), tmp_path / "run"
    policies = dict.fromkeys(SITES, "max_evaluations = 2")
    lines = list(lines_of(config, federation(tmp_path / "sites", policies), home))
    assert [set(line["scores"]) - {GUEST} for line in lines] == [set(SITES), set(SITES), set()]
    assert checkpoint.load(home / run_folder.BEST)[1]["round"] < 2
    assert "chosen by source-validation accuracy, one seed" in table.tabulate(lines).caption


def test_rounded_scores_are_reported_like_others(config, tmp_path):
    config, home = replace(config, method="fedavg"), tmp_path / "run"
    policies = dict.fromkeys((*SITES, GUEST), "round_scores = 0")
    lines = list(lines_of(config, federation(tmp_path / "sites", policies), home))
    assert not any(line["rejected"] for line in lines) and set(lines[-1]["scores"]) == {*SITES, GUEST}
    assert all(scores["val"]["accuracy"] in (0, 1) for scores in lines[-1]["scores"].values() if "val" in scores)
    for style, metric in (("html", "accuracy"), ("csv", "auc"), ("csv", "balanced_accuracy")):
        write_report([home], None, style, tmp_path / "report", metric=metric)
    balanced = replace(config, train=replace(config.train, select="source-validation-balanced"), seed=1)
    assert len(list(lines_of(balanced, federation(tmp_path / "sites", policies), tmp_path / "balanced"))) == 3


def test_a_site_that_fails_is_a_failure_beside_those_that_withhold(config, tmp_path):
    grid = federation(tmp_path / "sites", LIMITED, failing=("photo",))
    line = list(lines_of(config, grid, tmp_path / "run"))[-1]
    assert set(line["withheld"]) == {"cartoon", "painting"}
    assert [(each["site"], each["reason"]) for each in line["rejected"]] == [("photo", "out of memory")]


def test_a_run_whose_sites_all_fail_to_evaluate_ends(config, tmp_path):
    grid = federation(tmp_path / "sites", {}, failing=SITES)
    with pytest.raises(FederationError, match=r"no site could validate the model \(cartoon: out of memory"):
        list(lines_of(config, grid, tmp_path / "run"))
