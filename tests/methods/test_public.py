"""Images without labels that every site may see, and methods that need them, or several sites: refused in time."""

from dataclasses import replace

import pytest
import torch

from cli.test_main import SMALL
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import build, registry, runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.images import Dataset
from fedbeyond.methods.fedavg import fedavg

DOMAINS = ("photo", "painting", "cartoon", "sketch")
FCCL = "fccl(images=8, batch=4, pretrain=1)"


@pytest.fixture
def config(small) -> Config:
    return Config(method=FCCL, train=Train(rounds=1, batch_size=8), public="styles(share=0.03, seed=1)", **small)


def offer(monkeypatch, *names, shape=(3, 32, 32)):
    """A dataset called `mine`, with four images in each of some domains, each domain in a grey of its own."""
    images = {
        name: (torch.full((4, *shape), 10 * k, dtype=torch.uint8), torch.arange(4)) for k, name in enumerate(names)
    }
    monkeypatch.setitem(registry.REGISTRY["datasets"], "mine", lambda: Dataset(("a", "b", "c", "d"), images))
    build._dataset.cache_clear()


@pytest.fixture(autouse=True)
def forget():
    yield
    build._dataset.cache_clear()


def shown(config):
    """The public split of every site."""
    return [site.data["public"] for site in runner.prepare(config).engine.sites.values()]


def test_a_method_that_needs_public_images_is_refused_without_them(call, tmp_path):
    want = (
        "fccl(images=8, batch=4, pretrain=1) needs unlabelled images that every site may use; name a dataset of "
        'them, as in public = "folder(root=data/public)"'
    )
    for words in (("check",), ("run", "--out", tmp_path)):
        code, out, err = call(*words, *SMALL, "--set", f"method={FCCL}", "--set", "target=sketch")
        assert code == 2 and want in err and "round" not in out
    assert not list(tmp_path.iterdir())


def test_with_them_it_is_planned_and_runs(call, tmp_path):
    key = ["--set", f"method={FCCL}", "--set", "target=sketch", "--set", "public=styles(share=0.03, seed=1)"]
    code, out, _ = call("check", *SMALL, *key)
    assert code == 0 and "logits           statistics            224 bytes  (in reply to 'tell')" in out
    code, out, _ = call("run", *SMALL, *key, "--out", tmp_path)
    assert code == 0 and "2 rounds done" in out


def test_other_methods_do_not_get_them(config):
    sites = runner.prepare(replace(config, method="fedavg")).engine.sites
    assert all(set(site.data) == {"train", "val"} for site in sites.values())
    assert replace(config, public=None).digest() != config.digest()


def test_labels_are_hidden_and_all_sites_hold_the_same(config):
    splits = shown(config)
    assert len(splits) == 3
    for images, labels in splits:
        assert len(images) == len(labels) and labels.tolist() == [-1] * len(labels)
        assert torch.equal(images[:], splits[0][0][:])


@pytest.mark.parametrize("target", ["sketch", "photo", "photo+sketch"])
def test_what_is_to_be_unseen_is_not_public_either(config, monkeypatch, target):
    offer(monkeypatch, *DOMAINS, "more")
    images, _ = shown(replace(config, public="mine", target=target))[0]
    greys = {name: 10 * k for k, name in enumerate((*DOMAINS, "more"))}
    assert set(images[:].flatten().tolist()) == {grey for name, grey in greys.items() if name not in target.split("+")}
    assert len(images) == 4 * (5 - len(target.split("+")))


def test_nothing_left_to_show_is_an_error(config, monkeypatch):
    offer(monkeypatch, "sketch")
    with pytest.raises(ConfigError, match="public=mine has only images of sketch, which must stay unseen"):
        shown(replace(config, public="mine"))


def test_shapes_must_fit(config, monkeypatch, call, tmp_path):
    want = "has images of 3 x 16 x 16, styles(share=0.05) of 3 x 32 x 32; give both the same size"
    with pytest.raises(ConfigError) as refused:
        runner.prepare(replace(config, public="styles(share=0.03, size=16)"))
    assert want in str(refused.value)
    small = ["--set", f"method={FCCL}", "--set", "target=sketch", "--set", "public=styles(share=0.03, size=16)"]
    code, _, err = call("run", *SMALL, *small, "--out", tmp_path)
    assert code == 2 and want in err and not list(tmp_path.iterdir())
    offer(monkeypatch, "elsewhere", shape=(1, 32, 32))
    with pytest.raises(ConfigError, match="public=mine has images of 1 x 32 x 32"):
        runner.prepare(replace(config, public="mine"))


def test_a_dataset_that_is_not_known_is_named(config):
    with pytest.raises(ConfigError, match="dataset 'stiles' is not known; did you mean 'styles'"):
        runner.prepare(replace(config, public="stiles"))


def test_another_public_dataset_makes_another_run(config):
    assert config.setting() != replace(config, public="styles(share=0.03, seed=2)").setting()


ALONE = ["--set", "target=photo+painting+cartoon"]


def test_a_method_that_needs_two_sites_is_refused_with_one(call, monkeypatch, tmp_path):
    monkeypatch.setitem(registry.REGISTRY["methods"], "couple", lambda: replace(fedavg(), min_clients=2))
    want = (
        "couple needs at least 2 sites to train on; with photo+painting+cartoon unseen there is 1. Leave out "
        "fewer domains, or set train.clients_per_domain"
    )
    for words in (("check",), ("run", "--out", tmp_path)):
        code, out, err = call(*words, *SMALL, *ALONE, "--set", "method=couple")
        assert code == 2 and want in err and "round 1" not in err + out
    assert not list(tmp_path.iterdir())


def test_two_clients_of_one_domain_are_two_sites(call, monkeypatch, tmp_path):
    monkeypatch.setitem(registry.REGISTRY["methods"], "couple", lambda: replace(fedavg(), min_clients=2))
    two = ["--set", "method=couple", "--set", "train.clients_per_domain=2"]
    assert call("check", *SMALL, *ALONE, *two)[0] == 0
    assert call("run", *SMALL, *ALONE, *two, "--out", tmp_path)[0] == 0


def test_a_pooled_method_counts_domains(monkeypatch, small):
    monkeypatch.setitem(
        registry.REGISTRY["methods"], "couple", lambda: replace(fedavg(), min_clients=2, pooled=True, weighting=None)
    )
    alone = Config(method="couple", **{**small, "target": "photo+painting+cartoon"})
    with pytest.raises(ConfigError, match="couple needs at least 2 domains to train on"):
        runner.prepare(alone)
    assert set(runner.prepare(replace(alone, target="photo")).engine.sites) == {"pooled"}
