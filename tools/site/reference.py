"""Reference pages made from the code: commands, feature gates, findings of `dray check`, metrics, Python API.

Nothing here is written down twice: a flag, a gate, a code, a metric or a public name that is added
to the code is on its page when the site is built. Tests: tests/unit/test_reference.py.
"""

import argparse
import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dray"
METRIC = re.compile(r"(?:apiserver|dray|dra|process|python)_[a-z_]+")

# The packages that others import, in the order of the page list; their `__all__` is documented.
PACKAGES = {
    "dray": "The package",
    "dray.allocator": "Allocator",
    "dray.cel": "CEL",
    "dray.client": "Client",
    "dray.driver": "Driver SDK",
    "dray.drivers.hardware": "Simulated hardware",
    "dray.scheduler": "Scheduler",
    "dray.api": "API objects",
}


def pages() -> dict[str, str]:
    """Return the generated pages by their path on the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/feature-gates.md": gates_page(),
        "reference/lint-codes.md": codes_page(),
        "reference/metrics.md": metrics_page(),
        **{path: python_page(package) for package, path in _python_paths().items()},
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


# --- commands ---------------------------------------------------------------------------


def commands_page() -> str:
    """Return a section for each command with its usage and all its arguments."""
    from dray.cli.main import make_parser

    parts = [
        "# All flags",
        "Made from the commands themselves. [The command line](../cli.md) explains them with examples.",
    ]
    (commands,) = _subparsers(make_parser())
    for name, parser in commands.choices.items():
        parts += _section(f"dray {name}", parser, level=2)
    return "\n\n".join(parts) + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _section(title: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {title}"
    if parser.description:
        text = parser.description
        yield f"{text[0].upper()}{text[1:].rstrip('.')}."
    rows = [
        _row(parser, action)
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]
    if rows:
        yield "| argument | meaning |\n|---|---|\n" + "\n".join(rows)
    for below in _subparsers(parser):
        helps = {choice.dest: choice.help for choice in below._choices_actions}
        for name, inner in below.choices.items():
            inner.description = inner.description or helps.get(name)
            yield from _section(f"{title} {name}", inner, level + 1)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    value = ""
    if action.nargs != 0:
        default = (
            formatter._get_default_metavar_for_optional(action)
            if action.option_strings
            else formatter._get_default_metavar_for_positional(action)
        )
        value = formatter._format_args(action, default)
    names = ", ".join(action.option_strings) or ""
    shown = f"{names} {value}".strip()
    return f"| `{shown.replace('|', '∣')}` | {_cell(formatter._expand_help(action) if action.help else '')} |"


# --- tables -----------------------------------------------------------------------------


def gates_page() -> str:
    """Return the table of feature gates."""
    from dray.api.features import KNOWN_GATES

    rows = [f"| `{name}` | {'on' if on else 'off'} |" for name, on in sorted(KNOWN_GATES.items())]
    return (
        "# Feature gates\n\nThe gates of Kubernetes v1.37 that concern DRA, with the defaults of that version. "
        "Switch them as in kube-apiserver: `--feature-gates NAME=true,…` of `dray up`, `dray server`, `dray scheduler` "
        "and `dray controllers`.\n\n| gate | default |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def codes_page() -> str:
    """Return the table of the codes of `dray check`."""
    from dray.workbench.lint import CODES

    rows = [f"| `{code}` | {_cell(meaning)} |" for code, meaning in sorted(CODES.items())]
    return (
        "# Findings of `dray check`\n\nThe code stands in brackets at the end of a finding. `dray check --ignore CODE` "
        "leaves one out.\n\n| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


# --- metrics ----------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Metric:
    """One metric as the source declares it."""

    name: str
    kind: str
    help: str
    component: str


def metrics_page() -> str:
    """Return the table of metrics."""
    rows = [f"| `{each.name}` | {each.component} | {each.kind} | {_cell(each.help)} |" for each in metrics()]
    return (
        "# Metrics\n\nPrometheus' text format. [Operations](../operations.md#metrics) says where each component serves "
        "them and which are worth an alert.\n\n| metric | component | type | meaning |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def metrics() -> list[Metric]:
    """Return every metric that the source declares, sorted by name.

    A declaration is one of: a call `Kind(name, help, …)` of prometheus_client or `histogram(name, help, …)`; a call or a tuple
    with the texts name, kind, help; an entry `name: (help, value)` of a dictionary; a text
    `# HELP name help` with `# TYPE name kind` beside it, where the name may be a variable.
    """
    found = {}
    for path in sorted(SOURCE.glob("**/*.py")):
        text = path.read_text("utf-8")
        if "prometheus" not in text.lower():
            continue
        component = path.relative_to(SOURCE).parts[:-1]
        where = {"scheduling": "scheduler", "guarding": "guard"}.get(component[-1], component[0])
        for name, kind, meaning in _declared(ast.parse(text), text):
            if METRIC.fullmatch(name):
                found[name] = Metric(name, kind, meaning.rstrip(".").strip(), where)
    return sorted(found.values())


def _declared(tree: ast.Module, text: str) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Tuple):
            inside = node.args if isinstance(node, ast.Call) else node.elts
            words = [each.value for each in inside if _is_text(each)]
            kind = _called(node)
            if kind in ("Counter", "Gauge", "Histogram", "Summary", "histogram") and len(words) > 1:
                yield words[0], kind.lower(), words[1]
            elif len(words) > 2 and words[1] in ("counter", "gauge", "histogram"):
                yield words[0], words[1], words[2]
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if _is_text(key) and isinstance(value, ast.Tuple) and value.elts and _is_text(value.elts[0]):
                    kind = "counter" if key.value.endswith("_total") else "gauge"
                    yield key.value, kind, value.elts[0].value
    for variable, name in re.findall(r'\b(\w+) = "([a-z_]+)"\n', text):
        found = re.search(rf"# HELP \{{{variable}\}} ([^\"\\\n{{]+).*# TYPE \{{{variable}\}} (\w+)", text)
        if found and METRIC.fullmatch(name):
            yield name, found[2], found[1]
    for name, meaning in re.findall(r"# HELP ([a-z_]+) ([^\"\\\n]+)", text):
        kind = re.search(rf"# TYPE {name} (\w+)", text)
        yield name, kind[1] if kind else "", meaning


def _called(node: ast.AST) -> str:
    function = getattr(node, "func", None)
    return getattr(function, "id", getattr(function, "attr", ""))


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# --- Python -----------------------------------------------------------------------------


def _python_paths() -> dict[str, str]:
    return {package: f"reference/python/{package.replace('.', '-')}.md" for package in PACKAGES}


def python_pages() -> list[tuple[str, str]]:
    """Return title and path of the pages of the Python reference."""
    return [(f"{package}", path) for package, path in _python_paths().items()]


def python_page(package: str) -> str:
    """Return the page of one package: its docstring and everything in its `__all__`."""
    module = importlib.import_module(package)
    names = [name for name in module.__all__ if not name.startswith("__")]
    parts = [
        f"# {package}: {PACKAGES[package][0].lower()}{PACKAGES[package][1:]}",
        f"```text\n{(module.__doc__ or '').strip()}\n```",
    ]
    parts += [f"::: {package}.{name}" for name in sorted(names)]
    return "\n\n".join(parts) + "\n"
