"""What leaves a site under dp: a clipped step with noise that only the site can repeat, and the epsilon it spends."""

import itertools
import math
import re
import sys
from dataclasses import replace

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedbeyond import NUMERICS, WIRE, tree
from fedbeyond._method import Sent
from fedbeyond.classifier import read
from fedbeyond.client import answer, enrol
from fedbeyond.errors import ConfigError, FederationError, PolicyError
from fedbeyond.experiment import registry, run_folder, runner
from fedbeyond.experiment.build import with_train_options
from fedbeyond.experiment.config import Config, Train
from fedbeyond.experiment.plan import plan
from fedbeyond.flower import app, enrolment
from fedbeyond.flower.deploy.preflight import list_outgoing
from fedbeyond.flower.messages import ASK, Message
from fedbeyond.flower.node import prepare_node, respond
from fedbeyond.flower.policy import Policy
from fedbeyond.flower.site_config import SiteConfig
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.server import Envelope, Request
from fedbeyond.site import Site
from fedbeyond.testing import toy
from fedbeyond.testing.faults import Faulty, through_bytes
from fedbeyond.testing.laws import simulate, simulator
from fedbeyond.wrappers.dp import LEAST, clipped, gaussian
from fedbeyond.wrappers.privacy import epsilon, spent
from flower.test_app import SITES, UNSEEN, federation, same_files


def made(name, **declared):
    """FedAvg whose sites send what `declared` says, under dp."""
    return registry.make("wrappers", registry.parse(name)[0], replace(fedavg(), sends={"train": declared}))


def leaving(method, reply, body, secret=b"", seed=0, number=0, kind="train"):
    """What leaves a site that has this to say."""
    site = Site("east", {}, {}, seed=seed, secret=secret)
    return method.client.postprocess(site, number, Request(kind, body, ("east",)), reply)


def thing(kind="parameters", **how):
    return Sent(kind, lambda nets, body: {}, **how)


def test_the_step_is_clipped_as_one_vector_over_all_that_leaves():
    method = made("dp(clip=1, noise=0)", model=thing(since=("model",)), loss=thing("scalars"))
    body = {"model": {"a": torch.tensor([1.0, 1.0])}}
    reply = {"model": {"a": torch.tensor([4.0, 1.0])}, "loss": torch.tensor(4.0)}  # (3, 0, 4) is 5 long
    told = leaving(method, reply, body)
    assert torch.allclose(told["model"]["a"], torch.tensor([1.6, 1.0])) and float(told["loss"]) == pytest.approx(0.8)
    near = {"model": {"a": torch.tensor([1.3, 1.0])}, "loss": torch.tensor(0.4)}  # 0.5 long
    assert torch.allclose(leaving(method, near, body)["model"]["a"], near["model"]["a"])
    assert list(told) == list(reply) and told["model"]["a"].dtype == torch.float32


def test_what_did_not_come_with_the_request_counts_from_zero():
    method = made("dp(clip=1, noise=0)", model=thing(since=("model",)))
    told = leaving(method, {"model": {"a": torch.tensor([3.0, 4.0])}}, {})
    assert torch.allclose(told["model"]["a"], torch.tensor([0.6, 0.8]))


def test_a_request_of_another_shape_cannot_spread_one_number_of_noise_over_many():
    method = made("dp", model=thing(since=("model",)))
    told = leaving(method, {"model": {"a": torch.zeros(3)}}, {"model": {"a": torch.arange(15.0).reshape(5, 3)}})
    assert told["model"]["a"].shape == (3,)


def test_training_that_sets_out_from_a_start_of_its_own_steps_from_there():
    method = made("dp(clip=1, noise=0)", model=thing(since=("model",)))
    body = {"model": {"params": {"a": torch.zeros(1)}, "buffers": {}}, "start": {"a": torch.tensor([5.0])}}
    reply = {"model": {"params": {"a": torch.tensor([5.5])}, "buffers": {}}}
    assert float(leaving(method, reply, body)["model"]["params"]["a"]) == 5.5


