"""Assemble CHANGELOG.md from the fragments in changelog.d.

    python tools/changelog.py verify [--tag v0.2.0]   fragments are well-formed; version, changelog and tag agree
    python tools/changelog.py collect                 move the fragments into the newest section
    python tools/changelog.py release 0.2.0 DATE      collect, then date the newest section
    python tools/changelog.py start 0.3.0             begin a section for the next version
    python tools/changelog.py notes                   print the newest section, for a release page

Fragments are merged into the section that is there, also by hand: towncrier, the usual tool, always
writes a new section and would make a second one for a version that already has entries.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed", "removed", "security")
NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")
HEAD = re.compile(r"^## (\d+\.\d+\.\d+\S*) \((unreleased|\d{4}-\d{2}-\d{2})\)$", re.MULTILINE)
WIDTH = 150  # columns of the lists in CHANGELOG.md


class ChangelogError(Exception):
    """The changelog, a fragment or the version is not as it must be."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One file of changelog.d."""

    path: Path
    kind: str
    text: str


def read_fragments(folder: Path) -> list[Fragment]:
    """Return the fragments, sorted by name; raises ChangelogError for a malformed one."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        if not NAME.fullmatch(path.name):
            raise ChangelogError(f"{path.name}: the name must be <slug>.<{'|'.join(KINDS)}>.md")
        text = " ".join(path.read_text("utf-8").split())
        if not text:
            raise ChangelogError(f"{path.name}: the file is empty")
        if text.startswith(("- ", "* ", "#")):
            raise ChangelogError(f"{path.name}: write sentences, without list marker or heading")
        found.append(Fragment(path, path.name.split(".")[1], text))
    return found


def newest(changelog: str) -> tuple[str, str, int, int]:
    """Return version, date, start and end of the newest section."""
    heads = list(HEAD.finditer(changelog))
    if not heads:
        raise ChangelogError("CHANGELOG.md has no heading like `## 0.2.0 (unreleased)`")
    end = heads[1].start() if len(heads) > 1 else len(changelog)
    return heads[0][1], heads[0][2], heads[0].start(), end


def merged(changelog: str, fragments: list[Fragment]) -> str:
    """Return the changelog with the fragments in its newest section."""
    _version, date, start, end = newest(changelog)
    if fragments and date != "unreleased":
        raise ChangelogError(
            "the newest section is released: `tools/changelog.py start VERSION` begins the next"
        )
    section = changelog[start:end]
    for kind in KINDS:
        lines = [_entry(each.text) for each in fragments if each.kind == kind]
        if lines:
            section = _with_lines(section, f"### {kind.capitalize()}", lines)
    return changelog[:start] + section + changelog[end:]


def _entry(text: str) -> str:
    lines, line = [], "-"
    for word in text.split(" "):
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = " "
        line += f" {word}"
    return "\n".join([*lines, line])


def _with_lines(section: str, heading: str, lines: list[str]) -> str:
    body, added = section.rstrip("\n"), "\n".join(lines)
    tail = section[len(body) :]
    at = body.find(f"{heading}\n")
    if at < 0:
        return f"{body}\n\n{heading}\n{added}{tail}"
    following = body.find("\n### ", at)
    if following < 0:
        return f"{body}\n{added}{tail}"
    return f"{body[:following].rstrip()}\n{added}\n{body[following:]}{tail}"


def version_of(root: Path) -> str:
    """Return the version of the source."""
    found = re.search(
        r'^__version__ = "(.+)"$', (root / "src/dray/__init__.py").read_text("utf-8"), re.MULTILINE
    )
    if found is None:
        raise ChangelogError("src/dray/__init__.py has no __version__")
    return found[1]


def verify(root: Path, tag: str = "") -> None:
    """Raise ChangelogError unless fragments, version, changelog and tag agree."""
    fragments = read_fragments(root / "changelog.d")
    version, date, _, _ = newest((root / "CHANGELOG.md").read_text("utf-8"))
    source = version_of(root)
    if version != source:
        raise ChangelogError(f"the newest section of CHANGELOG.md is {version}, the source says {source}")
    if tag and tag != f"v{source}":
        raise ChangelogError(f"the tag is {tag}, the source says {source}")
    if tag and (date == "unreleased" or fragments):
        raise ChangelogError(f"run `tools/changelog.py release {source} DATE` before tagging")


def collect(root: Path) -> int:
    """Move the fragments into the changelog; returns how many there were."""
    fragments = read_fragments(root / "changelog.d")
    path = root / "CHANGELOG.md"
    path.write_text(merged(path.read_text("utf-8"), fragments), "utf-8")
    for fragment in fragments:
        fragment.path.unlink()
    return len(fragments)


def release(root: Path, version: str, date: str) -> None:
    """Collect the fragments and date the newest section, which must be that of `version`."""
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise ChangelogError(f"{date}: a date is written as 2026-01-31")
    verify(root)
    path = root / "CHANGELOG.md"
    if newest(path.read_text("utf-8"))[:2] != (version, "unreleased"):
        raise ChangelogError(f"CHANGELOG.md has no unreleased section {version}")
    collect(root)
    path.write_text(HEAD.sub(f"## {version} ({date})", path.read_text("utf-8"), count=1), "utf-8")


def start(root: Path, version: str) -> None:
    """Begin the section of the next version and write the version into the source."""
    path, source = root / "CHANGELOG.md", root / "src/dray/__init__.py"
    text = path.read_text("utf-8")
    _version, date, at, _ = newest(text)
    if date == "unreleased":
        raise ChangelogError("the newest section is not released yet")
    if not HEAD.match(f"## {version} (unreleased)"):
        raise ChangelogError(f"{version}: a version is written as 0.2.0")
    path.write_text(f"{text[:at]}## {version} (unreleased)\n\n{text[at:]}", "utf-8")
    source.write_text(
        re.sub(r'(?m)^__version__ = ".+"$', f'__version__ = "{version}"', source.read_text("utf-8")), "utf-8"
    )


def notes(root: Path) -> str:
    """Return the newest section without its heading."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    _, _, at, end = newest(text)
    return text[at:end].partition("\n")[2].strip() + "\n"


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="tools/changelog.py", description="CHANGELOG.md and its fragments")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("verify").add_argument("--tag", default="")
    actions.add_parser("collect")
    releasing = actions.add_parser("release")
    releasing.add_argument("version")
    releasing.add_argument("date", help="as 2026-01-31")
    actions.add_parser("start").add_argument("version")
    actions.add_parser("notes")
    args = parser.parse_args(argv)
    try:
        if args.action == "verify":
            verify(root, args.tag)
        elif args.action == "collect":
            print(f"{collect(root)} fragments collected")
        elif args.action == "release":
            release(root, args.version, args.date)
        elif args.action == "start":
            start(root, args.version)
        else:
            print(notes(root), end="")
    except ChangelogError as error:
        print(f"changelog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
