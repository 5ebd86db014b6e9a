"""The words are true: links lead somewhere, code runs, commands and flags exist, nothing is left out.

How blocks are marked:

    ```python            runs, one after the other in one namespace per page, with a server at $KUBECONFIG
    ```python sketch     is compiled, and its imports run; the rest needs more than a page can show
    ```yaml              parses; whole objects have no unknown fields
    ```console           in docs/: each `$ dray ...` runs; output below it, if any, is compared
    ```console cluster   in docs/: runs on the system that the page names (`dray up ...`); tests/e2e/test_pages.py
    ```console real      runs on a cluster of real programs, `console node` on each of its nodes; tests/cluster
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from dray.api.reading import read
from dray.api.schema import schema_of
from dray.cli.main import COMMANDS, main, make_parser
from dray.control.manager import CONTROLLERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
METRIC_MODULES = [
    "dray.server.http.server_metrics",
    "dray.control.guarding.https_pages",
    "dray.server.audit.audit_log",
    "dray.control.scheduling.probes",
    "dray.workbench.device_metrics",
    "dray.driver.metrics",
    "dray.node.agent",
]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def text_of(page):
    return (ROOT / page).read_text("utf-8")


def blocks_of(page, kind):
    """Return (line, code) of the blocks whose fence says `kind`."""
    text = text_of(page)
    return [
        (text[: found.start()].count("\n") + 2, textwrap.dedent(found[3]))
        for found in FENCE.finditer(text)
        if found[2].strip() == kind
    ]


def pages_with(kind, pages=PAGES):
    return [page for page in pages if blocks_of(page, kind)]


# --- links ---------------------------------------------------------------------------


def anchors_of(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return set(plain)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text_of(page)))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        is_there = path.exists()
        if is_there and anchor and path.suffix == ".md":
            is_there = anchor in anchors_of(path.resolve().relative_to(ROOT))
        if not is_there:
            broken.append(target)
    assert broken == []


def test_files_named_in_the_source_exist():
    named = re.compile(
        r"(?<![\w./-])(?:docs|tests|tools|bench|deploy|examples)/[\w./-]*\w\.(?:md|py|yaml|yml|jsonl|json|txt)(?!\w)"
    )
    missing = {}
    for folder in ("src", "tests", "bench", "attack", "tools"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            for name in named.findall(path.read_text("utf-8")):
                if not (ROOT / name).exists():
                    missing.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert missing == {}


# --- Python --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server for the pages that talk to one; its data folder."""
    data = tmp_path_factory.mktemp("docs") / "data"
    with serving(data):
        yield data