def test_numbers_that_are_not_finite_tell_nothing():
    told = clipped({"a": torch.tensor([math.nan, math.inf, 3.0], dtype=torch.float64)}, 1.0)
    assert told["a"].tolist() == [0.0, 0.0, 1.0]


def test_counters_go_back_as_they_came_and_counts_stay_counts():
    method = made("dp(clip=5, noise=2)", model=thing(since=("model",)), held=thing("data-derived"))
    body = {"model": {"seen": torch.tensor(7)}}
    reply = {"model": {"seen": torch.tensor(907)}, "held": {"counts": torch.arange(500) % 3}}
    told = leaving(method, reply, body)
    assert int(told["model"]["seen"]) == 7  # and 900 more does not use up the clip
    counts = told["held"]["counts"]
    assert counts.dtype == torch.int64 and int(counts.min()) == 0 and len(counts.unique()) > 20


def test_what_must_be_positive_and_variances_stay_so():
    method = made("dp(clip=1, noise=3)", model=thing(since=("model",)), reach=thing("scalars", positive=True))
    nets = toy.nets(fedavg())
    model = read(nets["model"])
    site = Site("east", {}, nets)
    for number in range(20):
        request = Request("train", {"model": model}, ("east",))
        told = method.client.postprocess(site, number, request, {"model": model, "reach": torch.tensor(2.0)})
        assert float(told["reach"]) >= LEAST * 7 - 1e-6
        assert float(told["model"]["buffers"]["body.1.running_var"].min()) >= 0
    assert float(told["model"]["buffers"]["body.1.running_mean"].min()) < 0


def test_noise_is_gaussian_and_as_wide_as_it_says():
    method = made("dp(clip=0.5, noise=3)", model=thing(since=("model",)))
    body = {"model": {"a": torch.zeros(100_000), "b": torch.zeros(100_001)}}
    told = leaving(method, body, body)
    first, second = told["model"]["a"], told["model"]["b"]
    for drawn in (first, second):
        assert float(drawn.std()) == pytest.approx(3.0, rel=0.01)  # 3 * 2 * 0.5
        assert float(drawn.mean()) == pytest.approx(0.0, abs=0.05)
    assert abs(float(torch.corrcoef(torch.stack((first, second[:-1])))[0, 1])) < 0.02
    drawn = gaussian(b"key", "path", torch.Size((200_000,)))
    for limit in (0.5, 1.0, 2.0, 3.0):
        assert float((drawn.abs() > limit).double().mean()) == pytest.approx(math.erfc(limit / math.sqrt(2)), abs=3e-3)
    assert abs(float(torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1])) < 0.01


def test_noise_is_repeated_by_who_has_the_secret_and_for_the_same_answer_alone():
    method = made("dp", model=thing(since=("model",)))
    body, secret = {"model": {"a": torch.zeros(4), "b": torch.ones(2)}}, bytes(32)

    def noise(body=body, moved=0.0, **how):
        reply = {"model": tree.map(lambda leaf: leaf + moved, body["model"])}
        return tree.sub(leaving(method, reply, body, **how), reply)["model"]["a"]

    one = noise(secret=secret)
    assert torch.equal(one, noise(secret=secret))
    turned = through_bytes({"model": dict(reversed(body["model"].items()))})  # over a wire, in another order
    assert torch.equal(one, noise(body=turned, secret=secret))
    other = {"model": body["model"] | {"b": torch.full((2,), 1.001)}}
    for drawn in (
        noise(secret=b"x" * 32),
        noise(),
        noise(secret=secret, seed=1),
        noise(secret=secret, number=1),
        noise(body=other, secret=secret),
        noise(secret=secret, moved=1e-3),  # the same request, but the site had kept something else
    ):
        assert float((one - drawn).abs().max()) > 0.01
    assert torch.equal(noise(), noise(body=other))  # in a simulation, where rounding must not change it


