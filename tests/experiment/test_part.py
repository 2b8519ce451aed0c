"""A run that trains a part: files hold only that part, it resumes to the bit, and what leaves it is a whole model."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedbeyond as fb
from fedbeyond.classifier import logits, write
from fedbeyond.errors import ConfigError, StorageError
from fedbeyond.experiment import checkpoint, run_folder, runner
from fedbeyond.experiment.build import assemble
from fedbeyond.experiment.config import Config, Train, load
from fedbeyond.experiment.plan import plan
from fedbeyond.export.export import Exported, export
from fedbeyond.report.figures import surface, tsne
from fedbeyond.report.figures.runs import finished_runs, open_run

PARTS = ["head", "last", "norm", "lora(targets=conv, rank=2)"]


@pytest.fixture
def config(small):
    return Config(method="scaffold", train=Train(rounds=2, batch_size=16, part="last"), **small)


def with_part(config, part):
    return replace(config, train=replace(config.train, part=part))


def test_a_part_is_of_a_runs_identity_unless_it_is_all(config):
    whole = with_part(config, "all")
    assert config.digest() != whole.digest() and config.setting() != whole.setting()
    assert "part" not in whole.identity()["train"] and config.identity()["train"]["part"] == "last"
    assert load(None, ["train.part=lora", "train.part.rank=4"]).train.part == "lora(rank=4)"
    with pytest.raises(ConfigError, match="part 'heads' is not known; did you mean 'head'"):
        runner.prepare(with_part(config, "heads"))
    with pytest.raises(ConfigError, match="'lora' has no option 'ranks'"):
        runner.prepare(with_part(config, "lora(ranks=4)"))


@pytest.mark.parametrize("part", PARTS)
def test_a_run_of_a_part_resumes_to_the_bit_and_workers_give_the_same_files(config, part, tmp_path):
    config = with_part(config, part)
    list(runner.run(runner.prepare(config), tmp_path / "one"))
    begun = runner.run(runner.prepare(config, workers=2), tmp_path / "two")
    next(begun)
    begun.close()
    list(runner.run(runner.prepare(config), tmp_path / "two"))
    for name in ("results.jsonl", "best.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_no_file_of_a_run_holds_what_is_frozen(config, tmp_path):
    list(runner.run(runner.prepare(config), tmp_path))
    files = [*tmp_path.rglob("*.safetensors")]
    assert len(files) >= 2
    for file in files:
        assert not any("body.0." in name for name in load_file(file)), file
        assert len(checkpoint.load(file)[1]["frozen"]) == 64
    line = run_folder.lines(tmp_path)[-1]
    whole = sum(sum(kinds["parameters"].values()) for kinds in line["bytes_up"].values())
    list(runner.run(runner.prepare(with_part(config, "head")), tmp_path / "head"))
    line = run_folder.lines(tmp_path / "head")[-1]
    head = sum(sum(kinds["parameters"].values()) for kinds in line["bytes_up"].values())
    assert head == 3 * 2 * 4 * (16 * 7 + 7) < whole  # three sites: the head and its control variate
    assert line["private_bytes"]["photo"] == 4 * (16 * 7 + 7)


def test_a_folder_of_another_part_is_another_run(config, tmp_path):
    list(runner.run(runner.prepare(config), tmp_path))
    for part in ("all", "norm"):
        with pytest.raises(ConfigError, match=f"train.part is last there, {part} here"):
            list(runner.run(runner.prepare(with_part(config, part)), tmp_path))


def test_other_weights_under_the_same_name_are_noticed(config, tmp_path):
    weights = tmp_path / "weights.safetensors"
    config = replace(config, network=f"mobilenet_v2(weights='{weights}')", train=replace(config.train, part="head"))
    net = assemble(replace(config, network="mobilenet_v2", train=Train()), tuple("ab"), (3, 32, 32), 3).nets["model"]
    state = {name.removeprefix("body."): tensor for name, tensor in net.state_dict().items() if "head" not in name}
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, weights)
    begun = runner.run(runner.prepare(config), tmp_path / "run")
    next(begun)
    begun.close()
    state["features.0.0.weight"] = state["features.0.0.weight"].contiguous() + 1
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, weights)
    with pytest.raises(StorageError, match=r"was trained on the frozen part .* give the weights file"):
        list(runner.run(runner.prepare(config), tmp_path / "run"))
    with pytest.raises(StorageError, match="frozen part"):
        export(tmp_path / "run", tmp_path / "model")


@pytest.mark.parametrize("part", PARTS)
def test_an_exported_model_is_the_whole_network(config, part, tmp_path):
    config = replace(with_part(config, part), method="fedavg")
    list(runner.run(runner.prepare(config), tmp_path / "run"))
    out = export(tmp_path / "run", tmp_path / "model", onnx=part.startswith("lora"))
    card, held = json.loads((out / "model.json").read_text()), load_file(out / "model.safetensors")
    assert card["config"]["train"]["part"] == part and "params/body.0.weight" in held
    assert not any("parametrizations" in name for name in held)
    setup = runner.prepare(config, cached=False)
    images = setup.unseen["sketch"][0][:20]
    net = write(setup.nets["model"], checkpoint.load(tmp_path / "run" / run_folder.BEST)[0])
    want = (logits(net, images) / card["temperature"]).softmax(1)
    assert torch.equal(Exported(out).probabilities(images), want)


def test_figures_open_a_run_of_a_part(config, tmp_path):
    config = replace(config, method="fedavg")
    list(runner.run(runner.prepare(config), run_folder.path(tmp_path, config)))
    (run,) = finished_runs([tmp_path])
    opened = open_run(run)
    assert tsne.gather_features(opened)[0].shape[1] == 16
    assert surface.flat(opened.net).shape == (sum(param.numel() for param in opened.net.parameters()),)


def test_the_python_api_takes_a_part_and_gives_a_whole_model():
    data = fb.datasets.styles(share=0.05)
    given = {"target": "sketch", "rounds": 1, "network": fb.networks.convnet(width=2), "progress": False}
    run = fb.run("fedavg", data, part="lora(targets=conv, rank=1)", **given)
    names = {name for name, _ in run.model.net.named_parameters()}
    assert "body.0.weight" in names and not any("parametrizations" in name for name in names)
    assert run.model.predict_proba(data["sketch"].images[:4]).shape == (4, 7)


def test_check_says_what_is_trained_and_what_is_frozen(config):
    text = plan(replace(with_part(config, "head"), method="fedavg"))
    convolutions, channels = 9 * (3 * 4 + 4 * 8 + 8 * 16 + 16 * 16), 4 + 8 + 16 + 16
    frozen = convolutions + 2 * channels  # scales and shifts
    size = 4 * (frozen + 2 * channels) + 4 * 8  # and running statistics, and four counters
    assert f"119 trained and {frozen:,} frozen parameters (train.part = head; the frozen part, {size:,} bytes" in text
    assert "model            parameters            476 bytes" in text and "re-estimated" not in text


# outputs of frozen layers that are computed once


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test alone, in which rows are counted as files."""
    monkeypatch.setenv("FEDBEYOND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


@pytest.mark.slow
def test_frozen_layers_are_computed_once_for_all_methods_and_seeds(config, cache, tmp_path, capsys):
    config = with_part(config, "last(n=2)")
    weights = with_weights(config, tmp_path)
    list(runner.run(runner.prepare(weights), tmp_path / "one"))
    assert "computing features once: 125 images" in capsys.readouterr().err
    files = {file: file.stat().st_mtime_ns for file in cache.iterdir() if file.suffix == ".rows"}
    assert len(files) == 4  # one for each domain
    list(runner.run(runner.prepare(replace(weights, method="fedavg", seed=1, target="photo")), tmp_path / "two"))
    assert files == {file: file.stat().st_mtime_ns for file in cache.iterdir() if file.suffix == ".rows"}
    assert "computing" not in capsys.readouterr().err


def with_weights(config, folder):
    """The same run from a file of weights, so that what is frozen does not depend on the seed."""
    weights = folder / "mobile.safetensors"
    plain = assemble(replace(config, network="mobilenet_v2", train=Train()), tuple("ab"), (3, 32, 32), 3)
    state = plain.nets["model"].body.state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, weights)
    return replace(config, network=f"mobilenet_v2(weights='{weights}')")


