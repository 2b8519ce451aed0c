"""List what a run would send from a site, and whether it may run there."""

from collections.abc import Iterator, Mapping

from ... import tree
from ...classifier import shapes_of
from ...engine.reestimation import levels_of
from ...errors import FedbeyondError
from ...experiment.config import Config
from ...networks.prefix import tail_in
from ...wrappers.privacy import describe_guarantee
from .. import answer_limits, site_ledger
from ..answers import Node
from ..approvals import is_approved
from ..node import prepare_node
from ..shared_config import config_digest, run_digest, splits_digest
from ..site_config import SiteConfig
from ..site_data import count_groups, own_domain, split_rows
from .finding import Finding


def list_outgoing(site_config: SiteConfig, config: Config) -> Iterator[Finding]:
    """List what a run would send from this site, or why it cannot run here."""
    try:
        node = prepare_node(site_config, config, sources=2, is_run=False)  # how many there will be is not known here
        ledger = site_ledger.snapshot(site_config.folder)
        answer_limits.ensure_same_splits(ledger, node.policy, splits_digest(config))
        if node.site is not None:
            digest = config_digest(config)
            answer_limits.ensure_affordable_run(ledger, node.policy, digest, node.method, config.train.rounds)
    except FedbeyondError as error:
        yield Finding(False, "run", str(error))
        return
    yield Finding(True, "run", f"{config.method}, {config.train.rounds} rounds, digest {run_digest(config)}")
    if node.policy.approval:
        yield check_approval(site_config, config)
    domains = own_domain(site_config)
    if groups := count_groups(domains, split_rows(site_config, config, domains)):
        yield Finding(True, "groups", describe_splits(groups, config.train.disjoint is not None or not node.site))
    outgoing = [f"on enrolling: {', '.join(node.facts)}, bytes of private state"]
    if node.site is not None:
        outgoing += [f"in reply to {kind!r}: {', '.join(describe_reply(node, kind))}" for kind in node.method.sends]
        tail = tail_in(node.net)  # of cached outputs, which are its inputs
        if levels := levels_of(node.method, node.net, tail.cut.shape if tail else node.facts["shape"]):
            text = "means and deviations of the inputs of BatchNorm layers (statistics)"
            outgoing.append(f"in reply to 'statistics': {text}, in {len(levels)} exchanges after evaluated rounds")
        outgoing.append("with each of these: the site's name, number of training images, bytes of private state")
    yield from (Finding(True, "leaves", text) for text in outgoing)
    if node.site is not None and (guarantee := describe_guarantee(node.method, config.train.rounds)):
        yield Finding(True, "privacy", guarantee)
    if reason := node.policy.why_withheld({part: len(split[1]) for part, split in node.splits.items()}):
        yield Finding(True, "leaves", f"in reply to 'evaluate': nothing, because {reason}")
    else:
        counts = ", recall and confusion" if node.policy.round_scores is None else ", rounded,"
        text = f"loss, accuracy, F1, AUC{counts} on the site's own images"
        yield Finding(True, "leaves", f"in reply to 'evaluate': {text}")
    yield Finding(True, "leaves", "on an error: the site's name, the class of the error, and its entry in errors.log")


def describe_splits(groups: Mapping[str, int], apart: bool) -> str:
    """Say how many groups each split of a run has, and whether a group may be in two of them."""
    text = ", ".join(f"{part} {count:,}" for part, count in groups.items())
    if apart:
        return f"of this run's splits: {text}; none is in two of them"
    advice = "set train.disjoint = 'groups' in the run; disjoint = \"groups\" in the site's policy refuses such runs"
    return f"of this run's splits: {text}; the run does not keep a group in one split: {advice}"


def check_approval(site_config: SiteConfig, config: Config) -> Finding:
    """Check that the site's operator has approved a run."""
    digest = run_digest(config)
    if is_approved(site_config.folder, digest):
        return Finding(True, "approval", f"{digest} is approved")
    return Finding(False, "approval", f"the site's policy requires it: fedbeyond approve FOLDER {digest}")


def describe_reply(node: Node, kind: str) -> Iterator[str]:
    """List what leaves in reply to a request: name, kind and, except for scalars, size."""
    assert node.site
    nets = {name: shapes_of(node.site.nets[name]) for name in node.method.shared}
    for name, content in node.method.sends[kind].items():
        size = "" if content.kind == "scalars" else f", {tree.size(content.like(nets, {})):,} bytes"
        yield f"{name} ({content.kind}{size})"
