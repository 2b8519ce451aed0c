"""What methods conclude from how far a site moved, under every optimizer: SCAFFOLD, FedNova, FedDyn, Per-FedAvg."""

import math

import pytest
import torch
from pytest import approx
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import write
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.feddyn import feddyn
from fedbeyond.methods.fednova import fednova
from fedbeyond.methods.perfedavg import perfedavg
from fedbeyond.methods.scaffold import scaffold
from fedbeyond.optimizers import adam, is_sgd, reach, sam, sgd, sharp, travel
from fedbeyond.server import Round
from fedbeyond.testing import toy
from fedbeyond.testing.laws import LAWS, check_method
from support.asserts import assert_close, assert_equal
from support.by_hand import play_rounds, slope, weight


def made(optimizer):
    return optimizer([torch.zeros(1, requires_grad=True)])


def controls(state):
    """The control variates of the sites a and b after the last round of a run, and of the server."""
    kept = [state["clients"][site]["pending"]["private"]["control"]["w"].item() for site in ("a", "b")]
    return [*kept, state["server"]["control"]["w"].item()]


# --- which optimizers take steps that are weighted sums of gradients


def test_sgd_is_told_from_optimizers_whose_steps_are_no_sums_of_gradients():
    assert is_sgd(made(sgd(momentum=0.9))) and is_sgd(made(sam())) and is_sgd(made(lambda p: torch.optim.SGD(p, 0.1)))
    assert not is_sgd(made(adam())) and not is_sgd(made(sharp(adam(), 0.1)))
    assert not is_sgd(made(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)))
    rmsprop = made(lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9))  # it has a momentum, but of another kind
    assert not is_sgd(rmsprop) and reach(rmsprop, 7) == 7


def test_travel_is_zero_where_a_displacement_does_not_determine_gradients():
    assert travel(made(sgd(lr=0.5, momentum=0.5)), 2) == 0.5 * 2.5
    assert travel(made(adam()), 2) == 0 and travel(made(sgd(lr=0.0)), 2) == 0
    two_rates = [{"params": [torch.zeros(1)], "lr": 0.1}, {"params": [torch.zeros(1)], "lr": 0.2}]
    assert travel(torch.optim.SGD(two_rates), 2) == 0


# --- SCAFFOLD


@pytest.mark.parametrize("epochs", [1, 3])
def test_scaffolds_control_under_adam_is_the_gradient_at_the_received_model(epochs):
    (first,) = play_rounds(scaffold(optimizer=adam(lr=0.1)), 1, batch_size=2, epochs=epochs)
    assert controls(first) == approx([-1.0, 0.5, -0.25])
    received = weight(first)
    *_, second = play_rounds(scaffold(optimizer=adam(lr=0.1)), 2, batch_size=2, epochs=epochs)
    slopes = [slope(received, "a"), slope(received, "b")]
    assert controls(second) == approx([*slopes, sum(slopes) / 2], abs=1e-6)


def test_scaffold_under_adam_follows_the_mean_gradient():
    # Adam's first step is lr * sign. Round 1: a to 0.1, b to -0.1, the mean stays at 0. Round 2: g_i - c_i + c is c =
    # -0.25 at both sites, so both move to 0.1. (Steps / lr would have been controls of -1 and 1: a would not move.)
    first, second = play_rounds(scaffold(optimizer=adam(lr=0.1)), 2)
    assert weight(first) == approx(0.0, abs=1e-6) and weight(second) == approx(0.1, rel=1e-5)


@pytest.mark.parametrize(("momentum", "decay"), [(0.5, 0.0), (0.5, 0.3), (0.9, 0.0)])
def test_scaffolds_control_is_the_mean_of_corrected_gradients_also_with_momentum(momentum, decay):
    """Two rounds of three steps; gradient k of n counts (1 - momentum^(n - k)) / (1 - momentum) in a displacement."""
    lr, w, known = 0.2, 0.0, {"a": 0.0, "b": 0.0}
    counts = [(1 - momentum ** (3 - k)) / (1 - momentum) for k in range(3)]
    for state in play_rounds(scaffold(optimizer=sgd(lr, momentum, decay)), 2, epochs=3, batch_size=9):
        shared, ends, new = sum(known.values()) / 2, [], {}
        for site, own in known.items():
            v, speed, seen = w, 0.0, []
            for _ in range(3):
                seen.append(slope(v, site) + decay * v)  # without the correction
                speed = momentum * speed + seen[-1] - own + shared
                v -= lr * speed
            ends.append(v)
            new[site] = sum(count * g for count, g in zip(counts, seen, strict=True)) / sum(counts)
        w, known = sum(ends) / 2, new
        assert weight(state) == approx(w, abs=1e-6)
        assert state["server"]["control"]["w"].item() == approx(sum(known.values()) / 2, abs=1e-5)
    assert controls(state)[:2] == approx([*known.values()], abs=1e-5)


def test_scaffolds_control_under_sam_is_the_gradient_that_was_followed():
    rho = 0.3
    (state,) = play_rounds(scaffold(optimizer=sam(rho, lr=0.5)), 1)
    assert controls(state)[:2] == approx([slope(-rho, "a"), slope(rho, "b")], abs=1e-6)  # uphill of 0


def trained(method, pace=1.0):
    """The first answer of a toy site, and what it keeps."""
    site = toy.sites(method)[0]
    site.schedule = lambda played: pace
    body = next(method.server.round(method.server.init(toy.shared(method)), Round(0, 9, ("east",), ("east",)))).body
    private = method.client.init(site)
    return *method.client.handlers["train"](site.reseed(0, "train"), body, private), body, site