@pytest.mark.parametrize("part", ["head", "last"])
def test_a_run_on_cached_outputs_is_close_to_one_on_images(config, part, tmp_path):
    lines = {}
    for spelled in (part, f"{part}(cache=false)"):
        cell = with_part(config, spelled)
        lines[spelled] = list(runner.run(runner.prepare(cell), tmp_path / spelled))[-1]["scores"]["photo"]["val"]
    cached, usual = lines.values()
    assert cached["loss"] == pytest.approx(usual["loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "mixup"}, "the method uses images themselves"),
        ({"method": "fedavg+rc"}, "images are augmented"),
        ({"method": "fedavg+mixstyle"}, "the method uses early layers"),
        ({"transform": "ga"}, "images are augmented"),
    ],
)
def test_a_run_that_needs_images_says_why_and_runs(config, change, reason, caplog, tmp_path, cache):
    method, transform = change.get("method", "fedavg"), change.get("transform", "none")
    config = replace(config, method=method, train=replace(config.train, rounds=1, transform=transform))
    assert f"frozen layers are computed in every round: {reason}" in plan(config)
    assert len(list(runner.run(runner.prepare(config), tmp_path / "run"))) == 1
    assert f"{method}: frozen layers are computed in every round: {reason}" in caplog.text
    assert not cache.exists()


