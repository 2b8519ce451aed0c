"""Make the links of README absolute in the metadata of a package: an index shows README without the other files."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling for `[tool.hatch.metadata.hooks.custom]`."""

    def update(self, metadata: dict) -> None:
        """Set the readme: files lead to the source at main, pictures to their raw content."""
        source, root = metadata["urls"]["Source"], Path(self.root)

        def absolute(link: re.Match[str]) -> str:
            kind = "raw" if link[1] else "tree" if (root / link[3]).is_dir() else "blob"
            return f"{link[1]}{link[2]}{source}/{kind}/main/{link[3]})"

        text = LINK.sub(absolute, (root / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
