"""Metadata that depends on where the project is published: the README's links and the project's addresses.

A package index shows the README without the files beside it, so a relative link in it leads nowhere.
The address of the repository is not written down in the source, because a fork or a mirror has
another one. The release workflow passes its own address in DRAY_REPOSITORY_URL:

  * with it, relative links become links to that repository at the tag of this version, and the
    package gets `project.urls`;
  * without it (a local build), the text of a link stays and its target goes. No link is dead.

Relative pictures are treated in the same way. Tests: tests/unit/test_packaging.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
PICTURES = (".png", ".svg", ".gif")


def is_relative(target: str) -> bool:
    """Return whether a link leads to a file beside the README."""
    return not re.match(r"[a-z][a-z0-9+.-]*:|#|//", target)


def published_readme(text: str, repository: str, tag: str) -> str:
    """Return the README with links that work away from the repository."""

    def replace(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if not is_relative(target):
            return found[0]
        if not repository:
            return "" if mark else label
        kind = "raw" if target.partition("#")[0].endswith(PICTURES) else "blob"
        return f"{mark}[{label}]({repository}/{kind}/{tag}/{target})"

    # Odd pieces are code: brackets there are not links.
    pieces = CODE.split(text)
    return "".join(piece if number % 2 else LINK.sub(replace, piece) for number, piece in enumerate(pieces))


def project_urls(repository: str, tag: str) -> dict[str, str]:
    """Return the addresses that a package index lists beside the README."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/README.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class CustomMetadataHook(MetadataHookInterface):
    """Fills in the dynamic fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields to the metadata of one build."""
        root = Path(self.root)
        version = re.search(
            r'^__version__ = "(.+)"$', (root / "src/dray/__init__.py").read_text("utf-8"), re.MULTILINE
        )
        assert version is not None, "src/dray/__init__.py has no __version__"
        repository, tag = os.environ.get("DRAY_REPOSITORY_URL", "").rstrip("/"), f"v{version[1]}"
        readme = published_readme((root / "README.md").read_text("utf-8"), repository, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = project_urls(repository, tag)
