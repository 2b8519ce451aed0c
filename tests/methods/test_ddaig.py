"""DDAIG: what each of its networks learns, and the domain classifier that sites share."""

from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import Task, read
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config
from fedbeyond.methods.ddaig import ddaig
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.optimizers import adam, sgd
from fedbeyond.server import Round
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.asserts import assert_close, assert_equal, model

RATE = 0.1


def request(method, number=0):
    """What the server sends in a round, with a domain classifier that is not blank any more."""
    names = ("east", "north", "west")
    body = next(method.server.round(method.server.init(toy.shared(method)), Round(number, 9, names, names))).body
    rng = torch.Generator().manual_seed(3)
    return body | {"sites": {n: torch.randn(leaf.shape, generator=rng) for n, leaf in body["sites"].items()}}


def one_batch(method):
    """The second of the toy sites, with eight images: one batch."""
    site = toy.sites(method)[1]
    x, y = site.data["train"]
    site.data = {**site.data, "train": (x[:8], y[:8])}
    return site.reseed(0, "train")


def step(loss, params, rate=RATE):
    """Plain gradient descent."""
    params = list(params)
    with torch.no_grad():
        for param, slope in zip(params, torch.autograd.grad(loss, params), strict=True):
            param -= rate * slope


@pytest.mark.parametrize("domains", ["layer", "network"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_round_of_a_site_by_hand(domains, warm):
    method = ddaig(0.4, 0.3, width=4, domains=domains, warmup=int(warm), optimizer=sgd(RATE))
    site, received = one_batch(method), request(method)
    nets = {name: deepcopy(net).train() for name, net in site.nets.items()}
    (batch,) = list(site.batches())
    x, y, here = batch.x, batch.y, torch.ones(8, dtype=torch.long)  # north is the second of three sites
    reply, private = method.client.handlers["train"](site.reseed(0, "train"), received, {})
    net, generator, judge = nets["model"], nets["generator"], nets.get("domains", nets["model"])
    weight, bias = (received["sites"][name].clone().requires_grad_() for name in ("weight", "bias"))

    net.eval(), judge.eval()
    novel = x + 0.4 * generator(x)
    disguise = F.cross_entropy(net(novel), y) - F.cross_entropy(judge.features(novel) @ weight.T + bias, here)
    step(disguise, generator.parameters())
    novel, h = (x + 0.4 * generator(x)).detach(), judge.features(x).detach()
    net.train(), judge.train()
    if warm:
        step(F.cross_entropy(net(x), y), net.parameters())
    else:
        scores = net(torch.cat((x, novel)))
        step(0.7 * F.cross_entropy(scores[:8], y) + 0.3 * F.cross_entropy(scores[8:], y), net.parameters())
    if domains == "layer":  # as far as ten steps, in the one that it takes
        step(F.cross_entropy(h @ weight.T + bias, here), [weight, bias], 10 * RATE)
    else:
        error = F.cross_entropy(judge.features(x) @ weight.T + bias, here)
        step(error, [*judge.body.parameters(), weight, bias])

    want = {name: read(nets[name]) for name in method.shared} | {"sites": {"weight": weight, "bias": bias}}
    assert reply.keys() == want.keys() and private == {}
    assert_close(tree.flatten(reply), tree.map(torch.Tensor.detach, tree.flatten(want)))


def test_domains_are_the_sites_in_their_order_and_none_is_favoured_at_the_start():
    method = ddaig(width=4, warmup=3)
    names = ("east", "north", "west")
    bodies = [
        next(method.server.round(method.server.init(toy.shared(method)), Round(n, 9, ("west",), names))).body
        for n in (0, 3)
    ]
    assert {name: int(place) for name, place in bodies[0]["places"].items()} == {"east": 0, "north": 1, "west": 2}
    assert bodies[0]["sites"]["weight"].shape == (3, 4) and not bodies[0]["sites"]["weight"].any()
    assert [bool(body["warm"]) for body in bodies] == [True, False]


def test_the_mean_of_layers_after_one_step_is_a_step_on_the_images_of_all():
    method = ddaig(width=4, optimizer=sgd(RATE))
    received, layers, rows = request(method), [], []
    for site in toy.sites(method):
        x, y = site.data["train"]
        site.data = {**site.data, "train": (x[:8], y[:8])}
        reply, _ = method.client.handlers["train"](site.reseed(0, "train"), received, {})
        layers.append(reply["sites"])
        net = toy.nets(method)["model"].eval()
        rows.append(net.features(x[:8]).detach())
    weight, bias = (received["sites"][name].clone().requires_grad_() for name in ("weight", "bias"))
    scores = torch.cat(rows) @ weight.T + bias
    step(F.cross_entropy(scores, torch.arange(3).repeat_interleave(8)), [weight, bias], 10 * RATE)
    got = tree.mean(layers, [1.0] * 3)
    assert_close(got, {"weight": weight.detach(), "bias": bias.detach()})


@pytest.mark.parametrize(
    ("optimizer", "distance"),
    [
        (sgd(1e-4), 10 * 1e-4 * 2 / 3),  # the first slope of a site's own bias is -2/3
        (sgd(1e-4, momentum=0.5), (20 - 2 * (1 - 0.5**10)) * 1e-4 * 2 / 3),  # sum of (1 - 0.5^k) / 0.5, k = 1 to 10
        (adam(1e-4), 10 * 1e-4),  # each step has the length lr
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_a_site_with_more_images_does_not_move_the_layer_further(optimizer, distance):
    method = ddaig(width=4, optimizer=optimizer)
    method_sites, received = toy.sites(method), request(method)
    received |= {"sites": tree.zeros(received["sites"])}
    moved = []
    for site in method_sites:  # two, two and three batches an epoch
        site.epochs = 1 + 3 * (site.name == "west")
        reply, _ = method.client.handlers["train"](site.reseed(0, "train"), received, {})
        moved.append(float(reply["sites"]["bias"][int(received["places"][site.name])]))
    assert moved == pytest.approx([distance] * 3, rel=1e-2)


def test_a_share_of_nothing_learns_from_the_images_alone():
    plain = model(fedavg("uniform"))
    assert_equal(model(ddaig(width=4, warmup=9)), plain)  # in warm rounds images are all there is
    off = model(ddaig(width=4, warmup=0, share=0.0))  # but BatchNorm sees generated ones too
    assert any(not torch.equal(off[name], plain[name]) for name in plain)


def test_without_strength_images_count_twice_and_the_generator_rests():
    method = ddaig(width=4, warmup=0, strength=0.0)
    state = simulate(method)[0]["server"]
    assert_close(tree.flatten(state["generator"]), tree.flatten(toy.shared(method)["generator"]))
    plain = model(fedavg("uniform"))
    ours = model(method)
    for name in plain:
        if "running_var" not in name:  # of twice the images; torch's estimate is not that of a half of them
            torch.testing.assert_close(ours[name], plain[name], rtol=1e-4, atol=1e-5)


def test_one_site_is_not_enough():
    config = Config(method="ddaig", target="photo+sketch+cartoon", data="styles(share=0.03)")
    with pytest.raises(ConfigError, match="ddaig needs at least 2 sites"):
        runner.prepare(config)
    task = Task(("no", "yes"), (5,), registry.make_one("networks", "mlp"))
    with pytest.raises(ConfigError, match="ddaig needs images"):
        ddaig().networks(task)


def test_only_in_the_papers_reading_a_network_for_domains_leaves_the_site():
    assert set(ddaig().sends["train"]) == {"model", "generator", "sites"}
    assert set(registry.build("ddaig:paper").sends["train"]) == {"model", "generator", "sites", "domains"}
