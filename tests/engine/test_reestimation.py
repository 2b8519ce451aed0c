"""BatchNorm statistics of an aggregated model, measured layer by layer at the sites and combined."""

import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedbeyond import tree
from fedbeyond.classifier import Classifier, Task, read, write
from fedbeyond.engine.gate import Gate
from fedbeyond.engine.reestimation import SuspendedPasses, combine_moments, levels_of, moments_of, reestimate_models
from fedbeyond.errors import ConfigError, PolicyError
from fedbeyond.experiment import registry
from fedbeyond.flower.policy import Policy
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.networks import batchnorm
from fedbeyond.networks.groupnorm import with_group_norm
from fedbeyond.networks.moments import Pass, levels, measure_layers, tracked_layers
from fedbeyond.networks.running_statistics import refresh
from fedbeyond.server import Failure, Reply, Request
from fedbeyond.testing import toy


class Forked(nn.Module):
    """A layer, another behind it, and a third beside both: the first and the third depend on no other."""

    def __init__(self):
        super().__init__()
        self.first, self.beside, self.behind = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.last, self.unused = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        main = self.behind(torch.tanh(self.first(x)))
        return self.last(main + self.beside(x * 2).detach())


def forked(task):
    return Classifier(Forked(), 3, len(task.classes))


def three_sites(network=forked, sizes=toy.SIZES):
    """Sites with networks whose scales, shifts and running statistics are anything but fresh."""
    method = replace(fedavg(), networks=lambda task: {"model": network(task)})
    sites = toy.sites(method, sizes)
    draws = torch.Generator().manual_seed(3)
    net = sites[0].nets["model"]
    with torch.no_grad():
        for value in (*net.parameters(), *net.buffers()):
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=draws) + 0.5)
    return {site.name: site for site in sites}, read(net)


def gate_of(sites, model):
    return Gate({}, {"model": model}, {name: site.size for name, site in sites.items()})


def by_size(sites):
    return {name: float(site.size) for name, site in sites.items()}


def anew(sites, model, weights=None, measure=None):
    found = levels(next(iter(sites.values())).nets["model"], toy.TASK.shape)
    passes = SuspendedPasses(sites)
    outcome = reestimate_models(
        {"model": model}, found, weights or by_size(sites), measure or passes.measure, gate_of(sites, model), 0
    )
    passes.close()
    return outcome


def test_layers_that_do_not_depend_on_each_other_are_measured_together():
    net = forked(toy.TASK)
    assert levels(net, toy.TASK.shape) == (("body.first", "body.beside"), ("body.behind",), ("body.last",))
    assert "body.unused" in tracked_layers(net)  # it is never called, and keeps what it has
    assert levels(with_group_norm(toy.tiny(toy.TASK)), toy.TASK.shape) == ()


@pytest.mark.parametrize(("spelled", "layers", "exchanges"), [("resnet18", 20, 17), ("convnet", 4, 4)])
def test_a_network_takes_an_exchange_a_layer_less_those_beside_others(spelled, layers, exchanges):
    network = registry.make_one("networks", spelled)
    net = network(Task(("a", "b"), (3, 32, 32), network))
    assert len(tracked_layers(net)) == layers and len(levels(net, (3, 32, 32))) == exchanges


def test_moments_combine_by_the_law_of_total_variance():
    one = {"mean": torch.tensor([1.0]), "deviation": torch.tensor([2.0])}
    other = {"mean": torch.tensor([5.0]), "deviation": torch.tensor([0.0])}
    found = combine_moments([one, other], [30, 10])
    assert found["mean"].item() == 2.0  # 3/4 * 1 + 1/4 * 5
    assert found["variance"].item() == 6.0  # within 3/4 * 4, between 3/4 * 1 + 1/4 * 9
    assert combine_moments([one, other], [0, 0])["mean"].item() == 3.0  # who all weigh nothing count equally