def test_a_schedule_does_not_change_how_scaffold_measures_gradients():
    slower, _, *_ = trained(scaffold(optimizer=sgd(0.1, 0.9)), pace=0.5)
    as_slow, _, *_ = trained(scaffold(optimizer=sgd(0.05, 0.9)))
    assert_equal(tree.flatten(slower), tree.flatten(as_slow))


@pytest.mark.parametrize(("optimizer", "pace"), [(sgd(0.1), 0.0), (adam(), 1.0)], ids=["no step", "adam"])
def test_scaffold_measures_the_gradient_itself_where_steps_do_not_tell_it(optimizer, pace):
    reply, kept, body, site = trained(scaffold(optimizer=optimizer), pace)
    net = write(toy.nets(scaffold())["model"], body["model"]).train()
    slopes = []
    for batch in toy.sites(scaffold())[0].reseed(0, "train").batches(2):  # the second epoch of the same stream
        loss = F.cross_entropy(net(batch.x), batch.y) * len(batch.y) / site.size
        slopes.append(torch.autograd.grad(loss, list(net.parameters())))
    half = slopes[len(slopes) // 2 :]
    expected = {n: sum(s[i] for s in half) for i, (n, _) in enumerate(net.named_parameters())}
    assert_close(kept["control"], expected)
    assert_equal(reply["control"], kept["control"])  # the first change is the control itself
    plain, _, *_ = trained(fedavg(optimizer=optimizer), pace)
    assert_close(tree.flatten(reply["model"]), tree.flatten(plain["model"]))  # statistics took no note of it


def test_scaffold_obeys_the_laws_under_adam():
    """All but `symmetric`, as FedAvg: of gradients that are zero but for rounding, Adam makes whole steps."""
    check_method(
        lambda: scaffold(optimizer=adam()), laws={name: law for name, law in LAWS.items() if name != "symmetric"}
    )


# --- FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("mu", [0.0, 1e-9, 0.3, 5.0])
def test_reach_is_the_displacement_of_torchs_sgd_under_a_constant_gradient(momentum, mu):
    start, lr, g = 0.7, 0.05, 3.0
    w = torch.full((1,), start, dtype=torch.float64, requires_grad=True)
    real, ours = torch.optim.SGD([w], lr, momentum), made(sgd(lr, momentum))
    for steps in range(1, 31):
        w.grad = (g + mu * (w - start)).detach()
        real.step()
        assert (start - w.item()) / (lr * g) == approx(reach(ours, steps, pull=mu), rel=1e-9)


def test_reach_of_adam_is_its_steps_also_with_a_proximal_term():
    assert reach(made(adam(lr=0.1)), 7, pull=3.0) == 7


def test_fednova_with_momentum_and_a_proximal_term_by_hand():
    lr, mu, momentum, ends, free = 0.2, 0.4, 0.5, {}, {}
    for site, steps in (("a", 1), ("b", 3)):
        w = speed = reached = pulled = without = gained = 0.0
        for _ in range(steps):
            speed = momentum * speed + slope(w, site) + mu * w
            w -= lr * speed
            pulled = momentum * pulled + 1 - lr * mu * reached
            reached += pulled
            gained = momentum * gained + 1
            without += gained
        ends[site], free[site] = w / reached, without
    assert free == {"a": 1.0, "b": 1 + 1.5 + 1.75}
    effective = (free["a"] + 3 * free["b"]) / 4
    (state,) = play_rounds(fednova(mu, optimizer=sgd(lr, momentum)), 1, batch_size=1)
    assert weight(state) == approx(effective * (ends["a"] + 3 * ends["b"]) / 4, abs=1e-6)


@pytest.mark.parametrize("optimizer", [sgd(0.1), sgd(0.1, 0.9), adam(0.1)], ids=["sgd", "momentum", "adam"])
def test_fednova_does_not_jump_where_a_proximal_term_begins(optimizer):
    without, barely = (play_rounds(fednova(mu, optimizer=optimizer), 1, batch_size=1)[0] for mu in (0.0, 1e-9))
    assert weight(barely) == approx(weight(without), rel=1e-5)


def test_fednova_refuses_a_proximal_term_that_overshoots():
    # lr * mu = 3: the first step leads to 1, the second to 1 + (1 - 3) = -1, behind the start
    with pytest.raises(FederationError, match=r"the proximal term mu=30 overshoots.*use mu well below 1/lr = 10"):
        play_rounds(fednova(30.0, optimizer=sgd(0.1)), 1, epochs=2)
    with pytest.raises(ConfigError, match="mu=-1 is not valid"):
        registry.build("fednova(mu=-1)")


# --- methods that assume nothing about the optimizer


@pytest.mark.parametrize("optimizer", [sgd(0.05, 0.9), adam(0.01)], ids=["momentum", "adam"])
def test_feddyn_ends_at_the_minimum_of_the_mean_loss_under_any_optimizer(monkeypatch, optimizer):
    monkeypatch.setattr("fedbeyond.engine.gate.PARAMETERS_TIMES", math.inf)  # one weight may well differ tenfold
    best = 0.0
    for _ in range(200):
        best -= 0.5 * (slope(best, "a") + slope(best, "b"))
    ended = play_rounds(feddyn(0.2, optimizer=optimizer), 30, epochs=20)[-1]
    assert weight(ended) == approx(best, abs=0.01)


def test_perfedavgs_inner_step_is_of_its_own_size_under_momentum():
    alpha, lr, momentum, ends = 0.7, 0.5, 0.9, []
    for site in ("a", "b"):
        v = speed = 0.0
        for _ in range(2):
            speed = momentum * speed + slope(v - alpha * slope(v, site), site)
            v -= lr * speed
        ends.append(v)
    (state,) = play_rounds(perfedavg(alpha, optimizer=sgd(lr, momentum)), 1, epochs=2)
    assert weight(state) == approx(sum(ends) / 2, abs=1e-6)
