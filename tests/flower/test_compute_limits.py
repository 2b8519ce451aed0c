"""A server asks for work without end: a site's policy limits epochs and networks, however a method calls them."""

from dataclasses import replace

import pytest
from torch import nn

from fedbeyond.errors import FederationError, PolicyError
from fedbeyond.experiment import runner
from fedbeyond.experiment.config import Config, Train
from fedbeyond.flower import app as flower
from fedbeyond.flower import compute_limits, enrolment, node
from fedbeyond.flower.policy import Policy
from fedbeyond.flower.site_config import SiteConfig
from support.grids import Nodes

flower.PAUSE = 0.0
SITES = ("cartoon", "painting", "photo")


@pytest.fixture
def config(small):
    return Config(method="fedavg", train=Train(rounds=1, batch_size=8, batchnorm="average"), **small)


def federation(folder, policy=""):
    """Nodes of the built-in data with a policy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.toml").write_text(policy)
    grid = {}
    for place, site in enumerate(SITES):
        own = {"site": site, "data": "styles(share=0.05)", "folder": str(folder / site), "secret": ""}
        grid[100 - place] = (flower.client_app(), own | {"policy": str(folder / "policy.toml")})
    return Nodes(grid)


def started(config, grid, home):
    return runner.run(enrolment.prepare(config, flower.FlowerTransport(grid, 60.0), SITES), home)


def test_more_epochs_than_a_site_allows_are_refused_before_the_run(config, tmp_path):
    config = replace(config, train=replace(config.train, epochs=3))
    with pytest.raises(FederationError, match=r"photo: PolicyError: 3 epochs a round are requested; .* allows 2"):
        list(started(config, federation(tmp_path, "max_epochs = 2"), tmp_path / "run"))


def test_more_copies_of_images_than_epochs_are_refused_before_the_run(config, tmp_path):
    """Copies that are cached for the first answer are passes over the images, too."""
    for copies, allowed in ((1000, False), (3, False), (2, True)):
        train = replace(config.train, part=f"head(copies={copies})", transform="ga")
        prepared = enrolment.prepare if allowed else refused
        grid = federation(tmp_path, "max_epochs = 2")
        prepared(replace(config, train=train), flower.FlowerTransport(grid, 60.0), SITES)


def refused(config, *given):
    reason = r"photo: PolicyError: \d+ copies of each training image are requested .* allows 2 passes .*max_epochs"
    with pytest.raises(FederationError, match=reason):
        enrolment.prepare(config, *given)


GREEDY = [
    "fedadg(classify=2, align=1)",
    "csac(pretrain=3, width=4)",
    "fedsb(budget=30)",
    "fedsb(budget=10000000000)",  # draws a list of that many images before the first batch
]


@pytest.mark.parametrize("method", GREEDY)
def test_epochs_are_counted_whatever_a_method_calls_them(config, method, tmp_path):
    """`train.epochs` is 1; a method's own options ask for more."""
    grid = federation(tmp_path, "max_epochs = 2")
    with pytest.raises(FederationError, match="more often in a round than the site's policy allows, which is 2 times"):
        list(started(replace(config, method=method), grid, tmp_path / "run"))


@pytest.mark.parametrize("method", ["fedavg", "fedadg(classify=1, align=1)", "ndag(width=2, warmup=1)"])
def test_a_limit_that_is_kept_changes_no_bit(config, method, tmp_path):
    config = replace(config, method=method)
    files = []
    for name, policy in (("free", ""), ("limited", "max_epochs = 2\nmax_seconds = 600\nmax_parameters = 10000000")):
        list(started(config, federation(tmp_path / name, policy), tmp_path / name / "run"))
        files.append((tmp_path / name / "run" / "best.safetensors").read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("network", ["convnet(width=1000000)", "convnet(width=1000)", "resnet152"])
def test_a_network_that_is_too_large_is_refused_before_memory_is_allocated(config, network, tmp_path, monkeypatch):
    machine, hello = asked(replace(config, network=network), tmp_path, "max_parameters = 5000000")
    built = []
    monkeypatch.setattr(node, "assemble", lambda *given, **options: built.append(given))
    reason = node.respond(machine, hello).notes["reason"]
    assert "or more; the site's policy allows 5,000,000 (max_parameters): use a smaller network" in reason
    assert built == []


def test_a_network_of_many_layers_is_refused_while_it_is_built(config, monkeypatch):
    layers = []

    def assemble(*given, **options):
        while True:
            layers.append(nn.Linear(10, 10, device="meta"))

    monkeypatch.setattr(compute_limits, "assemble", assemble)
    with pytest.raises(PolicyError, match="parameters or more; the site's policy allows 1,000 "):
        compute_limits.ensure_networks_allowed(Policy(max_parameters=1000), config, None, ("a", "b"), (3, 8, 8), 3)
    assert len(layers) < 20 and nn.Linear(100, 100) is not None  # nothing is counted any more


def asked(config, folder, policy):
    """A site's settings, and a message that it receives."""
    grid = federation(folder, policy)
    transport = flower.FlowerTransport(grid, 60.0)
    with pytest.raises(FederationError):
        enrolment.prepare(config, transport, SITES)
    return SiteConfig.parse(grid.apps[98][1]), transport.hello


def test_parameters_of_all_networks_are_counted_and_none_twice(config, tmp_path):
    """The hello of a run whose networks have exactly the allowed number is answered."""
    method = "fedadg(classify=1, align=1)"
    config = replace(config, method=method, network="convnet(width=4, norm=group)")
    grid = federation(tmp_path / "sites")
    prepared = enrolment.prepare(config, flower.FlowerTransport(grid, 60.0), SITES)
    total = sum(parameter.numel() for net in prepared.assembly.nets.values() for parameter in net.parameters())
    assert len(prepared.assembly.nets) > 1
    enrolment.prepare(config, flower.FlowerTransport(federation(tmp_path / "b", f"max_parameters = {total}")), SITES)
    with pytest.raises(FederationError, match=f"have {total:,} parameters or more; .* allows {total - 1:,} "):
        transport = flower.FlowerTransport(federation(tmp_path / "c", f"max_parameters = {total - 1}"))
        enrolment.prepare(config, transport, SITES)