@pytest.mark.parametrize("network", [forked, toy.tiny])
def test_statistics_are_those_of_one_batch_of_all_images_if_sites_count_by_their_size(network):
    sites, model = three_sites(network)
    fresh = anew(sites, model).models["model"]
    net = write(sites["east"].nets["model"], model)
    refresh(net, torch.cat([site.clean() for site in sites.values()]))  # what no federation can do
    want = read(net)
    for name, leaf in fresh["buffers"].items():
        if "unused" in name:
            assert torch.equal(leaf, model["buffers"][name])
        elif leaf.is_floating_point():
            torch.testing.assert_close(leaf, want["buffers"][name], rtol=1e-4, atol=1e-5)
            assert not torch.allclose(leaf, model["buffers"][name])
        else:
            assert torch.equal(leaf, model["buffers"][name])


def test_parameters_are_untouched_and_so_is_the_model_that_was_given():
    sites, model = three_sites()
    before = tree.map(torch.clone, model)
    fresh = anew(sites, model).models["model"]
    assert all(torch.equal(fresh["params"][name], model["params"][name]) for name in model["params"])
    assert tree.digest(before) == tree.digest(model)


def test_sites_count_by_their_weights_in_the_round():
    sites, model = three_sites(toy.tiny)
    alone = anew(sites, model, {"north": 0.5}).models["model"]
    net = write(sites["north"].nets["model"], model)
    refresh(net, sites["north"].clean())
    torch.testing.assert_close(alone["buffers"], read(net)["buffers"])
    uneven = anew(sites, model, {"east": 0.9, "north": 0.1}).models["model"]["buffers"]["body.1.running_mean"]
    means = {
        name: moments_of(site, model, request("body.1")).body["moments"]["body.1"]["mean"]
        for name, site in sites.items()
    }
    torch.testing.assert_close(uneven, 0.9 * means["east"] + 0.1 * means["north"])


def request(*wanted, known=None, model=None):
    body = {"wanted": {name: torch.empty(0) for name in wanted}, "known": known or {}, "remaining": torch.tensor(0)}
    return Request("statistics", body | ({"model": model} if model else {}), tuple(sorted(toy.SIZES)))


@pytest.mark.parametrize("network", [forked, toy.tiny])
def test_a_pass_that_waits_and_passes_begun_anew_give_the_same_bits(network):
    sites, model = three_sites(network)
    held = {}

    def stateless(request, number):
        held.setdefault("model", request.body.get("model"))
        return {name: moments_of(sites[name], held["model"], request) for name in reversed(request.to)}

    waiting, stateless = anew(sites, model), anew(sites, model, measure=stateless)
    assert tree.digest(waiting.models["model"]) == tree.digest(stateless.models["model"])
    assert waiting.ledger == stateless.ledger and waiting.received == stateless.received


def test_no_pass_waits_when_all_is_measured():
    sites, model = three_sites()
    passes, before = SuspendedPasses(sites), threading.active_count()
    seen = []

    def measure(request, number):
        answers = passes.measure(request, number)
        seen.append(threading.active_count() - before)
        return answers

    anew(sites, model, measure=measure)
    assert seen == [0, 3, 0]  # the first level, of two layers, is measured by passes of its own


def test_a_pass_computes_every_layer_once():
    sites, model = three_sites(toy.tiny)
    calls, net = [], sites["east"].nets["model"]
    hook = net.body[0].register_forward_hook(lambda *given: calls.append(given))
    anew(sites, model)
    hook.remove()
    assert len(calls) == len(sites) + 1  # and one to see which layers there are


@pytest.mark.parametrize("room", [0, 4000, 6000])  # bytes: for no pass that waits, one, two
def test_sites_for_whose_passes_there_is_no_room_are_measured_all_the_same(monkeypatch, room):
    sites, model = three_sites(toy.tiny)
    want = anew(sites, model)
    monkeypatch.setattr("fedbeyond.engine.reestimation.MAX_WAITING", room)
    assert tree.digest(anew(sites, model).models["model"]) == tree.digest(want.models["model"])


def test_a_site_whose_images_cannot_be_read_is_set_aside(monkeypatch):
    sites, model = three_sites()
    monkeypatch.setattr(sites["north"], "clean", lambda: 1 / 0)
    outcome = anew(sites, model)
    assert [(one.client, one.reason) for one in outcome.rejected] == [("north", "ZeroDivisionError: division by zero")]