def test_check_says_how_many_bytes_are_cached(config):
    text = plan(replace(with_part(config, "head"), method="fedavg"))
    assert "frozen layers are computed once: 64 bytes an image in the cache, 8,000 bytes for 125 images" in text
    assert "frozen layers" not in plan(with_part(config, "head(cache=false)"))
    assert "frozen layers" not in plan(with_part(config, "all"))


def test_a_model_of_a_cached_run_takes_images():
    data = fb.datasets.styles(share=0.05)
    given = {"target": "sketch", "rounds": 1, "network": fb.networks.convnet(width=2), "progress": False}
    run = fb.run("fedsr", data, part="head", **given)
    assert run.model.predict_proba(data["sketch"].images[:4]).shape == (4, 7)


def test_augmented_copies_are_computed_once_and_one_is_chosen_for_each_image(config, tmp_path):
    train = replace(config.train, part="head(copies=3)", transform="ga")
    config = replace(config, train=train)
    assert "frozen layers are computed once: 256 bytes an image" in plan(
        config
    )  # 16 numbers of the image and of each copy
    setup = runner.prepare(config)
    site = setup.engine.sites["photo"]
    copies, rows = site.data["copies"][0][:], site.data["train"][0][:]
    assert copies.shape == (len(rows), 3, 16) and rows.shape == (len(rows), 16)
    assert not torch.equal(copies[:, 0], copies[:, 1]) and not torch.equal(copies[:, 0], rows)
    whole = runner.prepare(config, cached=False).engine.sites["photo"]
    images, labels = whole.data["train"]
    seen = {tuple(x.tolist()) for batch in site.reseed(0, "train").batches(4) for x in batch.x}
    known = {tuple(copy.tolist()) for own in copies for copy in own}
    assert seen <= known and len(seen) > 2 * len(rows)  # several of each
    assert len(site.clean(4)) == 4 and tuple(site.clean(1)[0].tolist()) in {tuple(row.tolist()) for row in rows}
    assert images.shape[1:] == (3, 32, 32) and len(labels) == len(rows)


def test_a_run_on_augmented_copies_resumes_to_the_bit(config, tmp_path):
    train = replace(config.train, part="last(copies=2)", transform="custom(flip=0.5)")
    config = replace(config, train=train)
    list(runner.run(runner.prepare(config), tmp_path / "one"))
    begun = runner.run(runner.prepare(config, workers=2), tmp_path / "two")
    next(begun)
    begun.close()
    list(runner.run(runner.prepare(config), tmp_path / "two"))
    for name in ("results.jsonl", "best.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    plain = replace(config, train=replace(train, transform="none"))
    assert (
        list(runner.run(runner.prepare(plain), tmp_path / "plain"))[-1]["scores"]
        != run_folder.lines(tmp_path / "one")[-1]["scores"]
    )
