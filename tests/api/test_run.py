"""`fb.run`: in memory or in a folder, with objects or specs; interrupted, resumed, continued."""

import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedbeyond as fb
from api.conftest import tiny
from fedbeyond.errors import ConfigError, StorageError
from fedbeyond.experiment import bench, checkpoint, run_folder
from fedbeyond.experiment.config import parse

STYLES = {"target": "sketch", "rounds": 2, "network": "convnet(width=4)", "seed": 3, "progress": False}


@pytest.mark.parametrize("method", ["fedsb+ga", "fedavg+sha", "scaffold"])
def test_a_run_in_memory_equals_the_command_line_to_the_bit(method, tmp_path, capsys):
    data = fb.datasets.styles(share=0.05)
    run = fb.run(fb.method(method), data, **STYLES)
    table = {"method": method, "target": "sketch", "seed": 3, "data": "styles(share=0.05)"}
    config = parse(table | {"network": "convnet(width=4)", "train": {"rounds": 2}})
    bench.run_one(config, tmp_path, "cpu", 1)
    folder = run_folder.path(tmp_path, config)
    assert [json.dumps(line) for line in run.lines] == (folder / "results.jsonl").read_text().splitlines()
    assert run.config.identity() == config.identity()
    stored, kept = checkpoint.load(folder / "best.safetensors")[0], run._storage.saved("best.safetensors")[0]
    for kind in ("params", "buffers"):
        assert stored[kind].keys() == kept[kind].keys()
        assert all(torch.equal(stored[kind][name], kept[kind][name]) for name in stored[kind])


def test_nothing_is_printed_and_the_state_of_torch_is_restored(data, small, capfd):
    threads, rng = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        fb.run(fb.fedavg(), data, **small)
        assert torch.get_num_threads() == 2 and torch.equal(rng, torch.get_rng_state())
    finally:
        torch.set_num_threads(threads)
    assert capfd.readouterr() == ("", "")


def test_progress_calls_a_function_with_the_line_of_each_round(data, small):
    lines = []
    run = fb.run("fedavg", data, **small | {"progress": lines.append})
    assert [line["round"] for line in lines] == [0, 1, 2] and lines == run.lines


def stopping(after):
    """Return a progress function that interrupts a run after some rounds."""

    def show(line):
        if line["round"] + 1 == after:
            raise KeyboardInterrupt

    return show


def test_an_interrupted_run_in_a_notebook_returns_what_is_done_and_is_continued(data, small, monkeypatch):
    whole = fb.run("fedavg+sha", data, **small)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    run = fb.run("fedavg+sha", data, **small | {"progress": stopping(after=2)})
    assert not run.finished and len(run.lines) == 2 and "stopped after round 2 of 3" in repr(run)
    assert run.score() == pytest.approx(run.lines[-1]["scores"]["west"]["test"]["accuracy"], abs=1)
    run._computing = run._computing._replace(progress=False)
    assert run.resume() is run and run.finished and run.lines == whole.lines


def test_an_interrupt_of_a_script_is_raised(data, small, monkeypatch):
    monkeypatch.delattr(sys, "ps1", raising=False)
    with pytest.raises(KeyboardInterrupt):
        fb.run("fedavg", data, **small | {"progress": stopping(after=1)})


def test_a_run_with_out_is_resumed_by_the_same_call(small, tmp_path):
    data = replace(tiny(), name="squares")
    whole = fb.run("fedavg", data, **small)
    with pytest.raises(KeyboardInterrupt):
        fb.run("fedavg", data, out=tmp_path, **small | {"progress": stopping(after=2)})
    lines = []
    run = fb.run("fedavg", data, out=tmp_path, **small | {"progress": lines.append})
    assert [line["round"] for line in lines] == [2] and run.folder == tmp_path / "fedavg" / "west" / "seed-0"
    assert [line["scores"] for line in run.lines] == [line["scores"] for line in whole.lines]
    again = fb.run("fedavg", data, out=tmp_path, **small | {"progress": lines.append})
    assert len(lines) == 1 and again.lines == run.lines  # nothing to do
    assert fb.load(run.folder).score() == run.score()


