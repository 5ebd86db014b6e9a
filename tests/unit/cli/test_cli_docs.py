"""docs/cli.md: the flags are those of the code, every command has a section, the examples are valid."""

import argparse
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from dray.cli.main import COMMANDS, GROUPS
from dray.workbench.lint import CODES

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("cli_docs", ROOT / "tools/cli_docs.py")
cli_docs = importlib.util.module_from_spec(SPEC)
sys.modules["cli_docs"] = cli_docs
SPEC.loader.exec_module(cli_docs)
SECTIONS = {
    part.partition("\n")[0].strip(): part
    for part in re.split(r"^### dray ", cli_docs.PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
}


def flags_of(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield name
                yield from flags_of(inner)
        elif action.dest != "help":
            yield from action.option_strings
            yield from (str(choice) for choice in action.choices or () if choice)


def test_every_command_has_a_section_and_no_section_is_left_over():
    assert set(SECTIONS) == set(COMMANDS)


def test_the_flags_and_the_contract_on_the_page_are_those_of_the_parsers():
    text = cli_docs.PAGE.read_text("utf-8")
    assert cli_docs.rewrite(text) == text, "run: python tools/cli_docs.py"


def test_the_rewriting_changes_what_is_wrong_and_keeps_the_prose():
    text = cli_docs.PAGE.read_text("utf-8")
    changed = text.replace("- `--all`: ", "- `--every`: ").replace("| `get` | table", "| `get` | nothing")
    assert changed != text
    assert cli_docs.rewrite(changed) == text


def test_the_sections_are_the_groups_of_the_help():
    found = re.findall(r"^## (.*)$|^### dray (.*)$", cli_docs.PAGE.read_text("utf-8"), re.MULTILINE)
    grouped = {}
    for title, name in found:
        if title:
            grouped[title] = last = []
        else:
            last.append(name)
    assert {title: set(names) for title, names in grouped.items() if names} == {
        title: set(names) for title, names in GROUPS.items()
    }


def test_every_code_of_check_is_described():
    assert [code for code in CODES if f"`{code}`" not in SECTIONS["check"]] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_section_are_commands_with_known_flags(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    known = {*flags_of(parser), "-"}
    (block,) = re.findall(r"```sh\n(.*?)```", SECTIONS[name], re.DOTALL)
    for line in block.splitlines():
        assert f"dray {name}" in line
        words = line.partition(f"dray {name}")[2].partition(" -- ")[0].split()
        assert [word for word in words if word.startswith("-") and word not in known] == []