def test_noise_of_another_width_is_other_noise():
    """Or two runs of a sweep, with the same step, would give that step away: it is what noise twice as wide lacks."""
    body, secret = {"model": {"a": torch.zeros(1000)}}, bytes(32)
    drawn = []
    for options in ("noise=1", "noise=2", "noise=1, clip=3"):
        method = made(f"dp({options})", model=thing(since=("model",)))
        drawn.append(leaving(method, body, body, secret=secret)["model"]["a"])
    for one, other in itertools.combinations(drawn, 2):
        assert abs(float(torch.corrcoef(torch.stack((one, other)))[0, 1])) < 0.2


def test_a_site_counts_the_different_answers_that_left_and_its_policy_goes_by_them(small, tmp_path):
    """A server that plays a round again, otherwise, has heard more than it was to be told."""
    (tmp_path / "policy.toml").write_text("max_epsilon = 6\nmax_delta = 1e-5")
    own = {"site": "photo", "data": "styles(share=0.05)", "folder": tmp_path / "state", "secret": ""}
    machine = SiteConfig.parse(own | {"policy": tmp_path / "policy.toml"})
    config = Config(method="fedavg+dp(noise=1)", train=Train(rounds=1, batch_size=8, batchnorm="average"), **small)
    notes = {
        "config": enrolment.shared_config(config),
        "run": config.digest(),
        "sources": 3,
        "wire": WIRE,
        "numerics": NUMERICS,
    }
    model = runner.prepare(config).assembly.initial_models()["model"]

    def asked(number, factor):
        body = {"model": tree.map(lambda leaf: leaf * factor if leaf.is_floating_point() else leaf, model)}
        envelope = {"round": number, "ticket": number, "accepted": {}}
        return respond(machine, Message(ASK, notes | {"kind": "train"} | envelope, body)).notes

    assert [asked(0, 1.0)["replies_counted"], asked(0, 1.0)["replies_counted"]] == [1, 1]  # the same tells nothing new
    assert epsilon(1.0, 1e-5, 1) < 6 < epsilon(1.0, 1e-5, 2)
    assert "with this reply, 2 replies of this site in all runs would spend" in asked(0, 1.01)["reason"]
    told = spent(registry.build(config.method), {"asked": {"photo": torch.tensor(1)}}, {"photo": 2})
    assert told == {"epsilon": epsilon(1.0, 1e-5, 2)}


@pytest.mark.parametrize("keep", ["average", "local", "frozen"])
def test_nothing_but_a_clipped_step_leaves_whatever_becomes_of_batchnorm(keep):
    """A site's own BatchNorm is not what it received: a step from there would give it away."""
    method = with_train_options(registry.build("fedbn+dp(clip=0.001, noise=0)"), Train(batchnorm=keep))
    site = next(iter(toy.sites(method)))
    client_state, accepted = enrol(method.client, site), {}
    for number in range(3):
        model = tree.map(lambda leaf: leaf + 1, toy.shared(method)["model"])
        request = Request("train", {"model": model}, (site.name,))
        reply, client_state = answer(method.client, site, client_state, request, Envelope(number, number, accepted))
        accepted = {site.name: number}
        step = tree.sub(reply.body["model"], model)
        assert float(tree.dot(step, step).sqrt()) < 0.0011


def analytic(noise, delta, answers):
    """Balle and Wang (ICML 2018), Theorem 8, of one Gaussian with noise / sqrt(answers)."""
    reach = math.sqrt(answers) / noise

    def excess(value):
        first, second = log_ndtr(reach / 2 - value / reach), value + log_ndtr(-reach / 2 - value / reach)
        return math.exp(first) - math.exp(second) - delta

    return brentq(excess, 0.0, 1e7, xtol=1e-10)


