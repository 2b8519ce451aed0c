"""What a shell offers when Tab is pressed: names, read without importing torch."""

from collections.abc import Callable, Iterable

Completer = Callable[[str], list[str]]


def words(names: Callable[[], Iterable[str]]) -> Completer:
    """Return a completer of the names that a function returns; it is called when a name is completed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def method(incomplete: str) -> list[str]:
    """Complete the name of a method; after a plus sign, that of a wrapper."""
    from ..experiment.registry import known

    before, plus, last = incomplete.rpartition("+")
    return [before + plus + name for name in known("wrappers" if plus else "methods") if name.startswith(last)]


def group_or_name() -> Iterable[str]:
    """Return what `fedbeyond list` accepts: groups, and the names in them."""
    from ..experiment.registry import REGISTRY, known

    return dict.fromkeys([*REGISTRY, *(name for group in REGISTRY for name in known(group))])


def datasets() -> Iterable[str]:
    """Return the names of datasets."""
    from ..experiment.registry import known

    return known("datasets")


def domains() -> Iterable[str]:
    """Return the domains of the built-in dataset."""
    from ..data.datasets.drawing import DOMAINS

    return DOMAINS


def rules() -> Iterable[str]:
    """Return the names of selection rules."""
    from ..evaluation.rules import RULES

    return RULES


def metrics() -> Iterable[str]:
    """Return the names of metrics."""
    from ..report.table import METRICS

    return METRICS


def formats() -> Iterable[str]:
    """Return the formats of a report."""
    from ..report.write import FORMATS

    return FORMATS


def papers() -> Iterable[str]:
    """Return the papers whose numbers are known."""
    from ..report.paper_comparison import PAPERS

    return PAPERS
