"""docs/cli.md names every command, every flag and every code of `dray check`."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

from dray.cli.main import COMMANDS
from dray.sim.linting import CODES

DOCS = Path(__file__).resolve().parents[3] / "docs"
SECTIONS = {
    part.partition("\n")[0].strip(): part
    for part in re.split(r"^### dray ", (DOCS / "cli.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_and_choice_of_a_command_is_described(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    section = SECTIONS[name]
    missing = [
        flag for flag in flags_of(parser) if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", section)
    ]
    assert missing == []


def helps_of(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from helps_of(inner)
        elif action.help and action.option_strings and action.dest != "help":
            yield action.option_strings[-1], parser._get_formatter()._expand_help(action)


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_described_in_the_words_of_the_help(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    section = " ".join(SECTIONS[name].split())
    missing = [f"{flag}: {text}" for flag, text in helps_of(parser) if " ".join(text.split()) not in section]
    assert missing == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_flag_is_described_that_does_not_exist(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    known = {*flags_of(parser), "--help"}
    bullets = "\n".join(line for line in SECTIONS[name].splitlines() if re.match(r"\s*- `-", line))
    described = set(re.findall(r"`(--?[a-z][\w-]*)", bullets))
    assert described - known == set()


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
