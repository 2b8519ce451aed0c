"""What holds when BatchNorm statistics of a method's model are re-estimated at the toy sites."""

from ..engine.gate import Answers
from ..engine.reestimation import Measure, SuspendedPasses, moments_of, reestimated
from ..method import Method
from ..networks.moments import levels, tracked
from ..server import Failure, Request
from ..tree import Tree
from . import toy
from .compare import LawBroken, ensure_equal
from .faults import FAULTS, FAULTY, Fault, across, spoil


def ensure_reestimable(method: Method) -> None:
    """Measure the method's first model anew in several ways, which must agree; raises `LawBroken` where they do not."""
    net = toy.nets(method, toy.DEEPER)["model"]
    if not tracked(net):
        if levels(net, toy.TASK.shape):
            raise LawBroken("a network without BatchNorm is to be measured")
        return
    model = toy.shared(method, toy.DEEPER)["model"]
    want = _measured(method, model)
    statistics = {f"{layer}.{part}" for layer in tracked(net) for part in ("running_mean", "running_var")}
    own = {key: model["buffers"][key] for key in statistics}
    ensure_equal(want | {"buffers": want["buffers"] | own}, model, "re-estimation changes more than running statistics")
    ensure_equal(_measured(method, model), want, "a second re-estimation gives other statistics")
    ensure_equal(_measured(method, model, over_a_wire(method)), want, "as bytes, in another order, they differ")
    if method.pooled:  # nobody is left to go on with
        return
    for level in (0, 1):
        absent = _measured(method, model, fault="absent", level=level)
        for fault in FAULTS:
            got = _measured(method, model, fault=fault, level=level)
            ensure_equal(got, absent, f"a site whose moments are spoilt ({fault}) changes more than its absence would")


def _measured(
    method: Method, model: Tree, measure: Measure | None = None, fault: Fault | None = None, level: int = 0
) -> Tree:
    """The model with statistics measured at the toy sites; with a `fault` of one of them at a level."""
    sites = {site.name: site for site in toy.sites(method, task=toy.DEEPER)}
    passes = SuspendedPasses(sites)
    found = levels(sites[min(sites)].nets["model"], toy.TASK.shape)

    def faulty(request: Request, number: int) -> Answers:
        answers = passes.measure(request, number)
        if fault and int(request.body["remaining"]) == len(found) - 1 - level:
            absent = Failure(FAULTY, "did not answer")
            answers[FAULTY] = absent if fault == "absent" else spoil(answers[FAULTY], fault, "west")
        return answers

    weights = {name: float(site.size) for name, site in sites.items()}
    gate = toy.gate(method, task=toy.DEEPER)
    try:
        return reestimated({"model": model}, found, weights, measure or faulty, gate, 0).models["model"]
    finally:
        passes.close()


def over_a_wire(method: Method) -> Measure:
    """Sites that are made anew for every request, get and give bytes, and answer in the opposite order."""
    held: dict[str, Tree] = {}

    def measure(request: Request, number: int) -> Answers:
        held.update({"model": request.body["model"]} if "model" in request.body else {})
        sites = {site.name: site for site in toy.sites(method, task=toy.DEEPER)}
        sent = request._replace(body=across(request.body))
        replies = {name: moments_of(sites[name], held["model"], sent) for name in reversed(request.to)}
        return {name: reply._replace(body=across(reply.body)) for name, reply in replies.items()}

    return measure
