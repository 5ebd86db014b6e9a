"""MkDocs hooks: pages from outside docs/, pages made from the code, links between all of them.

Pages are written for the repository: their links are paths between files of the repository, and
work on a forge and in an editor. The site has other paths, so each link is resolved in the repository
and written anew. A link to a file that is not part of the site (source code) leads to the repository
if DRAY_REPOSITORY_URL names it, and is plain text otherwise.
"""

import os
import posixpath
import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))

import reference  # noqa: E402 - a hook is loaded by path; its folder must be named first

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]*`|^(?: {4}|\t)[^\n]*$)", re.MULTILINE | re.DOTALL)
REPOSITORY = os.environ.get("DRAY_REPOSITORY_URL", "").rstrip("/")
MOVED = {"README.md": "index.md", "docs/README.md": "contents.md"}  # the project's README is the home page
SHOWN = {".md", ".yaml", ".py", ".json"}


def site_path(path: str) -> str | None:
    """Return where a file of the repository is on the site; None if it is not part of it.

    >>> site_path("docs/guides/claims.md"), site_path("SCOPE.md"), site_path("src/dray/__init__.py")
    ('guides/claims.md', 'project/SCOPE.md', None)
    """
    if path in MOVED:
        return MOVED[path]
    first, _, rest = path.partition("/")
    if first == "docs":
        return rest
    if first == "examples":
        return path
    if path.endswith(".md") and (not rest or first == "changelog.d"):
        return f"project/{path}"
    return None


def outside_pages() -> dict[str, Path]:
    """Return the files of the repository that the site has beside docs/, by their path on the site."""
    paths = [
        *ROOT.glob("*.md"),
        ROOT / "docs/README.md",
        *ROOT.glob("changelog.d/README.md"),
        *ROOT.glob("examples/**/*"),
    ]
    found = {}
    for path in sorted(paths):
        where = site_path(path.relative_to(ROOT).as_posix())
        if where and path.is_file() and path.suffix in SHOWN:
            found[where] = path
    return found


def filled(entry, lists):
    """Return an entry of `nav` with its placeholders replaced by lists of pages."""
    if isinstance(entry, list):
        whole = []
        for each in entry:
            value = filled(each, lists)
            whole += value if isinstance(each, str) and each in lists else [value]
        return whole
    if isinstance(entry, dict):
        return {title: filled(below, lists) for title, below in entry.items()}
    return lists.get(entry, entry)


def on_config(config):
    examples = sorted((ROOT / "examples").glob("*/README.md"))
    decisions = sorted(path.name for path in (ROOT / "docs/adr").glob("0*.md"))
    lists = {
        "{examples}": [
            "examples/README.md",
            *(path.relative_to(ROOT).as_posix() for path in examples),
        ],
        "{decisions}": ["adr/README.md", *(f"adr/{name}" for name in decisions)],
        "{python}": [{title: path} for title, path in reference.python_pages()],
    }
    config.nav = filled(config.nav, lists)
    return config


def on_files(files, config):
    files.remove(files.get_file_from_path("README.md"))
    for where, path in outside_pages().items():
        files.append(File.generated(config, where, abs_src_path=str(path)))
    for where, text in reference.pages().items():
        files.append(File.generated(config, where, content=text))
    return files


def repository_path(uri: str) -> str | None:
    """Return the file of the repository that a page of the site comes from; None for a generated one."""
    for path, where in MOVED.items():
        if uri == where:
            return path
    if uri.startswith("project/"):
        return uri.removeprefix("project/")
    if uri.startswith("examples/"):
        return uri
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else None


def rewritten(uri: str, markdown: str) -> str:
    """Return the text of a page with its links written for the site."""
    source = repository_path(uri)
    if source is None:
        return markdown

    def replace(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if re.match(r"[a-z][a-z0-9+.-]*:|#|//", target):
            return found[0]
        name, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        where = site_path(path)
        if where is None or (ROOT / path).is_dir():
            return f"{mark}[{label}]({REPOSITORY}/blob/HEAD/{path})" if REPOSITORY else label
        relative = posixpath.relpath(where, PurePosixPath(uri).parent)
        return f"{mark}[{label}]({relative}{'#' if anchor else ''}{anchor})"

    # "```console cluster", "```python sketch": the second word is for tests/unit/test_docs.py.
    markdown = re.sub(r"^( *```\w+) \w+$", r"\1", markdown, flags=re.MULTILINE)
    pieces = CODE.split(markdown)
    return "".join(piece if number % 2 else LINK.sub(replace, piece) for number, piece in enumerate(pieces))


def on_page_markdown(markdown, page, config, files):
    return rewritten(page.file.src_uri, markdown)