def test_other_data_under_the_same_name_are_refused(small, tmp_path):
    fb.run("fedavg", replace(tiny(), name="squares"), out=tmp_path, **small)
    with pytest.raises(ConfigError, match=r"code\.datasets\.squares is \w+ there, \w+ here"):
        fb.run("fedavg", replace(tiny(shift=1), name="squares"), out=tmp_path, **small)


def test_a_finished_run_gets_more_rounds_unless_its_method_depends_on_their_number(data, small):
    longer = fb.run("fedavg+sha", data, **small | {"rounds": 4})
    run = fb.run("fedavg+sha", data, **small)
    assert run.resume(rounds=4).lines == longer.lines
    with pytest.raises(ConfigError, match=r"cannot continue with 5 rounds: .*ga\(decay=true\)"):
        fb.run("fedavg+ga", data, **small).resume(rounds=5)


def test_the_result_gives_history_scores_model_plot_page_and_export(data, small, tmp_path):
    run = fb.run(fb.fedavg(), data, **small)
    assert [(row["round"], row["domain"], row["split"]) for row in run.history[:3]] == [
        (1, "east", "validation"),
        (1, "north", "validation"),
        (1, "west", "unseen"),
    ]
    frame = run.history.to_pandas()
    assert len(frame) == 9 and frame["accuracy"].between(0, 1).all()
    assert run.score("accuracy", select="oracle") >= run.score() and 0 <= run.score("f1") <= 1
    images = data["west"].images[:5]
    probabilities = run.model.predict_proba(images)
    assert probabilities.shape == (5, 2) and torch.allclose(probabilities.sum(1), torch.ones(5))
    assert torch.equal(run.model.predict_proba(images.numpy()), probabilities)
    assert run.model.predict(images) == [run.classes[index] for index in probabilities.argmax(1)]
    assert run.model(images).shape == (5, 2) and run.model is run.model
    image, shown = run.plot()._repr_png_()
    assert image.startswith(b"\x89PNG") and 200 < shown["width"] < int.from_bytes(image[16:20], "big")
    assert "fedavg" in run.report(tmp_path / "report.html").read_text()
    from fedbeyond.export.export import Exported

    exported = Exported(run.export(tmp_path / "model"))
    assert torch.equal(exported.probabilities(images), probabilities)
    assert "own domains" in repr(run) and "<table>" in run._repr_html_()
    assert "\nwarning: fewer than 20 validation samples: east 3, north 3" in repr(run)
    assert "<p>warning: fewer than 20 validation samples" in run._repr_html_()


def test_a_saved_run_is_the_run_that_a_folder_would_hold(small, tmp_path):
    data = replace(tiny(), name="squares")
    fb.run("fedavg", data, out=tmp_path / "one", **small)
    fb.run("fedavg", data, **small).save(tmp_path / "two")
    for name in ("results.jsonl", "config.json", "machine.json", "classes.json", "best.safetensors", "done"):
        one, two = (tmp_path / side / "fedavg" / "west" / "seed-0" / name for side in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), name


def test_an_own_method_function_gets_the_optimizer_of_the_run(data, small):
    given = []

    def mine(optimizer):
        given.append(optimizer)
        return replace(fb.fedavg(optimizer=optimizer), weighting=fb.fedavg(weighting="uniform").weighting)

    run = fb.run(mine, data, **small, optimizer=fb.sgd(lr=0.01))
    assert run.lines[0]["method"] == "mine" and given
    same = fb.run(fb.fedavg(weighting="uniform"), data, **small, optimizer="sgd(lr=0.01)")
    assert [line["scores"] for line in run.lines] == [line["scores"] for line in same.lines]


