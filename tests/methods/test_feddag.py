"""FedDAG: the generator against the student, the teacher behind it, and how models are scored and averaged."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from torch import nn
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import read, write
from fedbeyond.client import descend
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError, FederationError
from fedbeyond.experiment import registry
from fedbeyond.methods.ats import ats
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.feddag import feddag
from fedbeyond.methods.ndag import (
    distance,
    follow,
    ndag,
    novelty,
    perturbing,
    student_loss,
    teacher_decay,
    warn_if_idle,
)
from fedbeyond.networks.fcn import Fcn, Normalised
from fedbeyond.networks.weights import normalised
from fedbeyond.optimizers import sgd
from fedbeyond.server import Envelope, Reply, Request, Round
from fedbeyond.site import Site
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty
from fedbeyond.testing.laws import simulate
from fedbeyond.wrappers.ga import ga
from fedbeyond.wrappers.sha import (
    average_with_history,
    choose_evaluators,
    evaluate,
    perturb,
    pruned,
    score,
    sha,
    share_changed,
)
from support.asserts import assert_close, assert_equal, model


@pytest.fixture
def trio():
    torch.manual_seed(0)
    student, teacher, generator = toy.tiny(toy.TASK), toy.tiny(toy.TASK), Fcn(3, 8)
    return student.eval(), teacher.eval(), generator


X, Y = torch.randn(12, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3

# NDAG, the local training


def test_the_generator_is_as_wide_as_said_and_perturbs_between_minus_one_and_one():
    for width in (16, 32):
        made = Fcn(3, width)
        out = made(torch.randn(2, 3, 32, 32) * 9)
        assert out.shape == (2, 3, 32, 32) and out.abs().max().item() <= 1
        assert made.out.in_channels == width and not list(made.buffers())
        assert sum(isinstance(part, nn.Conv2d) for part in made.modules()) == 1 + 3 * 2 + 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_generator_normalises_each_channel_of_each_image_as_torch_does_slopes_included(layout):
    x = torch.randn(3, 4, 6, 5, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    slope = torch.randn_like(x)
    ours, theirs = Normalised(), nn.InstanceNorm2d(4)
    assert torch.allclose(ours(x), theirs(x), atol=1e-12)
    (got,), (want,) = (torch.autograd.grad(norm(x), x, slope) for norm in (ours, theirs))
    assert torch.allclose(got, want, atol=1e-12) and got.is_contiguous(memory_format=torch.channels_last)
    (first,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):  # rather than a wrong second slope
        first.sum().backward()


def test_the_generator_mixes_every_place_with_the_mean_over_the_image():
    torch.manual_seed(0)
    made, x = Fcn(3, 8), torch.randn(2, 3, 7, 5)
    nn.init.normal_(made.context.bias)
    h = made.body(x)
    both = torch.cat((h, h.mean((2, 3), keepdim=True).expand_as(h)), 1)
    torch.testing.assert_close(made(x), made.out(made.context(both).relu()).tanh())
    flat = made.body[:2](x).flatten(2)  # normalised: each channel of each image by itself
    torch.testing.assert_close(flat.mean(2), torch.zeros(2, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(flat.std(2, correction=0), torch.ones(2, 8), atol=0.1, rtol=0)


def test_a_generators_step_raises_the_distance_of_images_below_the_margin(trio):
    student, teacher, generator = trio
    seen = teacher.features(X).detach()

    def far():
        return distance(seen, student.features(X + 0.3 * generator(X))).detach()

    before = far()
    margin = float(before.max()) + 1
    step = sgd(0.5)(generator.parameters())
    with torch.no_grad():
        student.head.weight.zero_(), student.head.bias.zero_()  # it knows no class, so that novelty is all that counts
    for _ in range(5):
        descend(step, lambda: novelty(student, X + 0.3 * generator(X), Y, seen, margin)[0])
    assert float(far().mean()) > float(before.mean())


def test_images_beyond_the_margin_give_the_generator_no_slope(trio):
    student, teacher, _ = trio
    seen = teacher.features(X).detach()
    novel = (X + 0.5).requires_grad_()
    far = distance(seen, student.features(novel)).detach()
    margin = float(far.median())
    with torch.no_grad():
        student.head.weight.zero_(), student.head.bias.zero_()
    (slope,) = torch.autograd.grad(novelty(student, novel, Y, seen, margin)[0], novel)
    moved = slope.flatten(1).abs().amax(1) > 0
    assert torch.equal(moved, far <= margin) and 0 < int(moved.sum()) < 12


def test_novelty_and_steadiness_by_hand(trio):
    student, teacher, _ = trio
    seen, h = teacher.features(X), student.features(X)
    apart = (seen / seen.norm(dim=1, keepdim=True) - h / h.norm(dim=1, keepdim=True)).square().sum(1)
    error = nn.functional.cross_entropy(student(X), Y)
    margin = float(apart.median().detach())
    loss, far = novelty(student, X, Y, seen, margin)
    torch.testing.assert_close(loss, error - apart.clamp(max=margin).mean())
    torch.testing.assert_close(far, apart)
    torch.testing.assert_close(student_loss(student, X, Y, seen), error + apart.mean())
    other = nn.functional.cross_entropy(student(X + 1), Y)
    both = student_loss(student, X, Y, seen, old=X + 1)
    torch.testing.assert_close(both, (error + other) / 2 + apart.mean())
    student.train()
    student_loss(student, X, Y, seen, old=X + 1)
    assert student.body[1].num_batches_tracked == 1  # one pass


def test_a_generator_that_does_not_count_learns_nothing_and_changes_nothing():
    state = simulate(ndag(alpha=0.0, width=4, warmup=0))[0]["server"]
    assert_close(tree.flatten(state["generator"]), tree.flatten(toy.shared(ndag(width=4))["generator"]))
    warm, cold = (model(ndag(alpha=0.0, width=4, warmup=w, decay=0.0)) for w in (9, 0))
    assert any(not torch.equal(warm[name], cold[name]) for name in warm)  # the distance to the teacher still counts


def test_a_teacher_follows_by_a_moving_average():
    torch.manual_seed(0)
    teacher, student = toy.tiny(toy.TASK), toy.tiny(toy.TASK)
    student.body[1].num_batches_tracked.fill_(7)
    start, goal = read(teacher), read(student)
    for _ in range(5):
        follow(teacher, student, 0.9)
    ours = read(teacher)
    for kind in ("params", "buffers"):
        for name, leaf in ours[kind].items():
            if leaf.is_floating_point():
                want = 0.9**5 * start[kind][name] + (1 - 0.9**5) * goal[kind][name]
                torch.testing.assert_close(leaf, want)
            else:
                assert leaf == 7


def test_without_a_decay_a_teacher_follows_by_the_steps_of_a_round():
    method, rates = ndag(width=4), []
    (site,) = toy.sites(method, {"east": 20})  # three batches of eight
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedbeyond.methods.ndag.follow", lambda teacher, student, decay: rates.append(decay))
        received = toy.shared(method) | {"warm": torch.tensor(False)}
        method.client.handlers["train"](site, received, {"teacher": received["model"], "steps": torch.tensor(99)})
    assert rates == [approx(3 / 13)] * 3


@pytest.mark.parametrize("steps", [1, 5, 17, 300])
def test_nine_tenths_of_a_rounds_progress_are_handed_on_whatever_its_steps_are(steps):
    """A student that moves by one in each step: where the teacher is after them."""
    student, teacher = (nn.Linear(1, 1, bias=False).requires_grad_(False) for _ in range(2))
    teacher.weight.zero_()
    for step in range(steps):
        student.weight.fill_(step + 1)
        follow(teacher, student, teacher_decay(steps))
    assert 0.9 <= float(teacher.weight) / steps < 0.92


def test_the_teachers_statistics_are_those_of_clean_images_under_its_own_weights():
    options = {"width": 4, "warmup": 0, "decay": 0.5}
    for wide in (ndag(**options), feddag(**options), ats(margin=0.1, **options)):
        site = toy.sites(wide)[0].reseed(0, "train")
        received = toy.shared(wide) | {"warm": torch.tensor(False)}
        reply, private = wide.client.handlers["train"](site, received, {})
        params, buffers = reply["model"]["params"], reply["model"]["buffers"]
        x, _ = site.data["train"]  # twelve: all of them are in the sample
        h = F.conv2d(x, params["body.0.weight"], params["body.0.bias"], padding=1)
        torch.testing.assert_close(buffers["body.1.running_mean"], h.mean((0, 2, 3)))
        torch.testing.assert_close(buffers["body.1.running_var"], h.var((0, 2, 3), correction=0))
        assert_equal(tree.flatten(private["teacher"]), tree.flatten(reply["model"]))  # what the site keeps, too


def test_statistics_can_be_the_moving_average_of_the_students_instead():
    method = ndag(width=4, warmup=0, decay=0.25, statistics="average")
    (site, *_) = toy.sites(method)
    x, y = site.data["train"]
    site.data = {**site.data, "train": (x[:8], y[:8])}  # one batch
    received = toy.shared(method) | {"warm": torch.tensor(True)}
    known = {"teacher": received["model"], "steps": torch.tensor(9)}
    reply, _ = method.client.handlers["train"](site.reseed(0, "train"), received, known)
    start = received["model"]["params"]
    h = F.conv2d(x[:8], start["body.0.weight"], start["body.0.bias"], padding=1)
    want = 0.75 * 0.1 * h.mean((0, 2, 3))  # torch's momentum, then the teacher's; both from zero
    torch.testing.assert_close(reply["model"]["buffers"]["body.1.running_mean"], want)


def ones(x):
    return torch.ones_like(x)


def test_alpha_is_the_most_that_images_move_once_they_are_normalised_as_imagenets():
    x = torch.rand(2, 3, 4, 4) * 2 - 1
    moved = normalised(perturbing(0.3)(ones, x)) - normalised(x)
    torch.testing.assert_close(moved, torch.full_like(x, 0.3))
    torch.testing.assert_close(perturbing(0.3, "input")(ones, x) - x, torch.full_like(x, 0.3))
    grey = x[:, :1]
    torch.testing.assert_close(perturbing(0.3)(ones, grey) - grey, torch.full_like(grey, 0.3 * 2 * 0.226))


def test_clamped_images_stay_between_minus_one_and_one():
    x = torch.tensor([-1.0, 0.0, 0.9]).view(1, 1, 1, 3)
    assert perturbing(0.3, "input", clamp=True)(ones, x).flatten().tolist() == approx([-0.7, 0.3, 1.0])
    assert perturbing(0.3, "input")(ones, x).max().item() == approx(1.2)


def test_the_space_of_alpha_and_the_clamp_reach_training():
    models = [
        model(feddag(width=4, warmup=0, alpha=0.9, **options))
        for options in ({}, {"space": "input"}, {"space": "input", "clamp": True}, {"statistics": "average"})
    ]
    for place, one in enumerate(models):
        assert all(any(not torch.equal(one[name], other[name]) for name in one) for other in models[:place])


@torch.no_grad()
def test_how_far_images_and_their_features_move_is_logged():
    method = ndag(width=4, warmup=0, optimizer=sgd(0.0))
    sites, nets, want = toy.sites(method), toy.nets(method), []
    for site in sites:
        x, y = (part[:8] for part in site.data["train"])  # one batch, and nothing moves
        site.data = {**site.data, "train": (x, y)}
        novel = x + 0.3 * 2 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * nets["generator"](x)
        old, new = (nets["model"].eval().features(images) for images in (x, novel))
        apart = old / old.norm(dim=1, keepdim=True) - new / new.norm(dim=1, keepdim=True)
        want.append(((novel - x).abs().mean(), apart.square().sum(1).mean()))
    with torch.enable_grad():
        state = simulate(method, 1, federation=Simulator(method.client, sites), sizes=dict.fromkeys(toy.SIZES, 8))[0]
    told = state["server"]["diagnostics"]
    for place, name in enumerate(("perturbation", "distance")):
        mean = sum(float(each[place]) for each in want) / 3
        assert mean > 0 and float(told[name]) == approx(mean, rel=1e-4)


def test_what_a_method_logs_stays_under_sha():
    told = simulate(feddag(width=4), 1)[0]["server"]["diagnostics"]
    assert set(told) == {"scores", "weights", "moved", "perturbation", "distance"}


def test_an_idle_generator_is_warned_about_once_half_way(caplog):
    with caplog.at_level(logging.WARNING):
        simulate(ndag(alpha=1e-4, width=4, warmup=0), 4)
    (record,) = caplog.records
    assert "changes pixels (-1 to 1) by" in record.message and "larger alpha" in record.message
    caplog.clear()
    simulate(ndag(alpha=1e-4, width=4), 4)  # a short run, all of it warm-up: the generator trains all the same
    assert len(caplog.records) == 1
    caplog.clear()
    simulate(ndag(alpha=0.0, width=4, warmup=0), 4)  # asked for
    warn_if_idle(0.01), warn_if_idle(-0.3)  # more than one of 256 levels; noise
    assert not caplog.records
    warn_if_idle(0.007)
    assert len(caplog.records) == 1


def kept(method, rounds=2):
    federation = Simulator(method.client, toy.sites(method))
    state, round_log = simulate(method, rounds, federation=federation)
    return state["server"], {n: s["pending"]["private"] for n, s in federation.client_states.items()}, round_log


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_the_three_ways_to_hand_out_the_model(kind):
    state, private, round_log = kept(ndag(kind=kind, width=4, warmup=0))
    sent = {left.name for happened in round_log for left in happened["ledger"]}
    assert sent == {"model", "generator", "novelty"} | ({"student"} if kind == 2 else set())
    assert ("teacher" in private["east"]) is (kind == 3) and ("student" in state) is (kind == 2)
    assert int(private["west"]["steps"]) == 6  # two rounds of three batches


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_who_starts_from_what(kind, monkeypatch):
    """Seen at the first batch: whose features the teacher gives, and what the student is."""
    method = ndag(kind=kind, width=4, warmup=0, optimizer=sgd(0.0))
    (site, *_) = toy.sites(method)
    nets = {}
    for place, name in enumerate(("model", "student", "teacher")):
        torch.manual_seed(place)
        nets[name] = read(toy.tiny(toy.TASK))
    received = toy.shared(method) | {"model": nets["model"], "warm": torch.tensor(False)}
    received |= {"student": nets["student"]} if kind == 2 else {}
    seen = []
    monkeypatch.setattr("fedbeyond.methods.ndag.follow", lambda *_: None)
    whole = novelty

    def listening(student, novel, y, features, margin):
        seen.append((read(student)["params"], features))
        return whole(student, novel, y, features, margin)

    monkeypatch.setattr("fedbeyond.methods.ndag.novelty", listening)
    method.client.handlers["train"](site.reseed(0, "train"), received, {"teacher": nets["teacher"]})
    site.reseed(0, "train")
    student, features = seen[0]
    assert_equal(student, nets["student" if kind == 2 else "model"]["params"])
    teacher = write(toy.tiny(toy.TASK), nets["teacher" if kind == 3 else "model"]).eval()
    first = next(iter(site.batches()))
    torch.testing.assert_close(features, teacher.features(first.x))  # of plain images, in evaluation mode


def test_a_teacher_that_takes_over_the_student_makes_the_first_warm_round_uniform_fedavg():
    plain = model(fedavg("uniform"), rounds=1)
    ours = model(ndag(width=4, decay=0.0, statistics="average"), rounds=1)
    assert_equal({k: v for k, v in ours.items()}, plain)


# SHA, the aggregation


def conversation(method, rounds=1):
    """The requests of a few rounds: kind and who was asked."""
    asked = []

    class Listening(Simulator):
        def ask(self, request, envelope):
            asked.append((request.kind, request.to, request.body))
            return super().ask(request, envelope)

    simulate(method, rounds, federation=Listening(method.client, toy.sites(method)))
    return asked


def test_all_models_are_scored_in_one_request():
    asked = conversation(feddag(width=4))
    assert [kind for kind, *_ in asked] == ["train", "sha_score"]
    _, to, body = asked[1]
    assert to == ("east", "north", "west") and set(body["models"]) == set(to)


def test_some_sites_evaluate_others_each_round():
    asked = [to for kind, to, _ in conversation(sha(fedavg(), evaluators=2), rounds=6) if kind == "sha_score"]
    assert all(len(to) == 2 for to in asked) and len(set(asked)) > 1


def test_scores_are_one_over_the_mean_loss():
    verdicts = [
        Reply("a", {"losses": {"a": torch.tensor(1.0), "b": torch.tensor(4.0)}}, 1),
        Reply("b", {"losses": {"a": torch.tensor(3.0), "b": torch.tensor(2.0)}}, 1),
    ]
    assert float(score("a", verdicts, exclude_self=False)) == approx(1 / 2)
    assert float(score("a", verdicts, exclude_self=True)) == approx(1 / 3)
    assert float(score("a", verdicts[:1], exclude_self=True)) == approx(1)  # nobody else judged it


def test_a_model_that_diverged_costs_its_own_weight_and_no_verdict(monkeypatch):
    (site, *_) = toy.sites(fedavg())
    losses = iter([float("nan"), float("inf"), 0.0, 0.7])
    monkeypatch.setattr(site, "loss", lambda model: torch.tensor(next(losses)))
    told, _ = evaluate(site, {"models": {name: {} for name in "abcd"}}, {})
    assert {name: float(loss) for name, loss in told["losses"].items()} == approx(
        {"a": 1e8, "b": 1e8, "c": 1e-8, "d": 0.7}
    )


def test_verdicts_may_differ_a_thousandfold_but_not_be_negative():
    method = sha(fedavg())
    gate, models = toy.gate(method), {name: toy.shared(method)["model"] for name in ("east", "north", "west")}
    request = Request("sha_score", {"models": models}, tuple(models), quorum=1)

    def verdict(name, *losses):
        return Reply(name, {"losses": dict(zip(models, map(torch.tensor, losses), strict=True))}, toy.SIZES[name])

    answers = {"east": verdict("east", 5e-4, 1.0, 1.0), "north": verdict("north", 3e-3, 1.0, 1.0)}
    assert not gate.admit(request, answers | {"west": verdict("west", 4.0, 1.0, 1.0)}).rejected
    (failure,) = gate.admit(request, answers | {"west": verdict("west", -5.0, 1.0, 1.0)}).rejected
    assert failure.client == "west" and "losses is not positive" in failure.reason


def test_one_verdict_is_enough():
    method = sha(fedavg(), evaluators=1)
    asked = [to for kind, to, _ in conversation(method, 3) if kind == "sha_score"]
    federation = Faulty(Simulator(method.client, toy.sites(method)), asked[1][0], 1, "stalls", "sha_score")
    with pytest.raises(FederationError, match="only 0 of 1 sites"):
        simulate(method, federation=federation)
    method = sha(fedavg(), evaluators=2)
    asked = [to for kind, to, _ in conversation(method, 3) if kind == "sha_score"]
    federation = Faulty(Simulator(method.client, toy.sites(method)), asked[1][0], 1, "stalls", "sha_score")
    state, round_log = simulate(method, federation=federation)
    assert round_log[1]["rejected"][0]["request"] == "sha_score" and len(state["server"]["diagnostics"]["scores"]) == 3


def test_judges_are_drawn_for_each_run():
    replies = [Reply(name, {}, 1) for name in "abcdef"]
    drawn = {choose_evaluators(replies, 3, Round(0, 9, (), (), seed)) for seed in range(8)}
    assert len(drawn) > 2 and choose_evaluators(replies, 9, Round(0, 9, (), ())) == tuple("abcdef")


def test_weights_are_powers_of_scores():
    happened = simulate(sha(fedavg(), history=0, beta=2.0), 1)[0]["server"]["diagnostics"]
    raised = {name: float(value) ** 2 for name, value in happened["scores"].items()}
    for name, share in happened["weights"].items():
        assert float(share) == approx(raised[name] / sum(raised.values()), rel=1e-5)


def test_a_round_by_hand():
    """The mean of sha is that of fedavg's replies with the weights that were told."""
    method = sha(fedavg(), history=0, beta=1.0)
    state = simulate(method, 1)[0]["server"]
    replies = {}
    federation = Simulator(fedavg().client, toy.sites(fedavg()))
    for name, reply in federation.ask(
        Request("train", toy.shared(fedavg()), federation.clients), Envelope(0, 0, {})
    ).items():
        replies[name] = reply.body["model"]
    told = state["diagnostics"]["weights"]
    want = tree.mean([replies[name] for name in told], [float(share) for share in told.values()])
    assert_close(tree.flatten(state["model"]), tree.flatten(want))