@pytest.mark.parametrize("fault", ["raises", "nan", "shape", "name"])
@pytest.mark.parametrize("level", [0, 1])
def test_a_site_that_fails_at_a_level_counts_as_absent_from_then_on(fault, level):
    def failing(kind):
        sites, model = three_sites()
        passes, seen = SuspendedPasses(sites), []

        def measure(request, number):
            answers = passes.measure(request, number)
            seen.append(request.to)
            if len(seen) - 1 == level:
                reply = answers["north"]
                broken = {
                    "absent": Failure("north", "did not answer"),
                    "raises": Failure("north", "ValueError: no"),
                    "nan": reply._replace(body=tree.map(lambda leaf: leaf * torch.nan, reply.body)),
                    "shape": reply._replace(body=tree.map(lambda leaf: leaf[:1], reply.body)),
                    "name": Reply("east", reply.body, reply.weight),
                }
                answers["north"] = broken[kind]
            return answers

        outcome = anew(sites, model, measure=measure)
        passes.close()
        return outcome, seen

    (want, asked), (got, _) = failing("absent"), failing(fault)
    assert tree.digest(got.models["model"]) == tree.digest(want.models["model"])
    assert asked[level] == ("east", "north", "west") and asked[level + 1] == ("east", "west")
    assert [failure.client for failure in got.rejected] == ["north"]


def test_without_any_moments_a_model_keeps_its_statistics_and_the_sites_are_named():
    sites, model = three_sites()
    outcome = anew(sites, model, measure=lambda request, number: {})
    assert outcome.models["model"] is model
    assert [one.client for one in outcome.rejected] == ["east", "north", "west"]


def test_moments_that_overflow_together_are_not_used():
    sites, model = three_sites(toy.tiny)

    def measure(request, number):
        huge = {"body.1": {"mean": torch.zeros(4), "deviation": torch.full((4,), 1e30)}}
        return {name: Reply(name, {"moments": huge}, site.size) for name, site in sites.items()}

    outcome = anew(sites, model, measure=measure)
    assert outcome.models["model"] is model
    assert {one.reason for one in outcome.rejected} == {
        "sent moments that together are not finite; the model keeps averaged statistics"
    }


def test_a_site_that_is_away_leaves_its_own_model_as_it_is():
    """Each site's own model goes by that site alone: the others' are measured all the same."""
    sites, model = three_sites(toy.tiny)
    passes = SuspendedPasses(sites)

    def measure(request, number):
        return {} if request.to == ("north",) else passes.measure(request, number)

    found = levels(sites["east"].nets["model"], toy.TASK.shape)
    models = dict.fromkeys(sites, model)
    outcome = reestimate_models(models, found, by_size(sites), measure, gate_of(sites, model), 0)
    assert [name for name, own in outcome.models.items() if own is model] == ["north"]
    assert [one.client for one in outcome.rejected] == ["north"]


def test_a_sites_own_model_goes_by_that_sites_moments_alone():
    sites, model = three_sites(toy.tiny)
    found = levels(sites["east"].nets["model"], toy.TASK.shape)
    outcome = reestimate_models(
        {"east": model, "west": model}, found, by_size(sites), SuspendedPasses(sites).measure, gate_of(sites, model), 0
    )
    for name, own in outcome.models.items():
        want = anew(sites, model, {name: 1.0}).models["model"]
        assert tree.digest(own) == tree.digest(want)


def test_what_leaves_is_declared_as_statistics_and_counted():
    sites, model = three_sites(toy.tiny)
    outcome = anew(sites, model)
    assert {(left.client, left.request, left.name, left.kind, left.bytes) for left in outcome.ledger} == {
        (name, "statistics", "moments", "statistics", 2 * 4 * 4)
        for name in sites  # mean and deviation of 4 channels
    }
    assert outcome.received["east"] == tree.size(model) + 8  # and how many levels remain


def test_an_error_in_a_pass_reaches_who_waits_for_it():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            self.norm(x)
            raise ValueError("broken behind the layer")

    one = Pass(Broken(), torch.ones(3, 2))
    assert one.advance({})[0] == "norm"
    with pytest.raises(ValueError, match="broken behind"):
        one.advance({"norm": {"mean": torch.zeros(2), "variance": torch.ones(2)}})
    one.close()


