"""Every registered method, and every wrapper over every method, obeys every law; broken ones are found out."""

from dataclasses import replace
from functools import cache, partial
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbeyond import _factory, tree
from fedbeyond._method import also, scalar
from fedbeyond.classifier import at_stages, read
from fedbeyond.client import training, upload
from fedbeyond.engine.reestimation import reestimate_models
from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.losses import cross_entropy
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedprox import fedprox
from fedbeyond.methods.scaffold import scaffold
from fedbeyond.optimizers import sam
from fedbeyond.server import Request, Server, Weighting, mean
from fedbeyond.spec import format_spec, parse
from fedbeyond.testing.laws import (
    LAWS,
    LawBroken,
    alive,
    check_method,
    declared,
    deterministic,
    fault_tolerant,
    portable,
    pure,
    reestimable,
    reference,
    resumable,
    sampled,
    storable,
    summable,
    symmetric,
)
from support.method_settings import FAINT, REFUSED, ROUGH, SHARP, SMALL, SWITCHES, combined

PLAIN, WRAPPERS = list(registry.REGISTRY["methods"]), list(registry.REGISTRY["wrappers"])
WRAPPED = [
    f"{SMALL.get(name, name)}+{wrapper}" for name in PLAIN for wrapper in WRAPPERS if f"{name}+{wrapper}" not in REFUSED
]
COMPOSED = [
    "fedsb(budget=3)+rc+ga",
    "fedgca+am+ga",
    "fedadg(classify=0, align=1)+rc+am+ga",
    "ndag(width=4, warmup=1)+rc+ga",
    "scaffold+rc+sha",
    "ndag(width=4, warmup=0, kind=1)",
    "ndag(width=4, warmup=0, kind=2)",
    "fedadg(classify=0, align=1, reference=laplace)",
    "fedadg(classify=1, align=1, adversarial=0)",
    "feddag(width=4, warmup=0, evaluators=2, exclude_self=true)",
    "randconv(copies=0, weight=12)+augmix(views=2)",
    "ccst(style=single, every=1)+mixstyle+ga",
]
PRESETS = [
    f"{name}:{preset}{SMALL.get(name, name).removeprefix(name)}"
    for name in chain(PLAIN, [f"fedavg+{wrapper}" for wrapper in WRAPPERS])
    for group in ["wrappers" if "+" in name else "methods"]
    for preset in list(_factory.presets(registry.find(group, name.rpartition("+")[2])))[1:]
]


@cache
def made(name):
    """What makes a method; the same for all its laws, which then share an undisturbed run."""
    return partial(registry.build, name)


def only_images(wrapper):
    """Whether a wrapper only changes what networks see: what is said, kept, weighed and sent is as without it."""
    method = fedavg()
    wrapped = registry.make("wrappers", parse(wrapper)[0], method)
    return all(getattr(wrapped, part) is getattr(method, part) for part in ("client", "server", "weighting", "sends"))


IMAGES = [name for name in WRAPPED if only_images(name.rpartition("+")[2]) and not name.startswith("fedavg+")]
SEALED = [name for name in WRAPPED if name.endswith("+dp") and not name.startswith("fedavg+")]
QUICK = LAWS | {"fault_tolerant": partial(fault_tolerant, faults=("stalls",))}


@pytest.mark.parametrize("name", [*(SMALL.get(name, name) for name in PLAIN), *COMPOSED])
def test_every_method_obeys_every_law(name):
    for law in LAWS.values():
        law(made(name))


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "fedavg"])
def test_every_method_differs_from_fedavg(name):
    alive(made(FAINT.get(name, name)))


@pytest.mark.parametrize("name", combined(name for name in WRAPPED if name not in IMAGES + SEALED))
def test_every_wrapper_over_every_method_obeys_every_law_and_does_something(name):
    """Faults of each sort were tried on the method; here, one whose reply is lost."""
    base = name.rpartition("+")[0]
    rough = QUICK | {"symmetric": lambda make: symmetric(made(name.replace(base, ROUGH[base])))}
    check_method(made(FAINT.get(name, name)), [made(base)], rough if base in ROUGH else QUICK)


@pytest.mark.parametrize("name", combined(IMAGES))
def test_every_method_sees_other_images_under_the_laws_that_these_could_break(name):
    check_method(made(name), [made(name.rpartition("+")[0])], {"resumable": LAWS["resumable"]})  # and so deterministic


