"""A problem of data, in words: what it is, where it is, and what to do about it."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_NAMED = 5  # names in a finding
WIDTH = 80  # columns of a terminal


class Finding(NamedTuple):
    """A problem of the data: a title, names and what to do; a note if nothing needs to be done."""

    title: str
    names: Sequence[str]
    remedy: str
    note: bool = False

    def sentence(self) -> str:
        """Return the finding as one line, as in an error message."""
        return f"{self.title}: {shortened(self.names)}; {self.remedy}" if self.names else f"{self.title}; {self.remedy}"


def shortened(names: Sequence[str], most: int = MAX_NAMED) -> str:
    """Join the first names, and count the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def report_lines(findings: Iterable[Finding]) -> list[str]:
    """Return findings as paragraphs, notes last, and a line that counts the others."""
    findings, lines = sorted(findings, key=lambda finding: finding.note), []
    for finding in findings:
        lines += ["", *wrapped(f"{'note: ' if finding.note else ''}{finding.title}")]
        lines += [f"  {name}" for name in finding.names[:MAX_NAMED]]
        lines += [f"  and {len(finding.names) - MAX_NAMED} more"] if len(finding.names) > MAX_NAMED else []
        lines += wrapped(f"  to do: {finding.remedy}", "    ")
    return lines


def count_findings(findings: Iterable[Finding]) -> str:
    """Return the number of findings that are not notes, in words."""
    problems = sum(not finding.note for finding in findings)
    return f"{problems} finding{'s' * (problems != 1)}" if problems else "no findings"


def printable(text: str) -> str:
    """Return a text that any UTF-8 terminal can show: names of files may have bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Break a text into lines for a terminal."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def wrapped_notes(findings: Iterable[Finding]) -> list[str]:
    """Return findings as notes for a terminal."""
    return [line for finding in findings for line in wrapped(f"note: {finding.sentence()}")]
