"""A TOML file becomes frozen records, or an error that says what to write instead."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.experiment.config import Config, cells, load
from fedbeyond.spec import parse


def config(tmp_path: Path, text: str, *settings: str) -> Config:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load(path, settings)


def test_a_file_says_what_is_run(tmp_path):
    found = config(tmp_path, 'method = "fedprox(mu=0.1) + ga"\ntarget = "sketch"\n[train]\nrounds = 5\n')
    assert (found.method, found.target, found.train.rounds) == ("fedprox(mu=0.1)+ga", "sketch", 5)
    with pytest.raises(FrozenInstanceError):
        found.seed = 3


def test_a_table_is_another_way_to_spell_a_part(tmp_path):
    found = config(tmp_path, '[method]\nname = "fedprox+ga"\nmu = 0.1\n[method.ga]\npreset = "paper"\nstep = 0.2\n')
    assert found.method == "fedprox(mu=0.1)+ga:paper(step=0.2)"


def test_settings_reach_into_tables_and_spellings(tmp_path):
    settings = ("method.mu=0.5", "method.ga.step=0.3", "train.rounds=2", "optimizer.lr=0.1", "target=photo")
    found = config(tmp_path, 'method = "fedprox+ga"\n[train]\nepochs = 3\n', *settings)
    assert found.method == "fedprox(mu=0.5)+ga(step=0.3)"
    assert found.optimizer == "sgd(lr=0.1, momentum=0.9, weight_decay=0.0005)"
    assert (found.train.rounds, found.train.epochs, found.target) == (2, 3, "photo")


def test_settings_change_what_options_of_the_command_name():
    found = load(None, ["method.mu=1.0", "train.schedule.end=0.1", "train.schedule.name=cosine"], method="fedprox")
    assert found.method == "fedprox(mu=1.0)" and found.train.schedule == "cosine(end=0.1)"
    with pytest.raises(ConfigError, match="method is given twice, by --method fedprox and by --set method=fedavg"):
        load(None, ["method=fedavg"], method="fedprox")


def test_lists_of_bare_words_are_read_as_single_ones_are():
    found = load(None, ["target=[photo, sketch]", "bench.methods=[fedavg, fedprox(mu=0.1)]", "bench.seeds=[0, 1]"])
    assert found.target == "photo+sketch" and found.bench.methods == ("fedavg", "fedprox(mu=0.1)")
    assert load(None, ["data=table(path=a.csv, drop=[patient_id, 'b c'])"]).data == (
        "table(path=a.csv, drop=['patient_id', 'b c'])"
    )


@pytest.mark.parametrize(
    ("setting", "grid", "message"),
    [
        ("method.mu=1", True, r"has no effect, because bench\.methods lists the methods to compare"),
        ("seed=1", True, r"set bench\.seeds instead"),
        ("bench.seeds=[1]", False, "has no effect on a single run"),
    ],
)
def test_a_setting_that_would_be_discarded_is_refused(setting, grid, message, tmp_path):
    grid_file = tmp_path / "bench.toml"
    grid_file.write_text('[bench]\nmethods = ["fedavg"]\nseeds = [0]\n')
    with pytest.raises(ConfigError, match=message):
        load(grid_file, [setting], grid)
    assert load(grid_file, ["target=photo", "train.rounds=1"], grid).target == "photo"
    assert load(None, ["method=fedprox", "seed=1"], grid).seed == 1


def test_a_grid_is_every_method_target_and_seed(tmp_path):
    found = config(tmp_path, '[bench]\nmethods = ["fedavg", "fedavg+ga"]\ntargets = ["b"]\nseeds = [0, 1]\n')
    every = [(cell.method, cell.target, cell.seed) for cell in cells(found, ["a", "b"])]
    assert every == [("fedavg", "b", 0), ("fedavg+ga", "b", 0), ("fedavg", "b", 1), ("fedavg+ga", "b", 1)]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("metod = 'fedavg'", [], "metod is not known; did you mean 'method'"),
        ("[train]\nround = 5", [], r"train\.round is not known; did you mean 'rounds'"),
        ("[bench]\nmethod = 5", [], r"bench\.method is not known; did you mean 'methods'"),
        ("[train]\nrounds = 0", [], r"train\.rounds = 0 is not valid"),
        ("[train]\nrounds = 'many'", [], r"train\.rounds = 'many' is not valid"),
        ("[train]\nvalidation = 1.5", [], r"train\.validation = 1\.5 is not valid"),
        ("[train]\nlabel_skew = 0.3", [], "set clients_per_domain as well"),
        ("[train]\nschedule = 5", [], r"train\.schedule = 5 is not valid"),
        ("target = ['photo', 5]", [], "target = .* is not valid"),
        ("method = 5", [], "method = 5 is not valid"),
        ("method = 'fed avg'", [], "cannot read 'fed avg'"),
        ("method = ", [], "is not TOML"),
        ("", ["train.rounds"], "--set takes key=value"),
        ("", ["train.ronds=3"], r"train\.ronds is not known; did you mean 'rounds'"),
        ("", ["method.gaa.step=3"], "no part called 'gaa'"),
        ("[method]\nmu = 1", [], "needs a 'name'"),
        ("target = 'photo'", ["target.foo=1"], r"target has no options; write --set target=VALUE"),
        ("", ["train.rounds.x=1"], r"train\.rounds has no options; write --set train\.rounds=VALUE"),
        ("", ["public.size=3"], r"changes an option of public, which is not set"),
        ("", ["foo.bar=3"], "foo is not known"),
    ],
)
def test_a_mistake_is_told_with_what_to_write_instead(tmp_path, text, settings, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, text, *settings)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("fedproxx", "method 'fedproxx' is not known; did you mean 'fedprox'"),
        ("fedprox(mux=1)", "'fedprox' has no option 'mux'; did you mean 'mu'.*mu=0.01"),
        ("fedprox(mu=much)", "fedprox: mu='much' is not valid"),
        ("fedavg(weighting=size2)", "fedavg: weighting='size2' is not valid"),
        ("fedprox(optimizer=1)", "has no option 'optimizer'"),
        ("fedprox:best", "'fedprox' has no preset 'best'; it has default, paper, official"),
        ("ga", "write fedavg\\+ga"),
        ("fedavg+fedprox", "'fedprox' is a method, not a wrapper"),
        ("fedavg+gaa", "wrapper 'gaa' is not known; did you mean 'ga'"),
    ],
)
def test_a_method_that_cannot_be_made_is_told(spelled, message):
    with pytest.raises(ConfigError, match=message):
        registry.build(spelled)


def test_presets_are_starting_points_for_options(tmp_path):
    plugin = tmp_path / "probe.py"
    plugin.write_text(
        "from fedbeyond.experiment.registry import register\n"
        "PRESETS = {'official': {'smoothing': 0.01, 'budget': 45}}\n"
        "def probe(smoothing: float = 0.0, budget: int = 0, fresh: bool = True):\n"
        "    return smoothing, budget, fresh\n"
        "register('methods', 'probe', probe)\n"
    )
    registry.load_plugins([str(plugin)])
    try:
        assert registry.make("methods", parse("probe:official(budget=2)")[0]) == (0.01, 2, True)
    finally:
        del registry.REGISTRY["methods"]["probe"]


def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="already has a 'fedavg'"):
        registry.register("methods", "fedavg", lambda: None)
