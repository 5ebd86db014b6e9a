"""The reference pages of the site: everything that the code has is on its page; links lead to pages of the site."""

import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("reference", ROOT / "tools/site/reference.py")
reference = importlib.util.module_from_spec(SPEC)
sys.modules["reference"] = reference
SPEC.loader.exec_module(reference)

METRIC_MODULES = [
    "dray.server.http.server_metrics",
    "dray.control.guarding.https_pages",
    "dray.control.scheduling.probes",
    "dray.driver.metrics",
    "dray.node.agent",
]


def test_every_flag_of_every_command_is_on_the_page():
    from dray.cli.main import make_parser

    page = reference.commands_page()
    todo, flags = [make_parser()], set()
    while todo:
        parser = todo.pop()
        for below in reference._subparsers(parser):
            todo += below.choices.values()
        flags |= set(parser._option_string_actions) - {"-h", "--help", "--version"}
    assert len(flags) > 80
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", page)] == []
    assert "### dray driver check" in page


@pytest.mark.parametrize("module", METRIC_MODULES)
def test_every_metric_is_on_the_page_with_its_type_and_meaning(module):
    source = inspect.getsource(importlib.import_module(module))
    names = set(re.findall(r'"((?:apiserver|dray|dra|process|python)_[a-z_]+)"', source))
    names -= {name for name in names if name.endswith(("_bucket", "_sum", "_count"))}
    found = {each.name: each for each in reference.metrics()}
    assert sorted(names - set(found)) == []
    assert [name for name in names if not found[name].kind or not found[name].help] == []


def test_codes_and_gates_are_on_their_pages():
    from dray.api.features import KNOWN_GATES
    from dray.workbench.lint import CODES

    assert [code for code in CODES if f"| `{code}` |" not in reference.codes_page()] == []
    page = reference.gates_page()
    assert [
        gate for gate, on in KNOWN_GATES.items() if f"| `{gate}` | {'on' if on else 'off'} |" not in page
    ] == []


@pytest.mark.parametrize("package", reference.PACKAGES)
def test_public_names_of_a_package_are_on_its_page(package):
    names = [name for name in importlib.import_module(package).__all__ if not name.startswith("__")]
    page = reference.python_page(package)
    assert len(names) > 3
    assert [name for name in names if f"::: {package}.{name}\n" not in page] == []


def pages_in(entry):
    """Return the pages that an entry of `nav` names."""
    if isinstance(entry, str):
        return [entry]
    below = entry.values() if isinstance(entry, dict) else entry
    return [page for each in below for page in pages_in(each)]


def test_every_page_of_the_docs_is_in_the_navigation_of_the_site():
    text = (
        (ROOT / "mkdocs.yml").read_text("utf-8").replace("!!python/object/apply:pymdownx.slugs.slugify", "")
    )
    listed = pages_in(yaml.safe_load(text)["nav"])
    assert len(listed) == len(set(listed))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    made = set(reference.pages())
    written = {page for page in written if not page.startswith("adr/")} - {"README.md"} | {
        "index.md",
        "contents.md",
    }
    assert sorted(written - set(listed)) == []
    known = written | made
    assert [page for page in listed if page not in known and not page.startswith(("{", "project/"))] == []
    outside = [page.removeprefix("project/") for page in listed if page.startswith("project/")]
    assert [page for page in outside if not (ROOT / page).is_file()] == []
    assert {path.name for path in ROOT.glob("*.md")} - set(outside) == {"README.md"}


@pytest.mark.parametrize("path", sorted((ROOT / "docs/images").iterdir()), ids=lambda path: path.name)
def test_pictures_are_small_and_used(path):
    assert path.stat().st_size <= 300_000
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert any(f"images/{path.name}" in page.read_text("utf-8") for page in pages)


def test_the_terminal_recording_is_an_asciicast():
    head, *events = [
        json.loads(line) for line in (ROOT / "docs/images/session.cast").read_text("utf-8").splitlines()
    ]
    assert head["version"] == 2
    assert [each[0] for each in events] == sorted(each[0] for each in events)
    assert all(kind == "o" and isinstance(text, str) for _, kind, text in events)
    assert max(len(line) for line in "".join(text for *_, text in events).split("\r\n")) <= head["width"]