def test_without_power_and_history_it_is_uniform_to_the_bit():
    assert_equal(model(sha(fedavg(), beta=0.0, history=0)), model(fedavg("uniform")))
    assert_equal(model(feddag(width=4, warmup=0, beta=0.0, history=0)), model(ndag(width=4, warmup=0)))


def test_warm_up_rounds_are_uniform():
    assert_equal(model(sha(fedavg(), warmup=9)), model(fedavg("uniform")))


def entry(number):
    return {"model": {"w": torch.tensor(float(number))}, "score": torch.tensor(float(number))}


def joined(own, past, history):
    """What `within` makes of a site's model and its earlier ones, and which of these it took in which order."""
    taken = []
    scores = {key: one["score"] for key, one in past.items()}
    merged = average_with_history(own, scores, history, lambda key: taken.append(key) or past[key]["model"])
    return tree.flatten(merged), taken


def test_better_models_of_earlier_rounds_join_the_newest_first():
    past = {f"{i:06}": entry(value) for i, value in enumerate([5.0, 9.0, 1.0, 7.0])}
    merged, taken = joined(entry(4.0), past, history=2)
    assert merged["score"] == approx((4 + 7 + 9) / 3) and merged["model/w"] == approx((4 + 7 + 9) / 3)
    assert taken == ["000003", "000001"]
    for value, history in ((9.0, 4), (4.0, 0)):  # none is better, none is wanted
        merged, taken = joined(entry(value), past, history)
        assert_equal(merged, tree.flatten(entry(value)))
        assert not taken