def test_an_own_method_object_is_run_and_a_warning_says_whose_optimizer_it_has(data, small):
    method = replace(fb.fedavg(), weighting=None, server=fb.fedavg().server)
    assert not hasattr(method, "spec")  # a changed method is not what its spec says
    with pytest.warns(UserWarning, match="built with its own optimizer"):
        run = fb.run(replace(fb.fedavg(), min_clients=2), data, name="mine", **small)
    assert run.lines[0]["method"] == "mine"


def test_changed_code_never_shows_old_results(small, tmp_path):
    data = replace(tiny(), name="squares")

    def define(factor):
        @fb.register("methods")
        def mine(mu: float = 0.1, optimizer=fb.sgd(lr=0.05)):  # noqa: B008
            return fb.fedprox(mu=mu * factor, optimizer=optimizer)

    define(1.0)
    first = fb.run("mine(mu=0.2)", data, out=tmp_path, **small)
    define(1.0)  # the same cell again: the same code, nothing to do
    assert fb.run("mine(mu=0.2)", data, out=tmp_path, **small).lines == first.lines
    define(3.0)
    with pytest.raises(ConfigError, match=r"holds another run: code\.methods\.mine is"):
        fb.run("mine(mu=0.2)", data, out=tmp_path, **small)


def straight():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 2))


def bent():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Tanh(), nn.Linear(4, 2))


bent.__name__ = "straight"  # as if its cell were changed and run again


def test_a_run_keeps_the_network_and_data_it_was_made_with(small, tmp_path):
    named, images = replace(tiny(), name="squares"), tiny()["west"].images
    longer = fb.run("fedavg", named, **small | {"network": straight, "rounds": 4})
    run = fb.run("fedavg", named, **small | {"network": straight})
    before, identity = run.model.predict_proba(images), run.config.identity()
    other = fb.run("fedavg", replace(tiny(shift=1), name="squares"), **small | {"network": bent})
    run._model = None
    assert torch.equal(run.model.predict_proba(images), before)
    assert run.save(tmp_path) is run and json.loads((run.folder / "config.json").read_text()) == identity
    assert run.resume(rounds=4).lines == longer.lines and other.lines != run.lines
    with pytest.raises(ConfigError, match=r"its own datasets\.squares, which has changed since"):
        fb.load(run.folder).model  # noqa: B018 (the names stand for other things now)
    assert fb.load(run.folder).report(tmp_path / "page.html").exists()


def test_a_comparison_keeps_the_network_it_was_made_with(data, small):
    options = {key: value for key, value in small.items() if key != "target"} | {"targets": "west", "seeds": 1}
    table = fb.compare(["fedavg"], data, **options | {"network": straight})
    lines = table.runs[0].lines.copy()
    fb.run("fedavg", data, **small | {"network": bent})
    table._grid.memories.clear()
    assert table.resume().runs[0].lines == lines


def test_the_card_of_an_exported_model_names_the_network_of_this_process(data, small, tmp_path):
    from fedbeyond.export.export import Exported

    run = fb.run("fedavg", data, **small | {"network": straight})
    exported = Exported(run.export(tmp_path / "model"), network=straight)
    assert exported.card["network_factory"] == f"{__name__}:straight"
    images = data["west"].images
    assert torch.equal(exported.probabilities(images), run.model.predict_proba(images))


def test_a_classifier_has_the_name_of_its_body(data, small):
    def flat():
        return nn.Flatten()

    assert fb.run("fedavg", data, **small | {"network": fb.networks.classifier(flat)}).config.network == "flat"


def test_an_interrupted_run_with_rounds_that_are_not_evaluated_shows_itself(data, small, monkeypatch):
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    run = fb.run("fedavg", data, **small | {"evaluate_every": 2, "rounds": 5, "progress": stopping(after=3)})
    assert "stopped after round 3 of 5" in repr(run) and run.selected("last")["round"] == 1


