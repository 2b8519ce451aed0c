"""The data of all sites in one place: whose each image is, and runs of references that are no federation."""

import sys
from dataclasses import replace

import pytest
import torch

from fedbeyond.batch import Batch
from fedbeyond.classifier import measure, write
from fedbeyond.cli import main
from fedbeyond.data.partition.assignment import build_splits
from fedbeyond.data.partition.pooling import join_splits, pool
from fedbeyond.errors import ConfigError
from fedbeyond.evaluation.metrics import evaluate
from fedbeyond.experiment import checkpoint, results, runner
from fedbeyond.experiment.build import dataset, partition
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.plan import plan
from fedbeyond.images import View
from fedbeyond.methods.local import local
from fedbeyond.spec import POOLED

SOURCES = ["cartoon", "painting", "photo"]  # where sketch is unseen


@pytest.fixture
def config(small) -> Config:
    return Config(method="erm", train=Train(rounds=2, batch_size=8, batchnorm="average"), **small)


def plain(value, count):
    """Images that are all one number, and the label too."""
    return torch.full((count, 1, 2, 2), value, dtype=torch.uint8), torch.full((count,), value)


def test_splits_are_put_together_in_order_whether_they_lie_in_memory_or_are_views():
    large = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 2, 2)
    view = View([large, large + 100], [torch.tensor([7, 3]), torch.tensor([2])])
    images, labels = join_splits([plain(50, 2), (view, torch.tensor([7, 3, 102])), plain(60, 1)])
    assert labels.tolist() == [50, 50, 7, 3, 102, 60] and images.shape == (6, 1, 2, 2)
    assert images[torch.arange(6)][:, 0, 0, 0].tolist() == labels.tolist()
    assert images[torch.tensor([4, 0, 3])][:, 0, 1, 1].tolist() == [102, 50, 3]


def test_the_number_of_a_site_goes_with_its_training_images():
    sites = {name: {"train": plain(value, count), "val": plain(value, 1)} for name, value, count in (
        ("b", 10, 3), ("a", 11, 1), ("c", 12, 2),
    )}  # fmt: skip
    splits, origin = pool(sites)
    assert origin.tolist() == [0, 0, 0, 1, 2, 2] and splits.keys() == {"train", "val"}
    assert splits["train"][1].tolist() == (10 + origin).tolist() and splits["val"][1].tolist() == [10, 11, 12]


def test_a_pooled_run_has_one_site_whose_batches_know_whose_each_image_is(config):
    made = runner.prepare(config)
    (site,) = made.engine.sites.values()
    assert made.engine.clients == (POOLED,) and list(made.validation) == SOURCES
    domains = dataset(config.data)
    data, _ = build_splits(domains, partition(config, domains))
    owner = {}
    for number, name in enumerate(data):
        images, labels = data[name]["train"]
        for image, label in zip(images[torch.arange(len(labels))], labels, strict=True):
            owner[image.float().div(127.5).sub(1).numpy().tobytes()] = (number, int(label))
    seen = [
        (owner[image.numpy().tobytes()], (int(origin), int(label)))
        for batch in site.reseed(0, "train").batches()
        for image, label, origin in zip(batch.x, batch.y, batch.origin, strict=True)
    ]
    assert len(seen) >= site.size - 1 == len(site.origin) - 1 and {number for (number, _), _ in seen} == {0, 1, 2}
    assert all(want == got for want, got in seen)
    assert site.size == sum(len(splits["train"][1]) for splits in data.values())


def test_a_view_is_of_the_domain_of_its_image():
    batch = Batch(torch.zeros(2, 1), torch.zeros(2), (torch.zeros(2, 1),) * 2, torch.tensor([4, 1]))
    assert batch.origins.tolist() == [4, 1, 4, 1, 4, 1]
    with pytest.raises(AssertionError, match="only a pooled method"):
        _ = batch._replace(origin=None).origins


def test_no_federated_site_knows_origins(config):
    made = runner.prepare(Config(**{**vars(config), "method": "fedavg"}))
    assert made.engine.clients == tuple(SOURCES)
    assert all(site.origin is None for site in made.engine.sites.values())
    assert all(batch.origin is None for batch in made.engine.sites["photo"].batches())


@pytest.fixture
def call(small, monkeypatch, capsys):
    """What a command prints, on a sliver of the built-in data."""

    def called(*words):
        settings = [f"data={small['data']}", f"network={small['network']}", "train.rounds=2", "train.batch_size=8"]
        chosen = [word for setting in settings for word in ("--set", setting)]
        monkeypatch.setattr(sys, "argv", ["fedbeyond", *map(str, words), *chosen])
        with pytest.raises(SystemExit) as end:
            main.main()
        assert not end.value.code
        return capsys.readouterr().out

    return called