@pytest.mark.parametrize(("noise", "answers"), [(1, 1), (1, 50), (5, 20), (20, 100), (0.3, 200), (50, 3)])
def test_epsilon_is_that_of_the_closed_form_and_never_less(noise, answers):
    want, got = analytic(noise, 1e-5, answers), epsilon(float(noise), 1e-5, answers)
    assert want <= got + 1e-9 and got == pytest.approx(want, rel=2e-3, abs=2e-4)


def test_no_answer_spends_nothing_and_no_noise_promises_nothing():
    assert epsilon(1.0, 1e-5, 0) == 0 and epsilon(0.0, 1e-5, 1) == math.inf


@pytest.mark.parametrize(
    ("spelled", "instead"),
    [
        ("fedavg+dp+sha", r"fedavg\+sha\+dp"),
        ("fedavg+dp(noise=2)+rc+ga", r"fedavg\+rc\+ga\+dp\(noise=2\)"),
    ],
)
def test_noise_must_be_the_last_thing_that_happens_to_what_leaves(spelled, instead):
    with pytest.raises(ConfigError, match=rf"changes what leaves a site after noise was added to it; .* {instead}$"):
        registry.build(spelled)


def test_what_changes_images_alone_may_follow():
    assert registry.build("fedavg+dp+rc+mixstyle").keeps_privacy and registry.build("fedavg+sha+dp").keeps_privacy
    with pytest.raises(ConfigError, match="dp is given twice"):
        registry.build("fedavg+dp+dp(noise=2)")


def test_dp_leaves_sums_to_who_needs_no_more():
    assert registry.build("fedavg+dp").linear_aggregation and not registry.build("fedavg+ga+dp").linear_aggregation


def test_what_was_asked_is_counted_though_a_site_did_not_answer():
    method = registry.build("fedavg+sha+dp")
    state, _ = simulate(method, 2, Faulty(simulator(method), "north", 1, "absent", "sha_score"))
    assert {name: int(count) for name, count in state["exchange"]["asked"].items()} == dict.fromkeys(toy.SIZES, 4)
    assert spent(method, state["exchange"], {})["epsilon"] == epsilon(1.0, 1e-5, 4)
    assert method.epsilon_after(2) == epsilon(1.0, 1e-5, 4)


def config(small, method="fedavg+dp(noise=20)", rounds=2, **train):
    averaged = {"batchnorm": "average"} | train  # dp adds no noise to moments
    return Config(method=method, train=Train(rounds=rounds, batch_size=8, **averaged), **small)


def test_lines_tell_the_epsilon_spent_and_none_where_nothing_is_promised(small, tmp_path):
    lines = list(runner.run(runner.prepare(config(small)), tmp_path / "a"))
    told = [line["diagnostics"]["epsilon"] for line in lines]
    assert told == [epsilon(20.0, 1e-5, 1), epsilon(20.0, 1e-5, 2)]
    bare = runner.run(runner.prepare(config(small, "fedavg+dp(noise=0)", 1)), tmp_path / "b")
    assert [line["diagnostics"] for line in bare] == [{}]
    assert "Infinity" not in (tmp_path / "b" / "results.jsonl").read_text()


def test_a_plan_tells_epsilon_before_anything_is_trained(small):
    said = plan(config(small, "fedavg+sha+dp(noise=20)", 10))
    assert f"epsilon {analytic(20, 1e-5, 20):.3g} at delta 1e-05" in said
    assert "10 rounds of at most 2 requests (20 replies)" in said
    assert "the server needs the reply of each site" in said
    assert "no privacy is guaranteed" in plan(config(small, "fedavg+dp(noise=0)"))
    assert "epsilon" not in plan(config(small, "fedavg")) and "needs only weighted sums" in plan(
        config(small, "fedavg")
    )