@given(st.lists(st.integers(0, 6), max_size=25), st.integers(0, 4))
def test_pruning_never_changes_what_is_chosen(scores, history):
    everything, some = {}, {}
    for number, value in enumerate(scores):
        own, key = entry(value), f"{number:06}"
        assert_equal(joined(own, everything, history)[0], joined(own, some, history)[0])
        everything = everything | {key: own}
        left = pruned({name: one["score"] for name, one in (some | {key: own}).items()}, history)
        some = {name: everything[name] for name in left}
    for number, value in enumerate(scores):  # and what was dropped could not be chosen by any score
        if f"{number:06}" not in some:
            newer = [other for other in scores[number + 1 :] if other >= value]
            assert len(newer) >= history


def test_the_servers_state_knows_the_scores_of_the_models_on_the_shelf():
    state = simulate(sha(fedavg(), history=2), 6)[0]["server"]
    assert set(state["sha_history"]) == {"east", "north", "west"}
    for scores in state["sha_history"].values():
        assert 2 <= len(scores) <= 6 and all(score.shape == () for score in scores.values())
        assert next(iter(scores)).startswith("0000")


def test_perturbations_by_hand():
    net = nn.Linear(2, 1, bias=False)
    net.weight.grad = torch.tensor([[3.0, -4.0]])
    params = {"weight": torch.tensor([[1.0, 2.0]])}
    assert perturb(params, net, 0.5, "linf")["weight"].tolist() == [[1.5, 1.5]]
    torch.testing.assert_close(perturb(params, net, 0.5, "l2")["weight"], torch.tensor([[1.3, 1.6]]))
    assert torch.equal(perturb(params, net, 0.0, "l2")["weight"], params["weight"])  # plain cross-evaluation
    net.weight.grad = None
    assert torch.equal(perturb(params, net, 0.5, "l2")["weight"], params["weight"])


