"""The tree of the package as docs/architecture.md shows it; `python tests/support/architecture.py` writes it there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"```text\nsrc/fedbeyond\n.*?```", re.S)


def tree(folder: Path, depth: int = 2, prefix: str = "") -> list[str]:
    """Return the lines that `tree -L 2` prints for a folder, without caches."""
    entries = sorted(path for path in folder.iterdir() if path.name != "__pycache__")
    lines = []
    for place, path in enumerate(entries):
        last = place == len(entries) - 1
        lines.append(f"{prefix}{'└── ' if last else '├── '}{path.name}")
        if path.is_dir() and depth > 1:
            lines += tree(path, depth - 1, prefix + ("    " if last else "│   "))
    return lines


def block() -> str:
    """Return the code block of the page."""
    return "\n".join(["```text", "src/fedbeyond", *tree(ROOT / "src" / "fedbeyond"), "```"])


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: block(), PAGE.read_text()))
