"""Check that re-estimating the BatchNorm statistics of a method's model at the toy sites is consistent."""

from .._method import Method
from ..engine.gate import Answers
from ..engine.reestimation import Measure, SuspendedPasses, moments_of, reestimate_models
from ..networks.moments import levels, tracked_layers
from ..server import Failure, Request
from ..tree import Tree
from . import toy
from .compare import LawBroken, ensure_equal
from .faults import FAULTS, FAULTY, Fault, spoil, through_bytes


def ensure_reestimable(method: Method) -> None:
    """Re-estimate the statistics of the method's first model in several ways; raise `LawBroken` if they differ."""
    net = toy.nets(method, toy.DEEPER)["model"]
    if not tracked_layers(net):
        if levels(net, toy.TASK.shape):
            raise LawBroken("a network without BatchNorm has layers to measure")
        return
    model = toy.shared(method, toy.DEEPER)["model"]
    want = _reestimate(method, model)
    statistics = {f"{layer}.{part}" for layer in tracked_layers(net) for part in ("running_mean", "running_var")}
    original = {key: model["buffers"][key] for key in statistics}
    ensure_equal(
        want | {"buffers": want["buffers"] | original}, model, "re-estimation changes more than running statistics"
    )
    ensure_equal(_reestimate(method, model), want, "a second re-estimation gives different statistics")
    ensure_equal(
        _reestimate(method, model, measure_over_bytes(method)), want, "as bytes, in another order, they differ"
    )
    if method.pooled:  # no other site is left
        return
    for level in (0, 1):
        absent = _reestimate(method, model, fault="absent", level=level)
        for fault in FAULTS:
            got = _reestimate(method, model, fault=fault, level=level)
            ensure_equal(got, absent, f"a site with unusable moments ({fault}) changes more than its absence would")


def _reestimate(
    method: Method, model: Tree, measure: Measure | None = None, fault: Fault | None = None, level: int = 0
) -> Tree:
    """Return the model with statistics re-estimated at the toy sites; one site may have a `fault` at a level."""
    sites = {site.name: site for site in toy.sites(method, task=toy.DEEPER)}
    passes = SuspendedPasses(sites)
    layer_levels = levels(sites[min(sites)].nets["model"], toy.TASK.shape)

    def with_fault(request: Request, number: int) -> Answers:
        answers = passes.measure(request, number)
        if fault and int(request.body["remaining"]) == len(layer_levels) - 1 - level:
            absent = Failure(FAULTY, "did not answer")
            answers[FAULTY] = absent if fault == "absent" else spoil(answers[FAULTY], fault, "west")
        return answers

    weights = {name: float(site.size) for name, site in sites.items()}
    gate = toy.gate(method, task=toy.DEEPER)
    try:
        outcome = reestimate_models({"model": model}, layer_levels, weights, measure or with_fault, gate, 0)
        return outcome.models["model"]
    finally:
        passes.close()


def measure_over_bytes(method: Method) -> Measure:
    """Return a measurement at sites that are created for each request, exchange bytes, and reply in reverse order."""
    latest: dict[str, Tree] = {}

    def measure(request: Request, number: int) -> Answers:
        latest.update({"model": request.body["model"]} if "model" in request.body else {})
        sites = {site.name: site for site in toy.sites(method, task=toy.DEEPER)}
        sent = request._replace(body=through_bytes(request.body))
        replies = {name: moments_of(sites[name], latest["model"], sent) for name in reversed(request.to)}
        return {name: reply._replace(body=through_bytes(reply.body)) for name, reply in replies.items()}

    return measure
