"""The parser of `dray`: errors as `error: …` and `hint: …`, a "did you mean", and grouped help.

argparse decides; this class only changes how it speaks. Flags are never abbreviated: a script that writes
`--name` must not change its meaning when `--namespace` is added.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, cast

from dray.cli.arguments import did_you_mean
from dray.cli.output import say

_FEW = 8  # choices that are listed even if one of them is near


class _Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]  # generic in the stubs only
    """Subcommands whose own help begins with the sentence that lists them."""

    def add_parser(self, name: str, **keywords: Any) -> Any:
        """Add a subcommand; without a description its summary is one."""
        if summary := keywords.get("help"):
            keywords.setdefault("description", f"{summary[0].upper()}{summary[1:]}.")
        return super().add_parser(name, **keywords)


class Parser(argparse.ArgumentParser):
    """A parser of a command and of its subcommands."""

    def __init__(self, *args: Any, groups: dict[str, dict[str, str]] | None = None, **keywords: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **keywords})
        self._groups = groups  # title -> command -> summary; of the top level only
        self._hint = ""
        self.register("action", "parsers", _Subcommands)

    def error(self, message: str) -> NoReturn:
        """Print a usage error and end with exit code 2."""
        say(f"error: {message.removeprefix('argument ')}")
        say(f"hint: {self._hint or f'`{self.prog} --help` describes the command'}")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, with the nearest choice as the hint."""
        choices = [str(choice) for choice in action.choices or ()]
        if action.choices is not None and value not in action.choices:
            self._hint = did_you_mean(str(value)[:100], filter(None, choices), "choose from")
            if len(choices) <= _FEW and not self._hint.startswith("choose"):
                self._hint += f" choose from: {', '.join(filter(None, choices))}"
            raise argparse.ArgumentError(action, f"invalid choice: {str(value)[:100]!r}")

    def parse_args(  # type: ignore[override]  # one signature of the three is used
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse; arguments that nobody knows are an error with the nearest flag as the hint."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._innermost(found)
            if unknown[0].startswith("-"):
                flag = unknown[0].partition("=")[0]
                parser._hint = did_you_mean(flag, parser._option_string_actions)
                parser.error(f"unknown flag {flag[:100]}")
            parser.error(f"unexpected argument {unknown[0][:100]!r}")
        return cast(argparse.Namespace, found)

    def _innermost(self, found: argparse.Namespace) -> Parser:
        """Return the parser of the (sub)command that was named."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and getattr(found, action.dest, None):
                inner = action.choices[getattr(found, action.dest)]
                return inner._innermost(found) if isinstance(inner, Parser) else self
        return self

    def format_help(self) -> str:
        """Return the help; the top level lists the commands by what they are for."""
        if self._groups is None:
            return super().format_help()
        lines = [f"usage: {self.prog} COMMAND [flags]", "", str(self.description), ""]
        for title, commands in self._groups.items():
            lines += [f"{title}:", *_columns(commands.items()), ""]
        lines += [
            f"`{self.prog} COMMAND --help` describes a command, `{self.prog} --version` prints the version."
        ]
        return "\n".join(lines) + "\n"


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  {name:<12} {summary}" for name, summary in rows]
