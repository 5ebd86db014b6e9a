"""The packages of the server use each other through what their `__init__` exports."""

import ast
from pathlib import Path

import dray.server

ROOT = Path(dray.server.__file__).parent


def test_packages_are_used_through_their_exports():
    packages = {folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists()}
    found = []
    for file in ROOT.glob("*/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("dray.server."):
                continue
            _, _, package, *rest = node.module.split(".")
            if rest and package in packages and package != file.parent.name:
                found.append(f"{file.relative_to(ROOT)}: {node.module}")
    assert found == []