@pytest.mark.parametrize("name", combined(SEALED))
def test_every_method_sends_something_else_under_the_laws_that_noise_could_break(name):
    """Noise comes when the method is done; on fedavg it obeys all laws."""
    laws = {law: LAWS[law] for law in ("resumable", "portable", "declared", "summable")}
    check_method(made(name), [made(name.rpartition("+")[0])], laws)


@pytest.mark.parametrize("name", combined(PRESETS))
def test_every_preset_obeys_the_laws_that_its_options_could_break(name):
    for law in ("deterministic", "storable", "resumable", "portable", "declared", "fault_tolerant"):
        QUICK[law](made(name))


@pytest.mark.parametrize("name", [name for name in PLAIN if registry.build(name).pooled and name != "erm"])
def test_every_pooled_method_differs_from_plain_training(name):
    alive(made(name), [made("erm")])


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_do_nothing_or_cannot_be_done_is_refused(name):
    with pytest.raises(ConfigError, match=r"does that itself|pools the data|gives all images the same|would add noise"):
        registry.build(name)


@pytest.mark.parametrize("name", combined(SMALL.get(name, name) for name in PLAIN))
def test_every_method_trains_under_sam(name):
    def make():
        return registry.build(name, optimizer=sam(rho=0.5))

    deterministic(make)
    pure(make)
    ours, theirs = (reference(one).state["server"]["model"]["params"] for one in (make, made(name)))
    gap = tree.sub(ours, theirs)
    assert (float(tree.dot(gap, gap)) > 1e-6 * float(tree.dot(theirs, theirs))) == (name not in SHARP)


@pytest.mark.parametrize(
    ("base", "switch"), combined((base, switch) for base, switches in SWITCHES.items() for switch in switches)
)
def test_every_switch_is_alive(base, switch):
    """Turning an option changes the model that comes out, and what is declared with it."""
    *under, part = parse(base)
    (turned,) = parse(f"{part.name}({switch})")
    other = format_spec((*under, part._replace(options={**part.options, **turned.options})))
    ours, theirs = (reference(made(name)).state["server"]["model"]["params"] for name in (base, other))
    declared(made(other))
    gap = tree.sub(ours, theirs)
    assert float(tree.dot(gap, gap)) > 1e-12 * float(tree.dot(theirs, theirs))


@pytest.mark.parametrize("name", [*PLAIN, *WRAPPERS])
def test_no_switch_is_forgotten(name):
    group = "wrappers" if name in WRAPPERS else "methods"
    own = set(_factory.options(registry.find(group, name)))
    turned = {
        key
        for base, switches in SWITCHES.items()
        for switch in switches
        if parse(base)[-1].name == name
        for key in parse(f"x({switch})")[0].options
    }
    elsewhere = {"feddag": {"margin", "width", "decay"}, "dp": {"delta"}}  # see ndag; delta is for who reckons epsilon
    assert own - turned == elsewhere.get(name, set())
    assert turned <= own


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "fedavg" and f"{name}+ga" not in REFUSED])
def test_a_wrapper_that_does_nothing_is_found_out(name):
    small = SMALL.get(name, name)
    with pytest.raises(LawBroken, match="plain averaging"):
        alive(made(f"{small}+ga(step=0)"), [made(small)])


# fccl takes the least of the sites' numbers of public images, which on the toy are the same
@pytest.mark.parametrize(
    "name", [n for n in PLAIN if not (registry.build(n).linear_aggregation or registry.build(n).pooled or n == "fccl")]
)
def test_what_could_do_with_sums_says_so(name):
    with pytest.raises(LawBroken, match="without single replies"):
        summable(lambda: replace(made(SMALL.get(name, name))(), linear_aggregation=True))


# negative controls: each broken method fails the law that should catch it


def drawing_when_evaluated():
    """Its network draws noise whenever it is asked, so that nobody measures the same moments twice."""

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    def network(task):
        net = task.network(task)
        net.body = nn.Sequential(Noisy(), net.body)
        return {"model": net}

    return replace(fedavg(), networks=network)