def test_the_papers_perturbation_is_lost_in_rounding_and_that_is_said(caplog):
    torch.manual_seed(0)
    params = {"w": torch.randn(2_000_000) * 0.02}
    net = nn.Module()
    net.register_parameter("w", nn.Parameter(params["w"].clone()))
    net.w.grad = torch.randn(2_000_000)
    lost, kept = (share_changed(tree.sub(perturb(params, net, 1e-7, norm), params)) for norm in ("l2", "linf"))
    assert lost < 0.1 and kept > 0.9
    with caplog.at_level(logging.WARNING):
        simulate(sha(fedavg(), rho=1e-12), 2)
    (record,) = caplog.records
    assert "changes only" in record.message and "try a larger rho" in record.message
    caplog.clear()
    simulate(sha(fedavg(), rho=1e-3), 1)
    simulate(sha(fedavg(), rho=0.0), 1)  # asked for: plain cross-evaluation
    assert not caplog.records


def test_it_is_a_method_that_weighs_for_itself():
    with pytest.raises(ConfigError, match="does that itself"):
        ga(feddag())
    with pytest.raises(ConfigError, match="or a wrapper of it does that itself"):
        sha(ga(fedavg()))
    with pytest.raises(ConfigError, match="does that itself"):
        registry.build("feddag+sha")
    assert ga(ndag()).weighting is not None


