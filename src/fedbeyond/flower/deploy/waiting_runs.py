"""Describe the runs that wait for the approval of a site's operator, and what each would send."""

from collections.abc import Iterator
from pathlib import Path

from ...errors import FedbeyondError, printable
from ...experiment.config import Config
from ..approvals import approved, waiting
from ..site_config import SiteConfig
from .outgoing import list_outgoing


def describe_runs(site_config: SiteConfig, bundle: Path) -> Iterator[str]:
    """Describe each waiting run in a few lines, and list what is approved."""
    runs = waiting(site_config.folder)
    for run in runs:
        yield f"{run.digest} waits since {printable(run.asked)}"
        try:
            config = run.config(site_config.data, site_config.public)
        except FedbeyondError as error:
            yield f"  cannot run here: {printable(str(error))}"
            continue
        yield f"  {printable(describe_config(config))}"
        for finding in list_outgoing(site_config, config):
            if finding.topic != "approval":
                yield f"  {'' if finding.ok else 'FAILED '}{finding.topic}: {printable(finding.text)}"
        yield f"  to approve it: fedbeyond approve {bundle} {run.digest}"
    for digest, moment in approved(site_config.folder).items():
        yield f"{digest} approved {printable(moment)}; to withdraw: fedbeyond approve {bundle} {digest} --revoke"
    if not runs:
        yield "no run waits for approval"


def describe_config(config: Config) -> str:
    """Describe what a run would do at a site."""
    train = config.train
    work = f"{train.rounds} rounds of {train.epochs} epochs, batches of {train.batch_size}"
    return (
        f"{config.method} on {config.network}, {config.optimizer}; {work}; unseen: {config.target}; seed {config.seed}"
    )