def test_re_estimation_that_moves_parameters_is_found_out(monkeypatch):

    def moved(models, *given):
        outcome = reestimate_models(models, *given)
        params = tree.scale(2.0, outcome.models["model"]["params"])
        return outcome._replace(models={"model": outcome.models["model"] | {"params": params}})

    monkeypatch.setattr("fedbeyond.testing.statistics.reestimate_models", moved)
    with pytest.raises(LawBroken, match="re-estimation changes more than running statistics"):
        reestimable(fedavg)


def forgets_nothing():
    """Its state is kept on an object between rounds, not in a tree."""
    rounds = []

    def term(local, batch):
        rounds.append(1)
        return 0.001 * len(rounds) * tree.dot(local.params, local.params)

    return replace(fedavg(), client=training(cross_entropy(), term))


REMEMBERED = []


def remembers_in_its_module():
    """Made anew it still remembers what an earlier one did."""

    def keep(local):
        REMEMBERED.append(1)
        model = read(local.net)
        grown = tree.scale(1.0 + 1e-3 * len(REMEMBERED), model["params"])
        return {"model": model | {"params": grown}}, local.private

    return replace(fedavg(), client=training(cross_entropy(), finish=keep))


def keeps_part_of_its_state_outside():
    """Deterministic in one go, but what a site keeps is lost when the process ends."""
    kept = {}

    def term(local, batch):
        seen = kept.get(local.site.name, 0) if local.private else 0
        return 0.01 * seen * tree.dot(local.params, local.params)

    def keep(local):
        kept[local.site.name] = kept.get(local.site.name, 0) + 1 if local.private else 1
        return upload(local)[0], {"seen": torch.ones(())}

    return replace(fedavg(), client=training(cross_entropy(), term, finish=keep))


def term_without_gradient():
    """A proximal term whose drift is cut from the graph: FedAvg in disguise."""

    def term(local, batch):
        drift = tree.sub({name: p.detach() for name, p in local.params.items()}, local.start)
        return 0.5 * tree.dot(drift, drift)

    return replace(fedavg(), client=training(cross_entropy(), term))


def sends_more_than_it_says():
    """A mean image of the site's data travels along."""

    def leak(local):
        reply, private = upload(local)
        return reply | {"mean_image": local.site.data["train"][0].mean(0)}, private

    return replace(fedavg(), client=training(cross_entropy(), finish=leak))


def declares_more_than_it_sends():
    return replace(fedavg(), sends=also(fedavg().sends, "score", loss=scalar))


def keeps_more_than_it_says():
    """It remembers its mean image at home."""

    def keep(local):
        return upload(local)[0], {"mean_image": local.site.clean().mean(0)}

    return replace(fedavg(), client=training(cross_entropy(), finish=keep))


def keeps_more_than_it_says_between_two_requests():
    """What is kept of one request is gone with the next of the same round."""

    def measure(site, received, private):
        return {"loss": site.loss(received["model"])}, {"mean_image": site.clean().mean(0)}

    def round(state, now):
        yield Request("score", state, now.clients)
        replies = yield Request("forget", state, now.clients)
        replies = yield Request("train", state, now.clients)
        return {"model": mean(replies, "model")}

    client = training(cross_entropy(), finish=lambda local: (upload(local)[0], {}))
    handlers = {**client.handlers, "score": measure, "forget": lambda *given: (measure(*given)[0], {})}
    sends = fedavg().sends | {kind: {"loss": scalar} for kind in ("score", "forget")}
    return replace(
        fedavg(), client=client._replace(handlers=handlers), server=Server(lambda nets: nets, round), sends=sends
    )


def begins_with_more_than_it_says():
    """It is gone after the first round."""
    client = training(
        cross_entropy(), init=lambda site: {"seed": torch.ones(1)}, finish=lambda local: (upload(local)[0], {})
    )
    return replace(fedavg(), client=client)


def declares_more_than_it_keeps():
    return replace(scaffold(), keeps=scaffold().keeps | {"momentum"})


def reads_the_number_of_rounds():
    """Near the end, later than a law looks."""

    def round(state, now):
        replies = yield Request("train", state, now.clients)
        return state if now.number > 0.9 * now.total else {"model": mean(replies, "model")}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def reads_the_number_of_rounds_at_a_site():
    def term(local, batch):
        return F.cross_entropy(local.net(batch.x), batch.y) / local.site.rounds

    return replace(fedavg(), client=training(term))


