"""FedADG: who moves where, what stays at home, and what becomes of it without its parts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedbeyond import tree
from fedbeyond.classifier import write
from fedbeyond.client import descend
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.methods.fedadg import discrimination, draw, fedadg, generation
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedsb import fedsb
from fedbeyond.networks.adversary import Discriminator, Generator
from fedbeyond.optimizers import sgd
from fedbeyond.testing import toy
from fedbeyond.testing.laws import simulate
from support.asserts import assert_close, assert_equal, model

Y = torch.arange(64) % 3


def played(method, rounds=2):
    """The state after some rounds, and what each site keeps."""
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, rounds, federation=federation)
    return (
        state,
        {name: client_state["pending"]["private"] for name, client_state in federation.client_states.items()},
        round_log,
    )


def test_the_discriminator_stays_at_its_site_and_is_its_own():
    _, kept, round_log = played(fedadg(classify=1, align=1))
    assert {left.name for happened in round_log for left in happened["ledger"]} == {"model", "generator"}
    east, west = (tree.flatten(kept[name]["discriminator"]) for name in ("east", "west"))
    assert east.keys() == west.keys() and all(not torch.equal(east[name], west[name]) for name in east)


@pytest.mark.parametrize(("projection", "moves"), [("fixed", False), ("trained", True)])
def test_the_random_projection_is_fixed_unless_it_is_to_be_trained(projection, moves):
    method = fedadg(classify=0, align=2, projection=projection)
    federation = Simulator(method.client, toy.sites(method))
    place = "params" if projection == "trained" else "buffers"
    before = {
        n: s["private"]["discriminator"][place]["projection"].clone() for n, s in federation.client_states.items()
    }
    simulate(method, 2, federation=federation)
    for name, client_state in federation.client_states.items():
        after = client_state["pending"]["private"]["discriminator"][place]["projection"]
        assert torch.equal(after, before[name]) is not moves


def test_a_projection_is_half_as_wide_and_keeps_lengths_on_average():
    made = Discriminator(2000, 3, 1.0, "fixed")
    assert made.projection.shape == (1000, 2000)
    h = torch.randn(50, 2000)
    ratio = (h @ made.projection.T).norm(dim=1) / h.norm(dim=1)
    assert float(ratio.mean()) == pytest.approx(1, abs=0.05)
    assert Discriminator(4096, 3, 1.0, "fixed").projection.shape == (1024, 4096)
    assert Discriminator(8, 3, 1.0, None).projection is None


def test_what_a_discriminator_keeps_goes_with_its_momentum():
    _, kept, _ = played(fedadg(classify=0, align=1, optimizer=sgd(0.05, momentum=0.9)))
    momentum = tree.flatten(kept["east"]["momentum"])
    assert momentum and all(float(leaf.abs().max()) > 0 for leaf in momentum.values())


def test_a_discriminators_step_tells_reference_and_features_further_apart():
    for form in ("lsgan", "paper"):
        torch.manual_seed(0)
        discriminator = Discriminator(8, 3, 1.0, "fixed")
        h, made = torch.randn(64, 8), torch.randn(64, 8) + 1

        def apart(discriminator=discriminator, h=h, made=made):
            return (discriminator(made, Y) - discriminator(h, Y)).mean().item()

        before = apart()
        step = sgd(0.5)(discriminator.parameters())
        descend(step, lambda d=discriminator, h=h, m=made, f=form: discrimination(d(h, Y), d(m, Y), f))
        assert apart() > before


def trained_discriminator(h, made):
    torch.manual_seed(0)
    discriminator = Discriminator(8, 3, 1.0, "fixed")
    step = sgd(0.5)(discriminator.parameters())
    for _ in range(300):
        descend(step, lambda: discrimination(discriminator(h, Y), discriminator(made(), Y), "lsgan"))
    assert discriminator(made(), Y).mean().item() > 0.8 > 0.2 > discriminator(h, Y).mean().item()
    return discriminator


@pytest.mark.parametrize("form", ["toward", "away"])
def test_a_generators_step_moves_the_reference_toward_the_features_or_away(form):
    h, shift = torch.randn(64, 8) + 1, nn.Parameter(torch.zeros(8))
    noise = torch.randn(64, 8)

    def made():
        return noise + shift

    discriminator = trained_discriminator(h, lambda: made().detach())

    def gap():
        return (made().mean(0) - h.mean(0)).norm().item()

    before, told = gap(), discriminator(made(), Y).mean().item()
    for _ in range(5):
        descend(sgd(0.5)([shift]), lambda: generation(discriminator(made(), Y), form))
    nearer, lower = gap() < before, discriminator(made(), Y).mean().item() < told
    assert (nearer, lower) == ((True, True) if form == "toward" else (False, False))


def test_a_models_step_makes_its_features_look_like_the_reference():
    shift, base = nn.Parameter(torch.zeros(8)), torch.randn(64, 8) + 1
    noise = torch.randn(64, 8)
    discriminator = trained_discriminator(base, lambda: noise)
    before = discriminator(base + shift, Y).mean().item()
    descend(sgd(0.5)([shift]), lambda: (1 - discriminator(base + shift, Y)).square().mean())
    assert discriminator(base + shift, Y).mean().item() > before


def test_labels_reach_generator_and_discriminator_only_if_they_are_to():
    noise, h = torch.rand(4, 4), torch.rand(4, 8)
    for hot in (1.0, 0.0):
        made, told = Generator(8, 3, hot), Discriminator(8, 3, hot, "fixed")
        one, other = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
        assert torch.equal(made(noise, one), made(noise, other)) is (hot == 0)
        assert torch.equal(told(h, one), told(h, other)) is (hot == 0)


def test_fixed_references_have_the_spread_they_should():
    rng = torch.Generator().manual_seed(0)
    spreads = {name: float(draw(name, 2000, 50, rng).std()) for name in ("normal", "uniform", "laplace")}
    assert spreads == pytest.approx({"normal": 1, "uniform": 3**-0.5, "laplace": 1}, abs=0.02)
    assert draw("generator", 5, 50, rng).shape == (5, 25)


def test_a_fixed_reference_needs_no_generator():
    method = fedadg(reference="normal")
    assert method.shared == ("model",) and set(method.sends["train"]) == {"model"}
    assert "generator" not in method.networks(toy.TASK)


@pytest.mark.parametrize(("classify", "align"), [(0, 1), (1, 0)])
def test_without_generator_and_discriminator_it_is_fedsbs_smoothing_to_the_bit(classify, align):
    method = fedadg(classify=classify, align=align, adversarial=0.0, smoothing=0.2)
    assert_equal(model(method), model(fedsb(smoothing=0.2, budget=None)))
    bare = fedadg(classify=classify, align=align, adversarial=0.0, smoothing=0.0)
    assert_equal(model(bare), model(fedavg("uniform")))


def test_both_phases_are_epochs_like_any_other():
    short, longer = fedadg(1, 1, adversarial=0.0), fedadg(0, 2, adversarial=0.0)
    assert_equal(model(short), model(longer))


def test_only_aligning_trains_the_discriminator():
    _, kept, _ = played(fedadg(classify=1, align=0), rounds=1)
    method = fedadg(classify=1, align=0)
    fresh = Simulator(method.client, toy.sites(method)).client_states["east"]["private"]
    assert_equal(tree.flatten(kept["east"]["discriminator"]), tree.flatten(fresh["discriminator"]))


def test_nothing_to_train_is_refused():
    with pytest.raises(ConfigError, match="train for no epoch"):
        fedadg(classify=0, align=0)


def test_views_of_an_augmentation_are_aligned_too():
    from fedbeyond.wrappers.rc import rc

    seen = []

    def watch(batch, rng):
        seen.append(len(batch.merged[0]))
        return batch

    method = rc(fedadg(classify=0, align=1))
    inner = method.augment
    model(replace(method, augment=lambda batch, rng: watch(inner(batch, rng), rng)), rounds=1)
    assert max(seen) == 16  # batches of eight, each with its view


def one_batch(momentum=0.0, rounds=1, **options):
    """A site with a single batch plays some rounds of aligning; the same is done by hand, step by step."""
    method = fedadg(classify=0, align=1, optimizer=sgd(0.1, momentum=momentum), **options)
    site = toy.sites(method, {"east": 8})[0]
    private = method.client.init(site.reseed(0, "init"))
    received = toy.shared(method)
    kept = private
    for number in range(rounds):
        reply, kept = method.client.handlers["train"](site.reseed(number, "train"), received, kept)
    return method, site, received, private, reply, kept


def test_a_batch_of_aligning_by_hand():
    """Steps c5 to c8, each with the others frozen, from gradients taken apart from the method's own code."""
    method, site, received, private, reply, kept = one_batch(adversarial=0.4, smoothing=0.2)
    nets = method.networks(toy.TASK)
    net, discriminator, generator = (nets[name] for name in ("model", "discriminator", "generator"))
    write(net, received["model"]), write(generator, received["generator"])
    write(discriminator, private["discriminator"])
    site.reseed(0, "train")
    ((x, y, *_),) = site.batches(1)

    def descended(module, loss, rate):
        slopes = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        with torch.no_grad():
            for param, slope in zip(module.parameters(), slopes, strict=True):
                param.sub_(rate * slope) if slope is not None else None

    h = net.features(x)
    smooth = torch.nn.functional.cross_entropy(net.head(h), y, label_smoothing=0.2)
    descended(net, 0.4 * (1 - discriminator(h, y)).square().mean() + 0.6 * smooth, 0.1)
    assert_close(reply["model"]["params"], dict(net.named_parameters()))
    assert reply["model"]["buffers"]["body.1.num_batches_tracked"] == 1  # D's look at the features does not count
    assert_close(reply["model"]["buffers"], dict(net.named_buffers()))
    h = net.features(x).detach()
    made = generator(torch.rand(8, 2, generator=site.rng), y)
    told = discriminator(h, y).square().mean() + (1 - discriminator(made.detach(), y)).square().mean()
    descended(discriminator, told, 0.07)
    assert_close(kept["discriminator"]["params"], dict(discriminator.named_parameters()))
    descended(generator, discriminator(made, y).square().mean(), 0.07)
    assert_close(reply["generator"]["params"], dict(generator.named_parameters()))


def test_a_discriminators_momentum_goes_on_from_round_to_round():
    *_, once = one_batch(momentum=0.9)
    *_, twice = one_batch(momentum=0.9, rounds=2)
    method, site, received, _, _, _ = one_batch(momentum=0.9)
    forgotten = method.client.handlers["train"](site.reseed(1, "train"), received, once | {"momentum": {}})[1]
    remembered = method.client.handlers["train"](site.reseed(1, "train"), received, once)[1]
    assert_equal(tree.flatten(remembered), tree.flatten(twice))
    fast, slow = (tree.flatten(kept["discriminator"]["params"]) for kept in (remembered, forgotten))
    ours = tree.flatten(once["discriminator"]["params"])
    for place, name in enumerate(ours):  # the difference is the old speed, times the momentum and the rate
        speed = once["momentum"][str(place)]["momentum_buffer"]
        torch.testing.assert_close(slow[name] - fast[name], 0.07 * 0.9 * speed, rtol=1e-3, atol=1e-6)
