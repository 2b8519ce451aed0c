"""Where the repository and its package are."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "fedbeyond"