def declares_a_total_that_it_does_not_read():
    return replace(fedavg(), uses_total={"fedavg(decay=true)"})


def uses_features_that_it_does_not_declare():
    def term(local, batch):
        return F.cross_entropy(local.net.head(local.net.features(batch.x)), batch.y)

    return replace(fedavg(), client=training(term))


def reads_the_width_of_a_head_that_it_does_not_declare():
    def networks(task):
        model = task.network(task)
        return {"model": model, "extra": nn.Linear(model.head.in_features, 2)}

    return replace(fedavg(), networks=networks)


def uses_stages_that_it_does_not_declare():
    def networks(task):
        model = task.network(task)
        at_stages(model, "mine", lambda maps: None)
        return {"model": model}

    return replace(fedavg(), networks=networks)


def changes_the_head_by_its_name():
    def round(state, now):
        replies = yield Request("train", state, now.clients)
        model = mean(replies, "model")
        return {"model": model | {"params": model["params"] | {"head.bias": model["params"]["head.bias"] * 0.5}}}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def declares_maps_and_uses_features():
    return replace(uses_features_that_it_does_not_declare(), needs={"maps"})


def declares_features_that_it_does_not_use():
    return replace(fedavg(), needs={"features"})


def writes_into_what_it_received():
    """Trains on the very tensors that the server will average later."""

    def scribble(local):
        for leaf in tree.leaves(local.received):
            leaf.mul_(0.5) if leaf.is_floating_point() else None
        return upload(local)

    return replace(fedavg(), client=training(cross_entropy(), finish=scribble))


def counts_the_first_reply_twice():
    def round(state, now):
        replies = yield Request("train", state, now.clients)
        return {"model": mean([replies[0], *replies], "model")}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def keeps_something_that_is_no_tree():
    return replace(
        fedavg(), client=training(cross_entropy(), finish=lambda local: (upload(local)[0], {"a/b": torch.ones(1)}))
    )


def trusts_that_its_reply_arrived():
    """Counts its rounds beside its private state, so that a lost reply still counts."""
    kept = {}

    def term(local, batch):
        return 0.01 * kept.get(local.site.name, 0) * tree.dot(local.params, local.params)

    def keep(local):
        kept[local.site.name] = kept.get(local.site.name, 0) + 1
        return upload(local)

    return replace(fedavg(), client=training(cross_entropy(), term, finish=keep))


def draws_from_nowhere():
    """Uses a generator of its own, so that the order in which sites are asked matters."""
    stream = torch.Generator().manual_seed(0)

    def term(local, batch):
        noise = torch.randn(batch.x.shape, generator=stream)
        return F.cross_entropy(local.net(batch.x + noise), batch.y)

    return replace(fedavg(), client=training(term))


def writes_over_what_it_put_on_the_shelf():
    """One name for what changes from round to round: a round that is played again finds what it made itself."""

    def round(state, now):
        old = now.store.get("mine", "model") if now.number else state["model"]
        replies = yield Request("train", state, now.clients)
        new = mean(replies, "model")
        now.store.put("mine", "model", new)
        return {"model": tree.mean([new, old], [1.0, 1.0])}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def goes_by_the_smallest_number():
    """It says that it needs sums alone."""

    def round(state, now):
        replies = yield Request("train", state, now.clients)
        return {"model": tree.map(lambda *leaves: torch.stack(leaves).amin(0), *(r.body["model"] for r in replies))}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def weighs_by_what_is_sent():
    def update(replies, memory, now):
        return [float(reply.body["model"]["params"]["head.bias"].exp().sum()) for reply in replies], memory

    return replace(fedavg(), weighting=Weighting(lambda clients: {}, update))


def asks_twice():
    def round(state, now):
        replies = yield Request("train", state, now.clients)
        replies = yield Request("train", {"model": mean(replies, "model")}, now.clients)
        return {"model": mean(replies, "model")}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def expects_everybody():
    def round(state, now):
        replies = yield Request("train", state, now.clients)
        by_name = {reply.client: reply for reply in replies}
        return {"model": mean([by_name[name] for name in now.enrolled], "model")}

    return replace(fedavg(), server=Server(lambda nets: nets, round))


