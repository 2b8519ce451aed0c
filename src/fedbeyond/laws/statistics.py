"""What holds when BatchNorm statistics of a method's models are re-estimated at the toy sites."""

from ..gate import Answers, Failure
from ..method import Method
from ..nets.moments import levels, tracked
from ..reestimation import Measure, Models, Passes, moments_of, reestimated
from ..server import Request
from ..tree import Tree
from . import toy
from .compare import LawBroken, ensure_equal
from .faults import FAULTS, FAULTY, Fault, across, spoil


def ensure_reestimable(method: Method, models: Models) -> None:
    """Measure models anew in several ways, which must agree; raises `LawBroken` where they do not."""
    if (net := toy.nets(method)["model"]) and not tracked(net):
        if levels(net, toy.TASK.shape):
            raise LawBroken("a network without BatchNorm is to be measured")
        return
    want = _measured(method, models)
    for name, model in want.items():
        statistics = {f"{layer}.{part}" for layer in tracked(net) for part in ("running_mean", "running_var")}
        own, fresh = models[name], dict(model["buffers"])
        fresh |= {key: own["buffers"][key] for key in statistics}
        ensure_equal(model | {"buffers": fresh}, own, "re-estimation changes more than running statistics")
    ensure_equal(_measured(method, models), want, "a second re-estimation gives other statistics")
    ensure_equal(_measured(method, models, over_a_wire(method)), want, "as bytes, in another order, they differ")
    if method.pooled or len(models) > 1:  # nobody is left to go on with
        return
    absent = _measured(method, models, fault="absent")
    for fault in FAULTS:
        got = _measured(method, models, fault=fault)
        ensure_equal(got, absent, f"a site whose moments are spoilt ({fault}) changes more than its absence would")


def _measured(
    method: Method, models: Models, measure: Measure | None = None, fault: Fault | None = None
) -> dict[str, Tree]:
    """Models with statistics measured at the toy sites; with a `fault` of one of them in its first answer."""
    sites = {site.name: site for site in toy.sites(method)}
    passes = Passes(sites)

    def faulty(request: Request, number: int) -> Answers:
        answers = passes.measure(request, number)
        if "model" in request.body and fault:
            absent = Failure(FAULTY, "did not answer")
            answers[FAULTY] = absent if fault == "absent" else spoil(answers[FAULTY], fault, "west")
        return answers

    found = levels(toy.nets(method)["model"], toy.TASK.shape)
    weights = {name: float(site.size) for name, site in sites.items()}
    try:
        return reestimated(models, found, weights, measure or faulty, toy.gate(method), 0).models
    finally:
        passes.close()


def over_a_wire(method: Method) -> Measure:
    """Sites that are made anew for every request, get and give bytes, and answer in the opposite order."""
    held: dict[str, Tree] = {}

    def measure(request: Request, number: int) -> Answers:
        held.update({"model": request.body["model"]} if "model" in request.body else {})
        sites = {site.name: site for site in toy.sites(method)}
        sent = request._replace(body=across(request.body))
        replies = {name: moments_of(sites[name], held["model"], sent) for name in reversed(request.to)}
        return {name: reply._replace(body=across(reply.body)) for name, reply in replies.items()}

    return measure