@contextlib.contextmanager
def serving(data):
    command = [sys.executable, "-m", "dray", "server", "--data", str(data), "--secure-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("page", pages_with("python"), ids=str)
def test_python_runs(page, server, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", str(server / "admin.kubeconfig"))
    monkeypatch.setenv("DRAY_DATA", str(server))
    monkeypatch.setenv("DRAY_BACKUP", str(tmp_path / "backup"))
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}  # so that `if __name__ == "__main__"` does not start a driver
    for line, code in blocks_of(page, "python"):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", pages_with("python sketch"), ids=str)
def test_sketches_compile_and_their_imports_exist(page):
    for line, code in blocks_of(page, "python sketch"):
        code = "\n" * (line - 1) + code
        compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_a_server_starts_from_the_backup_that_the_page_makes(server, tmp_path, monkeypatch):
    from dray.client import Client
    from dray.client.resources import CONFIG_MAPS

    async def call(data, verb, *args):
        async with Client.connect(data / "admin.kubeconfig") as client:
            return await getattr(client, verb)(CONFIG_MAPS, *args)

    import asyncio

    asyncio.run(call(server, "create", {"metadata": {"name": "precious"}, "data": {"a": "1"}}, "default"))
    monkeypatch.setenv("DRAY_DATA", str(server))
    monkeypatch.setenv("DRAY_BACKUP", str(tmp_path / "backup"))
    ((_line, code),) = blocks_of(Path("docs/operations.md"), "python")
    exec(compile(code, "docs/operations.md", "exec"), {})
    with serving(tmp_path / "backup"):
        assert asyncio.run(call(tmp_path / "backup", "get", "precious", "default"))["data"] == {"a": "1"}


# --- YAML ----------------------------------------------------------------------------


def complaints_about(document):
    """Return what the API server would say of an object's fields; fragments are not judged."""
    if not isinstance(document, dict) or not {"apiVersion", "kind"} <= set(document):
        return []
    group, _, version = document["apiVersion"].rpartition("/")
    return read(schema_of(group, version, document["kind"]), document)[1]


@pytest.mark.parametrize("page", pages_with("yaml"), ids=str)
def test_yaml_has_no_unknown_fields(page):
    for _line, code in blocks_of(page, "yaml"):
        assert [each for document in yaml.safe_load_all(code) for each in complaints_about(document)] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/*.yaml")), ids=lambda path: str(path)[-40:])
def test_manifests_of_examples_have_no_unknown_fields(path):
    documents = list(yaml.safe_load_all(path.read_text("utf-8")))
    assert [each for document in documents for each in complaints_about(document)] == []


# --- commands ------------------------------------------------------------------------


def console_commands():
    found = []
    for page in pages_with("console", [page for page in PAGES if page.parts[0] == "docs"]):
        for line, code in blocks_of(page, "console"):
            for number, text in enumerate(code.splitlines()):
                if text.startswith("$ dray "):
                    below = code.splitlines()[number + 1 :]
                    shown = below[: next((i for i, each in enumerate(below) if each.startswith("$ ")), None)]
                    found.append(pytest.param(text[2:], shown, id=f"{page.name}:{line + number}"))
    return found


@pytest.mark.parametrize(("command", "shown"), console_commands())
def test_console_commands_print_what_the_page_shows(command, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    os.symlink(ROOT / "examples", tmp_path / "examples")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(shlex.split(command)[1:])
        except SystemExit as end:
            code = end.code
    assert code in (0, 1), err.getvalue()  # 1: an honest no; 2 would be a wrong command
    if shown:
        assert [line.rstrip() for line in out.getvalue().splitlines()] == [line.rstrip() for line in shown]


def flags_of(parser):
    """Return the flags of a parser and of everything below it."""
    flags = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                flags |= flags_of(below)
    return flags


@pytest.fixture(scope="module")
def flags_by_command():
    found = {}
    for name, (module, _summary) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=name)
        importlib.import_module(module).configure(parser)
        found[name] = flags_of(parser)
    return found


def written_commands(page):
    """Return the `dray ...` lines of a page: in blocks (indented or fenced) and in code spans."""
    text = text_of(page)
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", text)
    pieces = [piece.strip() for line in lines for piece in re.split(r"&&|;|\||#", line)]
    return [piece for piece in pieces if re.match(r"dray [a-z]", piece)]


@pytest.mark.parametrize("page", [page for page in PAGES if written_commands(page)], ids=str)
def test_commands_and_flags_on_the_page_exist(page, flags_by_command):
    unknown = []
    for line in written_commands(page):
        words = line.replace("[", " ").replace("]", " ").split()
        if not re.fullmatch(r"[a-z-]+", words[1]):
            continue
        if words[1] not in COMMANDS:
            unknown.append(line)
            continue
        rest = words[2 : words.index("--")] if "--" in words else words[2:]
        flags = {re.split(r"[=,…|)]", word)[0] for word in rest if re.match(r"--[a-z]", word)}
        unknown += [f"{line}: {flag}" for flag in flags - flags_by_command[words[1]]]
    # Prose such as "dray is a library" is no command: a line of words without a flag is let through.
    assert [line for line in unknown if "--" in line or line.split()[1] in COMMANDS] == []


def shown_commands(page):
    """Return the `dray ...` command lines of a page's blocks: fenced as sh or console, or indented."""
    text = text_of(page)
    lines = [
        line.strip().removeprefix("$ ")
        for kind in ("sh", "console", "console cluster", "console real")
        for _line, code in blocks_of(page, kind)
        for line in code.replace("\\\n", " ").splitlines()
        if kind == "sh" or line.startswith("$ ")
    ]
    lines += [line.strip() for line in FENCE.sub("", text).splitlines() if line.startswith("    dray ")]
    return [
        words
        for line in lines
        for words in commands_in(line)
        if re.fullmatch("dray [a-z-]+", " ".join(words[:2]))
    ]


def commands_in(line):
    """Return the words of each command of a shell line; redirections and comments end one."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands = [[]]
    for word in lexer:
        if set(word) <= set("();<>|&"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


@pytest.mark.parametrize("page", [page for page in PAGES if shown_commands(page)], ids=str)
def test_command_lines_on_the_page_are_complete_and_well_formed(page, capsys):
    parser = make_parser()
    wrong = []
    for words in shown_commands(page):
        try:
            parser.parse_args(words[1:])
        except SystemExit as end:
            if end.code:  # --help ends, too
                wrong.append((" ".join(words), capsys.readouterr().err.splitlines()[-1]))
    assert wrong == []


# --- nothing is left out ---------------------------------------------------------------


def test_every_command_is_on_its_page():
    text = text_of("docs/cli.md")
    assert [name for name in COMMANDS if f"dray {name}" not in text] == []


def test_every_controller_is_on_its_page():
    text = text_of("docs/controllers.md")
    assert [name for name in CONTROLLERS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("module", METRIC_MODULES)
def test_every_metric_is_on_the_operations_page(module):
    source = inspect.getsource(importlib.import_module(module))
    names = set(re.findall(r'"((?:apiserver|dray|dra|process|python)_[a-z_]+)"', source))
    names -= {name for name in names if name.endswith(("_bucket", "_sum", "_count"))}
    assert names, "no metric found: did the module move?"
    text = text_of("docs/operations.md")
    assert sorted(name for name in names if f"`{name}`" not in text) == []


@pytest.mark.parametrize("folder", ["docs/adr", "docs/guides"])
def test_every_page_of_a_folder_is_listed(folder):
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text_of(f"{folder}/README.md")))
    assert listed == {path.name for path in (ROOT / folder).glob("*.md")} - {"README.md"} | (
        listed & {"0001-record-decisions.md"}
    )


def test_every_page_of_the_docs_can_be_reached_from_the_readme():
    seen, todo = set(), [Path("README.md")]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", text_of(page)):
            path = ((ROOT / page).parent / target).resolve()
            if path.suffix == ".md" and path.is_file() and path.is_relative_to(ROOT):
                todo.append(path.relative_to(ROOT))
    assert [str(page) for page in PAGES if page.parts[0] in ("docs", "examples") and page not in seen] == []


def test_the_counts_of_ported_scheduler_tests_add_up():
    text = (ROOT / "docs" / "scheduler-upstream.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    counted = [(int(row[2]), int(row[3])) for row in rows if row[2].isdigit()]
    there, ported = (sum(column) for column in zip(*counted, strict=True))
    assert (
        f"Of the {there} cases there that can be driven so, {ported} are ported ({ported * 100 // there} %)"
        in text
    )
    unexplained = [row[1] for row in rows if row[2].isdigit() and row[2] != row[3] and not row[4]]
    assert not unexplained, "what is not ported has a reason"
