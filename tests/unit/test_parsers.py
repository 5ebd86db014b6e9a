"""No module but `dray.api.parsing` and its YAML half calls a parser: bounds are checked in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "dray"
DOOR = {"api/parsing.py", "api/yaml_text.py"}
FORBIDDEN = {
    "yaml": {"load", "load_all", "safe_load", "safe_load_all", "full_load", "full_load_all", "unsafe_load",
             "unsafe_load_all", "compose", "compose_all", "parse", "scan", "CSafeLoader", "SafeLoader", "Loader",
             "CLoader", "FullLoader", "CParser"},
    "json": {"load", "loads", "JSONDecoder"},
    "msgspec.json": {"decode", "Decoder"},
    "msgspec.yaml": {"decode"},
    "tomllib": {"load", "loads"},
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
}  # fmt: skip


def parser_calls(source: str) -> list[str]:
    """Return the places in a module that name a parser, whatever name the library was imported as."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}  # local name -> module
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                modules[alias.asname or alias.name] = whole
                if alias.name in FORBIDDEN.get(node.module, ()):
                    found.append(f"line {node.lineno}: {whole}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            head, dot, rest = owner.partition(".")
            owner = modules.get(owner) or modules.get(head, head) + dot + rest
            if node.attr in FORBIDDEN.get(owner, ()):
                found.append(f"line {node.lineno}: {owner}.{node.attr}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import yaml\nyaml.safe_load('')",
        "import json as j\nj.loads('')",
        "from json import loads",
        "import msgspec\nmsgspec.json.decode(b'')",
        "from msgspec import json\njson.Decoder(int)",
        "def f():\n    import yaml\n    return yaml.load('', Loader=None)",
    ],
)
def test_a_parser_is_found_under_any_name(text):
    assert parser_calls(text)


def test_only_one_place_parses_text_of_others():
    found = {
        str(path.relative_to(SOURCE)): calls
        for path in sorted(SOURCE.rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in DOOR and (calls := parser_calls(path.read_text()))
    }
    assert not found, "use dray.api.parsing: load_json, load_yaml, json_loader, parse_json or parse_yaml"