def test_a_layer_that_a_network_does_not_use_is_not_measured():
    with pytest.raises(ValueError, match=r"the network does not use body\.unused"):
        measure_layers(forked(toy.TASK), torch.ones(2, *toy.TASK.shape), {}, ["body.unused"])


def test_dp_adds_no_noise_to_moments_so_both_together_are_refused_where_there_are_any():
    method = batchnorm.POLICIES["reestimate"](registry.build("fedavg+dp"))
    assert levels_of(method, with_group_norm(toy.tiny(toy.TASK)), toy.TASK.shape) == ()
    with pytest.raises(ConfigError, match=r"dp adds no noise; set train\.batchnorm = 'average'"):
        levels_of(method, toy.tiny(toy.TASK), toy.TASK.shape)
    assert levels_of(fedavg(), toy.tiny(toy.TASK), toy.TASK.shape) == ()  # not wanted


def test_a_policy_without_statistics_refuses_and_names_what_works():
    Policy(sends=("parameters", "statistics")).ensure_statistics_allowed()
    Policy().ensure_statistics_allowed()
    with pytest.raises(PolicyError, match=r"policy allows parameters to leave\. Set train\.batchnorm = 'average'"):
        Policy(sends=("parameters",)).ensure_statistics_allowed()


class Twice(nn.Module):
    """A layer that is called again behind another."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.a(torch.tanh(self.b(torch.tanh(self.a(x)))))


class InPlace(Twice):
    """What the first layer puts out is written into a tensor: nobody who looks at results sees it go there."""

    def forward(self, x):
        held = torch.zeros_like(x)
        held[:, :] = torch.tanh(self.a(x))
        return self.b(held)


@pytest.mark.parametrize("body", [Twice, InPlace])
def test_a_layer_is_measured_behind_those_that_it_depends_on_however_they_are_called(body):
    sites, model = three_sites(lambda task: Classifier(body(), 3, len(task.classes)))
    assert levels(sites["east"].nets["model"], toy.TASK.shape) == (("body.a",), ("body.b",))
    held = {}

    def stateless(request, number):
        held.setdefault("model", request.body.get("model"))
        return {name: moments_of(sites[name], held["model"], request) for name in request.to}

    waiting, anew_each = anew(sites, model), anew(sites, model, measure=stateless)
    assert tree.digest(waiting.models["model"]) == tree.digest(anew_each.models["model"]) != tree.digest(model)


def test_looking_for_levels_changes_nothing_in_a_network():
    sites, _ = three_sites()
    before, state = tree.digest(read(sites["east"].nets["model"])), torch.random.get_rng_state()
    levels(sites["east"].nets["model"], toy.TASK.shape)
    assert tree.digest(read(sites["east"].nets["model"])) == before
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in sites["east"].nets["model"].modules())


def test_a_network_that_ends_the_process_is_not_waited_for():
    class Ending(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            raise SystemExit("no more")

    with pytest.raises(SystemExit, match="no more"):
        Pass(Ending(), torch.ones(3, 2)).advance({})


def test_a_layer_that_a_network_lacks_is_named():
    with pytest.raises(ValueError, match=r"no BatchNorm layer body\.9; it has body\.1"):
        measure_layers(toy.tiny(toy.TASK), torch.ones(2, *toy.TASK.shape), {}, ["body.9"])


@pytest.mark.parametrize(("width", "groups"), [(512, 32), (64, 32), (16, 8), (12, 2), (6, 1), (5, 1), (1, 1)])
def test_group_norm_has_up_to_32_groups_of_two_channels_or_more(width, groups):
    net = with_group_norm(nn.Sequential(nn.BatchNorm2d(width)))
    assert isinstance(net[0], nn.GroupNorm) and net[0].num_groups == groups


def test_group_norm_cannot_start_from_numbers_of_batchnorm():
    network = registry.make_one("networks", "resnet18(weights=some.pth, norm=group)")
    with pytest.raises(ConfigError, match=r"resnet18\(norm=group\) cannot start from some\.pth"):
        network(Task(("a", "b"), (3, 32, 32), network))