def test_an_error_in_the_progress_function_frees_the_folder(small, tmp_path):
    data = replace(tiny(), name="squares")
    with pytest.raises(ZeroDivisionError):
        fb.run("fedavg", data, out=tmp_path, **small | {"progress": lambda line: 1 / 0})
    assert fb.run("fedavg", data, out=tmp_path, **small).finished


def test_registrations_with_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="register takes a group, a name and a function"):
        fb.register("methods", fb.fedavg)
    with pytest.raises(ConfigError, match="register takes a group, a name and a function"):
        fb.register(fb.fedavg)


def test_groups_that_splits_would_ignore_are_pointed_out(data, small):
    sites = {name: (data[name].images, data[name].labels) for name in data.domains}
    patients = {name: [f"p{number // 3}" for number in range(30)] for name in data.domains}
    grouped = fb.datasets.from_arrays(sites, classes=data.classes, groups=patients)
    with pytest.warns(UserWarning, match="pass disjoint='groups' to keep them apart"):
        fb.run("fedavg", grouped, **small)
    fb.run("fedavg", grouped, **small, disjoint="groups")  # a warning would be an error


BAD = {
    "workers": ({"workers": 0}, "workers: got 0; give a whole number, at least 1"),
    "name": ({"name": 3, "method": lambda optimizer: None}, "name: got 3; give a text"),
    "method": ({"method": 3}, r"method: got 3 \(int\); give a Method such as fedavg\(\)"),
    "method function": ({"method": fb.fedavg}, r"method: got the function fedavg; call it, as in fedavg\(\)"),
    "method text": ({"method": "fedavgg"}, "method 'fedavgg' is not known; did you mean 'fedavg'"),
    "method returns": ({"method": lambda optimizer: None}, "returned None, not a Method"),
    "data": ({"data": np.zeros((100, 100))}, r"data: got \(a ndarray\); give a Dataset"),
    "data dict": ({"data": {"a": 1}}, "data: got .* give a Dataset such as"),
    "network": ({"network": 5}, "network: got 5"),
    "optimizer": ({"optimizer": 0.1}, r"optimizer: got 0.1 \(float\); give sgd"),
    "optimizer class": ({"optimizer": torch.optim.SGD}, "optimizer: got .*SGD.* give sgd"),
    "target": ({"target": "south"}, "no domain 'south'"),
    "rounds": ({"rounds": 0}, "train.rounds = 0 is not valid"),
    "rounds text": ({"rounds": "many"}, "train.rounds = 'many' is not valid"),
    "option": ({"epoch": 2}, "train.epoch is not known; did you mean 'epochs'"),
    "seed": ({"seed": "zero"}, "seed = 'zero' is not valid"),
    "device": ({"device": "gpu7"}, "device 'gpu7' cannot be used"),
    "out": ({"out": "somewhere"}, r"an object without a name cannot be stored with out=; .*from_arrays\(\.\.\., name="),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_wrong_arguments_are_refused_in_one_sentence(changed, message, data, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"method": "fedavg", "data": data} | small | changed
    with pytest.raises(ConfigError, match=message) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fb.run(given.pop("method"), given.pop("data"), **given)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_results_of_an_empty_run_and_unknown_rules_are_refused(data, small, monkeypatch):
    run = fb.run("fedavg", data, **small)
    with pytest.raises(ConfigError, match="metric: got 'acc'; give one of accuracy"):
        run.score("acc")
    with pytest.raises(ConfigError, match="domain: got 'east', which is not unseen; give one of west"):
        run.score(domain="east")
    with pytest.raises(ConfigError, match="rounds: got 'many'; give a whole number"):
        run.resume("many")
    with pytest.raises(ConfigError, match="select: got 'best'; give one of source-validation"):
        run.score(select="best")
    run._storage.lines = []
    with pytest.raises(StorageError, match="no round of this run is evaluated yet"):
        run.score()