def test_feddag_is_ndag_under_sha():
    options = {"warmup": 1, "width": 4}
    assert_equal(model(feddag(**options)), model(sha(ndag(**options), warmup=1)))


def test_the_teachers_model_is_perturbed_by_the_students_slope():
    method = feddag(width=4, rho=0.5, norm="linf", warmup=0)
    (site, *_) = toy.sites(method)
    assert isinstance(site, Site)
    received = toy.shared(method) | {"warm": torch.tensor(False)}
    reply, private = method.client.handlers["train"](site.reseed(0, "train"), received, {})
    assert_equal(tree.flatten(reply["model"]), tree.flatten(private["teacher"]))
    moved = tree.sub(reply["sha_sharp"], reply["model"]["params"])
    sizes = torch.cat([leaf.abs().flatten() for leaf in tree.leaves(moved)])
    assert bool(((sizes - 0.5).abs() < 1e-5).logical_or(sizes == 0).all()) and float((sizes > 0).float().mean()) > 0.5


def test_rounds_know_whether_they_are_warm():
    method = ndag(width=4, warmup=1)
    state = method.server.init(toy.shared(method))
    bodies = [next(method.server.round(state, Round(n, 3, ("east",), ("east",)))).body for n in (0, 1)]
    assert [bool(body["warm"]) for body in bodies] == [True, False]
