"""Write what docs/cli.md says of flags: the lists of every command and the table of the contract.

Both are made from the parsers, so a flag is described once, in its help text. The prose and the examples of the
page are written by hand and kept. `python tools/cli_docs.py` rewrites the page; a test compares.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from dray.cli.main import GROUPS, make_parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"

# command -> what exit code 1 means; a command that is not named here has only failures as 1
NEGATIVE_ANSWERS = {
    "demo": "a scene did not end as expected",
    "down": "no system runs, or it does not stop",
    "status": "no system runs, or a process is down",
    "fault": "no system runs",
    "uninstall": "no service is installed",
    "claim": "it was refused, or did not happen in time",
    "upgrade": "this version cannot run the system",
    "doctor": "errors or warnings were found",
    "explain": "it does not fit",
    "usage": "no device time is on record",
    "check": "errors or warnings were found",
    "convert": "something could not be converted",
    "whatif": "a pod does not fit",
    "defrag": "no moves reach the goal",
    "capacity": "no node on offer takes a pod",
    "cel": "the expression does not compile or fails on a device",
    "login": "no shared system answers",
    "user": "the user to remove is not an administrator",
    "fleet": "a device failed its validation, a drain did not end in time, or a change of partitions failed",
    "conformance": "a requirement with the level MUST does not hold",
    "driver": "a check failed",
}
OTHER_CODES = {
    "run": "the command's own; 124, 127, 130: see [dray run](#dray-run)",
    "hold": "the engine's own; 1: the engine is not installed; 124, 127, 130 as `dray run`",
    "shell": "the shell's own; 124, 127 as `dray run`",
    "attach": "the job's own; 127: it cannot start",
    "exec": "the command's own; 126: it cannot start",
    "wait": "the highest of the jobs' own; 124 after `--timeout`",
}


def rewrite(text: str) -> str:
    """Return the page with the lists of flags and the table of the contract as they are in the code."""
    (commands,) = _subparsers(make_parser())
    for name, parser in commands.choices.items():
        start = text.index(f"\n### dray {name}\n")
        end = min(
            found
            for mark in ("\n### ", "\n## ", "\n\x00")
            if (found := (text + "\n\x00").find(mark, start + 1)) >= 0
        )
        section = text[start:end].rstrip() + "\n"
        head, _, tail = section.partition("```sh\n")
        example, _, rest = tail.partition("```\n")
        bullets = "\n".join(_bullets(parser))
        # Other lists of a section stand after an empty line and a line of prose.
        prose = re.sub(r"\A\n(?:\s*- `.*\n?)*", "", rest).strip()
        section = f"{head}```sh\n{example}```\n\n{bullets}" + (f"\n\n{prose}" if prose else "") + "\n"
        text = text[:start] + section + text[end:]
    before, _, rest = text.partition("| command | `-o` |")
    return before + "\n".join(_contract(commands.choices)) + rest[rest.index("\n\n") :]


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _bullets(parser: argparse.ArgumentParser, indent: str = "") -> Iterator[str]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, inner in action.choices.items():
                yield f"{indent}- `{name}`: {helps[name]}"
                yield from _bullets(inner, indent + "  ")
        elif action.dest != "help" and action.help is not argparse.SUPPRESS:
            yield f"{indent}- {_names(action)}: {' '.join(formatter._expand_help(action).split())}"


def _names(action: argparse.Action) -> str:
    choices = (
        "{" + ",".join(str(choice) for choice in action.choices if choice) + "}" if action.choices else ""
    )
    value = str(action.metavar or choices or action.dest.upper())
    if not action.option_strings:
        return f"`{value}`"
    last = action.option_strings[-1] + ("" if action.nargs == 0 else f" {value}")
    return ", ".join(f"`{name}`" for name in (*action.option_strings[:-1], last))


def _contract(commands: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield "| command | `-o` | `--watch` | cluster | exit code 1 |"
    yield "|---|---|---|---|---|"
    for names in GROUPS.values():
        for name in names:
            flags = _flags(commands[name])
            formats = ", ".join(flags["--output"].choices) if "--output" in flags else "-"
            watch = "yes" if "--watch" in flags else "-"
            cluster = (
                "`--against`"
                if "--against" in flags
                else "`--kubeconfig`"
                if "--kubeconfig" in flags
                else "-"
            )
            cluster = "`--data`" if cluster == "-" and "--data" in flags else cluster
            one = OTHER_CODES.get(name) or NEGATIVE_ANSWERS.get(name) or "failures only"
            yield f"| `{name}` | {formats} | {watch} | {cluster if name != 'server' else '-'} | {one} |"


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    found = dict(parser._option_string_actions)
    for action in _subparsers(parser):
        for inner in action.choices.values():
            found |= _flags(inner)
    return found


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text("utf-8")), "utf-8")