def forgets_who_is_not_asked():
    """Its weights are gone once everybody with a share is left out: nothing over nothing."""

    def update(replies, memory, now):
        return [1.0 if reply.client == "west" else 0.0 for reply in replies], memory

    return replace(fedavg(), weighting=Weighting(lambda clients: {}, update))


BROKEN = [
    (deterministic, forgets_nothing, "a second run of the same method"),
    (deterministic, remembers_in_its_module, "gives different numbers"),
    (storable, keeps_something_that_is_no_tree, "cannot be flattened"),
    (resumable, keeps_part_of_its_state_outside, "stopped and resumed"),
    (resumable, writes_over_what_it_put_on_the_shelf, "stopped and resumed"),
    (portable, draws_from_nowhere, "in another order"),
    (symmetric, counts_the_first_reply_twice, "reverse order"),
    (summable, goes_by_the_smallest_number, "without single replies"),
    (summable, weighs_by_what_is_sent, "without single replies"),
    (declared, asks_twice, "the same kind of request twice in a round"),
    (sampled, expects_everybody, "some of the sites raises KeyError"),
    (sampled, forgets_who_is_not_asked, "some of the sites raises ZeroDivisionError"),
    (pure, writes_into_what_it_received, "changed its arguments"),
    (declared, sends_more_than_it_says, "undeclared .*mean_image"),
    (declared, declares_more_than_it_sends, "never sent: .*loss"),
    (declared, keeps_more_than_it_says, r"has \['mean_image'\], and keeps declares \[\]: declare .*Method\(keeps="),
    (declared, keeps_more_than_it_says_between_two_requests, "declare .*mean_image"),
    (declared, begins_with_more_than_it_says, "declare .*seed"),
    (declared, declares_more_than_it_keeps, r"had \['control'\], .*\['control', 'momentum'\]: remove \['momentum'\]"),
    (declared, reads_the_number_of_rounds, r"reads Round\.total, so that .* declare .*Method\(uses_total="),
    (declared, reads_the_number_of_rounds_at_a_site, r"reads Site\.rounds, so that"),
    (declared, declares_a_total_that_it_does_not_read, r"\['fedavg\(decay=true\)'\], but .* it reads neither"),
    (declared, uses_features_that_it_does_not_declare, r"uses \['features'\] of its network.*Method\(needs="),
    (declared, reads_the_width_of_a_head_that_it_does_not_declare, r"uses \['features'\]"),
    (declared, uses_stages_that_it_does_not_declare, r"uses \['stages'\]"),
    (declared, changes_the_head_by_its_name, "gives only logits it raises KeyError: 'head.bias'; .* declare needs="),
    (declared, declares_maps_and_uses_features, r"declares \['maps'\], .* uses \['features'\]"),
    (declared, declares_features_that_it_does_not_use, r"declares \['features'\], .* uses only logits"),
    (fault_tolerant, trusts_that_its_reply_arrived, r"\(stalls\) in round 1"),
    (reestimable, drawing_when_evaluated, "a second re-estimation gives different statistics"),
    (alive, term_without_gradient, "that of plain averaging"),
]


@pytest.mark.parametrize(("law", "broken", "complaint"), BROKEN)
def test_a_broken_method_is_found_out(law, broken, complaint):
    with pytest.raises(LawBroken, match=complaint):
        law(broken)


def test_every_law_has_a_negative_control():
    assert {law.__name__ for law, *_ in BROKEN} == {*LAWS, "alive"}


def test_a_method_whose_replies_are_rejected_breaks_the_first_law_and_the_undeclared_names_are_given():
    with pytest.raises(LawBroken, match=r"deterministic: its replies were rejected: .*undeclared: mean_image"):
        check_method(sends_more_than_it_says)


def test_check_runs_all_of_them():
    check_method(scaffold)
    with pytest.raises(LawBroken):
        check_method(term_without_gradient)


def test_check_uses_one_thread_and_nothing_of_an_earlier_check():
    seen, factor, threads = [], [1.0], torch.get_num_threads()

    def changing():  # as in a notebook: the function stays, and what it uses changes
        seen.append(torch.get_num_threads())
        return fedprox(mu=factor[0])

    torch.set_num_threads(2)
    try:
        check_method(changing, laws={"resumable": LAWS["resumable"]})
        factor[0] = 2.0
        check_method(changing, laws={"resumable": LAWS["resumable"]})
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
