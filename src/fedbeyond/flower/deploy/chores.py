"""What `join` does beside running a site: remove old private states, and announce runs that wait for approval.

Torch is not imported here: `join` only waits, most of the time.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..site_config import APPROVALS, SiteConfig
from .folder import site_settings

# private states, and models whose statistics were being measured; not logs, counts of replies, budgets or approvals
STATE = re.compile(r"\w{1,64}\.(safetensors|evaluated)")
REMOVAL_PAUSE, NOTICE_PAUSE = 3600.0, 5.0  # seconds between two searches
DAY = 86400.0  # seconds


@contextmanager
def chores(bundle: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Look after a site until the block is left, and report what was done."""
    site_config, announced = SiteConfig.parse(site_settings(bundle)), set[str]()

    def remove() -> None:
        if removed := remove_old_states(site_config):
            report(f"removed {removed} states that were not written for {site_config.keep_days:g} days")

    def announce() -> None:
        for digest in sorted(waiting_digests(site_config.folder) - announced):
            announced.add(digest)
            report(f"a run waits for approval; what it would do and send: fedbeyond approve {bundle}")

    with ExitStack() as stack:
        stack.enter_context(repeated(remove, REMOVAL_PAUSE, report))
        stack.enter_context(repeated(announce, NOTICE_PAUSE, report))
        yield


def old_states(folder: Path, days: float) -> list[Path]:
    """Return the states in a site's folder that have not been written for this number of days."""
    before = time.time() - days * DAY
    paths = sorted(path for path in folder.glob("*") if STATE.fullmatch(path.name) and path.is_file())
    return [path for path in paths if path.stat().st_mtime < before]


def remove_old_states(site_config: SiteConfig) -> int:
    """Remove old states of a site if it limits how long they are kept, and return how many."""
    if site_config.keep_days is None:
        return 0
    states = old_states(site_config.folder, site_config.keep_days)
    for path in states:
        path.unlink(missing_ok=True)
    return len(states)


def waiting_digests(folder: Path) -> set[str]:
    """Return the digests of the runs that wait for the approval of a site's operator."""
    return {path.name.partition(".")[0] for path in (folder / APPROVALS).glob("*.waiting.json")}


@contextmanager
def repeated(work: Callable[[], None], pause: float, report: Callable[[str], None]) -> Iterator[None]:
    """Do some work at once and then every `pause` seconds, until the block is left; an error of a file is reported."""
    ended = threading.Event()

    def repeat() -> None:
        while True:
            try:
                work()
            except OSError as error:
                report(f"{error.filename}: {error.strerror}; give the user that runs fedbeyond access to it")
            if ended.wait(pause):
                return

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
