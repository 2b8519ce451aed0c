"""ATS: images made anew, the margin that sites measure, and the teacher that follows."""

from copy import deepcopy

import pytest
import torch
from pytest import approx
from torch.nn import functional as F

from fedbeyond import tree
from fedbeyond.classifier import Task, read
from fedbeyond.engine.simulator import Simulator
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry, runner
from fedbeyond.experiment.config import Config
from fedbeyond.methods.ats import ats, centre, measured_margin
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.optimizers import sgd
from fedbeyond.server import Reply
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty
from fedbeyond.testing.laws import simulate
from methods.test_ddaig import RATE, one_batch, step
from support.asserts import assert_close, assert_equal, model


@pytest.mark.parametrize("learn", ["both", "generated"])
def test_a_round_of_a_site_by_hand(learn):
    method = ats(width=4, warmup=0, decay=0.25, learn=learn, optimizer=sgd(RATE))
    site = one_batch(method)
    torch.manual_seed(5)
    teacher = toy.tiny(toy.TASK)
    received = toy.shared(method) | {"warm": torch.tensor(False), "margin": torch.tensor(0.05)}
    student, generator = deepcopy(site.nets["model"]), deepcopy(site.nets["generator"])
    (batch,) = list(site.batches())
    x, y = batch.x, batch.y
    known = {"teacher": read(teacher), "steps": torch.tensor(9)}
    reply, private = method.client.handlers["train"](site.reseed(0, "train"), received, known)

    def far(h):
        seen = teacher.eval().features(x).detach()
        return (seen / seen.norm(dim=1, keepdim=True) - h / h.norm(dim=1, keepdim=True)).square().sum(1)

    student.eval()
    h = student.features(generator(x))  # the image itself, not a perturbation of x
    step(F.cross_entropy(student.head(h), y) - far(h).clamp(max=0.05).mean(), generator.parameters())
    student.train()
    novel = generator(x).detach()
    h = student.features(torch.cat((novel, x)) if learn == "both" else novel)
    error = F.cross_entropy(student.head(h), torch.cat((y, y)) if learn == "both" else y)
    step(error + far(h[:8]).mean(), student.parameters())
    assert_close(tree.flatten(reply["generator"]), tree.flatten(read(generator)))
    old, new = read(teacher)["params"], read(student)["params"]
    want = {name: 0.25 * old[name] + 0.75 * new[name] for name in old}
    for name in want:  # generated images are nearly the same at first: BatchNorm magnifies how sums are rounded
        torch.testing.assert_close(reply["model"]["params"][name], want[name], rtol=1e-3, atol=1e-4)
    assert int(private["steps"]) == 10 and torch.equal(
        private["teacher"]["params"]["head.bias"], reply["model"]["params"]["head.bias"]
    )


def test_a_sites_centre_is_the_mean_of_features_of_length_one():
    method = ats(width=4)
    (site, *_) = toy.sites(method)
    reply, private = centre(site, toy.shared(method), {"steps": torch.tensor(3)})
    net = toy.nets(method)["model"].eval()
    rows = [net.features(x[None])[0] for x in site.data["train"][0]]
    want = torch.stack([row / row.norm() for row in rows]).mean(0)
    torch.testing.assert_close(reply["centre"]["mean"], want.detach())
    assert private == {"steps": torch.tensor(3)}


def test_the_margin_is_the_mean_over_pairs_of_sites():
    points = {"a": [0.0, 0.0], "b": [3.0, 4.0], "c": [0.0, 1.0]}
    replies = [Reply(name, {"centre": {"mean": torch.tensor(point)}}, 1.0) for name, point in points.items()]
    assert float(measured_margin(replies)) == approx((25 + 1 + 18) / 3)


def conversation(method, rounds, **options):
    asked = []

    class Listening(Simulator):
        def ask(self, request, envelope):
            asked.append(request)
            return super().ask(request, envelope)

    state, _ = simulate(method, rounds, federation=Listening(method.client, toy.sites(method)), **options)
    return asked, state["server"]


def test_the_margin_is_measured_anew_in_every_round_and_told():
    asked, state = conversation(ats(width=4, warmup=0), 3)
    assert [request.kind for request in asked] == ["centre", "train"] * 3
    margins = [float(request.body["margin"]) for request in asked if request.kind == "train"]
    assert len(set(margins)) == 3 and all(margin > 0 for margin in margins)
    assert float(state["diagnostics"]["margin"]) == approx(margins[-1])
    assert set(state["diagnostics"]) == {"margin", "perturbation", "distance"}
    assert "margin" not in asked[0].body and set(asked[0].body) == {"model"}


def test_with_one_site_in_a_round_the_last_margin_holds_and_the_first_is_zero():
    asked, state = conversation(ats(width=4, warmup=0), 3, asked=1)
    assert [float(r.body["margin"]) for r in asked if r.kind == "train"] == [0, 0, 0] and float(state["margin"]) == 0


def test_a_site_that_does_not_say_where_it_is_still_trains():
    method = ats(width=4, warmup=0)
    federation = Faulty(Simulator(method.client, toy.sites(method)), "north", 1, "stalls", "centre")
    state, round_log = simulate(method, 2, federation=federation)
    assert round_log[1]["rejected"][0]["request"] == "centre" and float(state["server"]["margin"]) > 0
    assert {left.client for left in round_log[1]["ledger"] if left.name == "model"} == {"east", "north", "west"}


def test_a_given_margin_asks_for_no_centre():
    asked, state = conversation(ats(margin=0.2, width=4), 1)
    assert [request.kind for request in asked] == ["train"] and float(state["margin"]) == approx(0.2)
    assert set(ats(margin=0.2).sends) == {"train"} and ats(margin=0.2).min_clients == 1


def test_a_teacher_that_takes_over_the_student_makes_the_first_warm_round_uniform_fedavg():
    ours = model(ats(width=4, decay=0.0, statistics="average"), rounds=1)
    assert_equal(ours, model(fedavg("uniform"), rounds=1))


def test_what_does_not_fit_is_refused():
    config = Config(method="ats", target="photo+sketch+cartoon", data="styles(share=0.03)")
    with pytest.raises(ConfigError, match="ats needs at least 2 sites"):
        runner.prepare(config)
    task = Task(("no", "yes"), (5,), registry.make_one("networks", "mlp"))
    with pytest.raises(ConfigError, match="ats needs images"):
        ats().networks(task)
