"""`dray completion`: shell completion, generated from the parsers themselves.

The script is static text: completing costs no start of Python. It is made by asking
every command's module to configure a parser, so it cannot forget a flag.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field

SHELLS = ("bash", "zsh", "fish")


@dataclass(slots=True)
class Flag:
    """One option of a command."""

    names: list[str]
    help: str
    takes_value: bool
    choices: list[str] = field(default_factory=list)
    is_file: bool = False


@dataclass(slots=True)
class CommandShape:
    """What can follow a command's name."""

    name: str
    help: str
    flags: list[Flag] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # choices of its first argument


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    writers = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    print(writers[args.shell](list(shapes())))
    return 0


def shapes() -> Iterator[CommandShape]:
    """Yield every command with its flags."""
    from dray.cli.main import COMMANDS

    for name, (module, summary) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"dray {name}")
        importlib.import_module(module).configure(parser)
        shape = CommandShape(name, summary)
        for action in parser._actions:
            _note(action, shape)
        yield shape


def _note(action: argparse.Action, shape: CommandShape) -> None:
    choices = [str(choice) for choice in action.choices or ()]
    if not action.option_strings:
        if choices and not shape.words:
            shape.words = choices
        if isinstance(action, argparse._SubParsersAction):
            seen = {flag for known in shape.flags for flag in known.names}
            for inner in action.choices.values():
                for nested in inner._actions:
                    if nested.option_strings and not seen.intersection(nested.option_strings):
                        seen.update(nested.option_strings)
                        shape.flags.append(_flag(nested))
        return
    shape.flags.append(_flag(action))


def _flag(action: argparse.Action) -> Flag:
    metavar = str(action.metavar or "")
    return Flag(
        names=list(action.option_strings),
        help=(action.help or "").replace("%%", "%").replace("%(default)s", str(action.default)),
        takes_value=action.nargs != 0,
        choices=[str(choice) for choice in action.choices or ()],
        is_file=metavar in ("FILE", "DIR", "PATH")
        or (action.type is not None and "Path" in str(action.type)),
    )


# --- bash ---------------------------------------------------------------------------------------


def bash_script(commands: list[CommandShape]) -> str:
    """Return a completion script for bash."""
    lines = [
        "# dray completion for bash: source <(dray completion bash)",
        "_dray() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(shape.name for shape in commands)} --help --version" -- "$word"))',
        "    return",
        "  fi",
        '  case "$command" in',
    ]
    for shape in commands:
        lines.append(f"    {shape.name})")
        with_choices = [flag for flag in shape.flags if flag.choices]
        with_values = [flag for flag in shape.flags if flag.takes_value and not flag.choices]
        if with_choices or with_values:
            lines.append('      case "$before" in')
            for flag in with_choices:
                words = " ".join(flag.choices)
                lines.append(
                    f'        {"|".join(flag.names)}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return;;'
                )
            if with_values:
                names = "|".join(name for flag in with_values for name in flag.names)
                lines.append(f'        {names}) COMPREPLY=($(compgen -f -- "$word")); return;;')
            lines.append("      esac")
        names = " ".join(name for flag in shape.flags for name in flag.names)
        lines += [
            '      if [ "${word#-}" != "$word" ]; then',
            f'        COMPREPLY=($(compgen -W "{names}" -- "$word")); return',
            "      fi",
        ]
        if shape.words:
            lines += [
                '      if [ "$COMP_CWORD" -eq 2 ]; then',
                f'        COMPREPLY=($(compgen -W "{" ".join(shape.words)}" -- "$word")); return',
                "      fi",
            ]
        lines.append("      ;;")
    lines += [
        "  esac",
        '  COMPREPLY=($(compgen -f -- "$word"))',
        "}",
        "complete -o filenames -F _dray dray",
    ]
    return "\n".join(lines)


# --- zsh ----------------------------------------------------------------------------------------


def zsh_script(commands: list[CommandShape]) -> str:
    """Return a completion script for zsh."""
    lines = [
        "#compdef dray",
        "# dray completion for zsh: source <(dray completion zsh)",
        "_dray() {",
        "  local -a commands",
        "  commands=(",
        *(f"    {_quoted(f'{shape.name}:{_short(shape.help)}')}" for shape in commands),
        "  )",
        "  if (( CURRENT == 2 )); then",
        "    _describe command commands",
        "    return",
        "  fi",
        '  case "$words[2]" in',
    ]
    for shape in commands:
        lines.append(f"    {shape.name})")
        lines.append("      shift words; (( CURRENT-- ))")
        lines.append("      _arguments -S \\")
        for flag in shape.flags:
            for name in flag.names:
                lines.append(f"        {_quoted(_zsh_spec(name, flag))} \\")
        if shape.words:
            words = " ".join(shape.words)
            lines.append(f"        {_quoted(f'1:what:({words})')} \\")
        lines.append("        '*:file:_files'")
        lines.append("      ;;")
    lines += ["  esac", "}", "compdef _dray dray"]
    return "\n".join(lines)


def _zsh_spec(name: str, flag: Flag) -> str:
    text = f"*{name}[{_short(flag.help)}]"
    if flag.choices:
        return f"{text}:value:({' '.join(flag.choices)})"
    if flag.takes_value:
        return f"{text}:value:{'_files' if flag.is_file else ' '}"
    return text


def _short(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace(":", " -").partition("\n")[0]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- fish ---------------------------------------------------------------------------------------


def fish_script(commands: list[CommandShape]) -> str:
    """Return a completion script for fish."""
    lines = [
        "# dray completion for fish: dray completion fish | source",
        "complete -c dray -n __fish_use_subcommand -f -l help -d 'show help'",
        "complete -c dray -n __fish_use_subcommand -f -l version -d 'show the version'",
    ]
    for shape in commands:
        lines.append(
            f"complete -c dray -n __fish_use_subcommand -f -a {shape.name} -d {_fish_quoted(shape.help)}"
        )
        condition = f"-n '__fish_seen_subcommand_from {shape.name}'"
        if shape.words:
            lines.append(f"complete -c dray {condition} -f -a '{' '.join(shape.words)}'")
        for flag in shape.flags:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names
            )
            values = (
                f" -x -a '{' '.join(flag.choices)}'" if flag.choices else (" -r" if flag.takes_value else "")
            )
            lines.append(f"complete -c dray {condition} {names}{values} -d {_fish_quoted(flag.help)}")
    return "\n".join(lines)


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