@pytest.mark.parametrize(
    ("policy", "method", "reason"),
    [
        (Policy(max_epsilon=1), "fedavg", "adds no noise to replies"),
        (Policy(max_epsilon=1), "fedavg+dp", "2 rounds of fedavg\\+dp spend an epsilon of 6"),
        (Policy(max_epsilon=1), "fedavg+dp(noise=0)", "spend an epsilon of inf"),
        (Policy(max_epsilon=1), "fedavg+dp(noise=20, delta=0.1)", "at delta 0.1; the site's policy allows 1e-05"),
        (Policy(sums_only=True), "fedavg+dp", "secure aggregation .*: it is not available yet"),
        (Policy(sums_only=True), "fednova", "fednova cannot use it, because its server needs the reply of each site"),
    ],
)
def test_a_site_may_want_privacy(small, policy, method, reason):
    run = config(small, method)
    with pytest.raises(PolicyError, match=reason):
        policy.ensure_allowed(run, registry.build(method))


def test_without_the_accountant_a_run_says_how_to_install_it(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    epsilon.cache_clear()
    assert registry.build("fedavg+dp")
    with pytest.raises(ConfigError, match=r"pip install 'fedbeyond\[privacy\]'"):
        runner.prepare(config(small))


def test_preflight_tells_epsilon_or_what_is_missing(small, tmp_path):
    own = federation(tmp_path).apps[98][1]
    outgoing = list_outgoing(SiteConfig.parse(own | {"secret": ""}), config(small))
    told = {finding.topic: finding for finding in outgoing}
    assert told["privacy"].text.startswith(f"epsilon {analytic(20, 1e-5, 2):.3g} at delta 1e-05 for all data of a site")
    (refused,) = list_outgoing(SiteConfig.parse(own), config(small))
    assert not refused.ok and "has no secret" in refused.text


def play(run, grid, folder, guests=()):
    setup = enrolment.prepare(run, app.FlowerTransport(grid, 5.0), SITES, guests)
    return list(runner.run(setup, folder))


def test_a_site_without_a_secret_adds_no_noise_for_show(small, tmp_path):
    grid = federation(tmp_path / "sites", guests=())
    with pytest.raises(FederationError, match=r"photo: ConfigError at the site: see its errors\.log"):
        play(config(small), grid, tmp_path / "run")
    log = (tmp_path / "sites" / "photo" / "errors.log").read_text()
    assert re.search(r"ConfigError: site 'photo' has no secret, .* secret = \"secret\"", log)
    own = grid.apps[98][1]
    (tmp_path / "short").write_bytes(b"short")
    for given, reason in [("gone", "its secret cannot be read"), ("short", "has 5 bytes, a secret needs 32 or more")]:
        with pytest.raises(ConfigError, match=reason):
            prepare_node(SiteConfig.parse(own | {"secret": str(tmp_path / given)}), config(small), 3)
    assert prepare_node(SiteConfig.parse(own), config(small, "fedavg"), 3).site.secret == b""


def test_over_flower_noise_is_the_sites_own_or_where_there_is_openly_no_secret_that_of_the_simulator(small, tmp_path):
    run = config(small)
    list(runner.run(runner.prepare(run), tmp_path / "simulated"))
    for name in ("open", "one", "again"):
        grid = federation(tmp_path / name / "sites")
        for place, (_, own) in enumerate(grid.apps.values()):
            (tmp_path / f"secret{place}").write_bytes(bytes([place]) * 32)
            own["secret"] = "" if name == "open" else str(tmp_path / f"secret{place}")
        play(run, grid, tmp_path / name, guests=(UNSEEN,))
    same_files(tmp_path / "simulated", tmp_path / "open")
    same_files(tmp_path / "one", tmp_path / "again")
    models = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("open", "one")]
    assert models[0] != models[1]
    told = [run_folder.lines(tmp_path / name)[-1]["diagnostics"] for name in ("open", "one")]
    assert told[0] == told[1]


def test_an_epsilon_too_large_to_be_computed_is_infinite():
    """The replies that a site claims are counted by the server, too: a large number must not end it."""
    assert epsilon(0.1, 1e-5, 10**6) == math.inf