def test_what_check_prints_says_that_a_reference_is_not_federated(call):
    told = call("check", "--set", "method=erm", "--set", "target=sketch")
    assert "erm: convnet(width=4) with" in told and "NOT FEDERATED" in told


def test_erm_runs_from_the_command_line_and_is_scored_on_each_source(call, tmp_path):
    told = call("run", "--method", "erm", "--target", "sketch", "--out", tmp_path)
    assert "erm, sketch unseen, seed 0: 2 rounds done" in told
    (file,) = tmp_path.rglob("results.jsonl")
    for line in results.read(file):
        assert {name: list(score) for name, score in line["scores"].items()} == {
            **{name: ["val", "images"] for name in SOURCES},
            "sketch": ["test"],
        }
        assert line["bytes_up"].keys() == {POOLED}


def test_its_validation_scores_are_those_of_each_sources_own_validation_images(config, tmp_path):
    made = runner.prepare(config)
    *_, last = runner.run(made, tmp_path)
    saved, _ = checkpoint.load(tmp_path / "checkpoint.safetensors")
    net = write(made.nets["model"], saved["state"]["server"]["model"])
    domains = dataset(config.data)
    data, _ = build_splits(domains, partition(config, domains))
    for name in SOURCES:
        assert last["scores"][name]["val"] == evaluate(net, data[name]["val"])


def test_a_pooled_run_that_is_stopped_goes_on_as_if_it_had_not_been(config, tmp_path):
    whole = list(runner.run(runner.prepare(config), tmp_path / "whole"))
    torn = runner.run(runner.prepare(config), tmp_path / "torn")
    next(torn)
    torn.close()
    rest = list(runner.run(runner.prepare(config), tmp_path / "torn"))
    assert len(rest) == 1 and rest == whole[1:]


def test_a_plan_says_that_a_reference_is_not_federated(config):
    told = plan(config)
    assert "NOT FEDERATED, a reference" in told and "pooled in one place before the first round" in told
    assert "each site sends" not in told
    assert "NOT FEDERATED" not in plan(Config(**{**vars(config), "method": "fedavg"}))


def test_erm_learns_from_tables(tmp_path):
    rng = torch.Generator().manual_seed(0)
    lines = ["site,a,y"]
    for site in "nst":
        lines += [f"{site},{a:.4f},{int(a > 0)}" for a in torch.randn(20, generator=rng).tolist()]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    data = f"table(path='{tmp_path}/table.csv', site=site, label=y)"
    train = Train(rounds=4, batch_size=4)
    config = Config(method="erm", target="t", data=data, network="mlp(hidden=[8])", train=train)
    *_, last = runner.run(runner.prepare(config), tmp_path / "run")
    assert set(last["scores"]) == {"n", "s", "t"} and last["scores"]["t"]["test"]["accuracy"] >= 0.8
    assert "NOT FEDERATED" in plan(config)


def test_local_reports_the_mean_over_the_models_of_the_sites(config, tmp_path):
    made = runner.prepare(Config(**{**vars(config), "method": "local"}))
    *_, last = runner.run(made, tmp_path)
    saved, _ = checkpoint.load(tmp_path / "checkpoint.safetensors")
    models = saved["state"]["server"]["models"]
    assert sorted(models) == SOURCES and models == local().eval_models(saved["state"]["server"])
    validation = [(n, made.validation[n], "val") for n in SOURCES]
    for name, split, part in [*validation, ("sketch", made.unseen["sketch"], "test")]:
        found = [measure(write(made.nets["model"], model), split) for model in models.values()]
        for key in ("loss", "accuracy"):
            mean = sum(one[key].item() for one in found) / 3
            assert last["scores"][name][part][key] == pytest.approx(mean, rel=1e-6)
    of_the_mean = measure(write(made.nets["model"], saved["state"]["server"]["model"]), made.unseen["sketch"])
    assert last["scores"]["sketch"]["test"]["loss"] != pytest.approx(of_the_mean["loss"].item(), rel=1e-4)


def test_clients_of_one_domain_are_one_domain(config):
    several = replace(config, method="dann", train=replace(config.train, clients_per_domain=2))
    setup = runner.prepare(several)
    (site,) = setup.engine.sites.values()
    assert site.origin.unique().tolist() == [0, 1, 2] and len(setup.validation) == 6
    single = replace(several, target="photo+painting+cartoon")
    with pytest.raises(ConfigError, match=r"dann needs at least 2 domains .* there is 1"):
        runner.prepare(single)
