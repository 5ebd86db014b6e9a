"""The architecture as a test: pure packages, and the names by which packages are used.

The layers between and inside packages are contracts of import-linter (`make contracts`); here is what it cannot say. ADR 0021 has the reasons.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import dray

SOURCES = Path(dray.__file__).parent
PURE = ("api", "cel", "devices", "allocator", "scheduler")
# All that pure packages may import beside each other: nothing here has a clock, chance, threads or files.
# `pkgutil` and `importlib` read files of the package itself; `sys` has the recursion limit and sizes of objects.
PURE_IMPORTS = {
    "__future__",
    "ast",
    "base64",
    "binascii",
    "bisect",
    "codecs",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "importlib",
    "ipaddress",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "pkgutil",
    "re",
    "struct",
    "re2",
    "string",
    "sys",
    "types",
    "typing",
    "urllib",
    "yaml",
    "zoneinfo",
    "weakref",
}
IMPURE_CALLS = {
    "now",
    "today",
    "utcnow",
    "open",
    "print",
    "input",
    "read_text",
    "write_text",
    "read_bytes",
    "write_bytes",
}
# Packages are used through the names that their `__init__` exports, and the modules named here.
THROUGH_EXPORTS = {
    # for tools that look into expressions; for expressions that are not about devices
    "cel": {"syntax", "expressions", "schema_types"},
    "devices": set(),
    "certificates": set(),
    "http1": set(),
    "allocator": {"cases"},
    # vocabularies of their own: policies of nodes, limits of users, the report of the queue, the history, volumes
    "scheduler": {
        "fair_share",
        "holding_history",
        "limits",
        "policies",
        "queue_head",
        "queue_report",
        "user_limits",
        "volumes",
    },
    # the table of kinds, and reading files of users
    "client": {"resources", "bounded_files"},
    # for vendors' tools; the others for light nodes, which put the SDK's parts together without sockets
    "driver": {"skeleton", "conformance", "api_access", "files", "metrics", "preparing", "slices", "state"},
    "control": {
        "compute_domains",
        "guarding",
        "manager",
        "node_lifecycle",
        "pod_templates",
        "reconcile_loop",
        "scheduling",
        "scheduling.probes",
        "scheduling.sharing",
        "server_clock",
    },
    # runtimes; the others for light nodes, which put the agent's parts together in one loop
    "node": {
        "runtime",
        "runtime.runc",
        "claims",
        "environment",
        "health",
        "membership",
        "plugins",
        "pods",
        "preparing",
    },
    "server": {
        "audit",
        "auth.authentication",
        "auth.login",
        "auth.node_authorizer",
        "auth.pki",
        "auth.rbac_objects",
        "http.flow_control",
        "http.unix_access",
        "objects",
        "requests",
        "store",
    },
}
# Vocabularies of modules, and packages that only composers use: each of their modules is public (ADR 0021).
THROUGH_MODULES = {"api", "host", "drivers", "sim", "workbench", "local", "cli"}


class Import(NamedTuple):
    """One imported name."""

    by: str  # the module that imports, as a path
    package: str
    module: str  # inside the package; empty for the package itself
    name: str


@cache
def trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCES.rglob("*.py"))
        if "generated" not in path.parts
    }


def imports_between_packages() -> Iterator[Import]:
    for by, tree in trees().items():
        own = by.partition("/")[0].removesuffix(".py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dray."):
                _, package, *rest = (node.module or "").split(".")
                if package != own:
                    yield from (Import(by, package, ".".join(rest), alias.name) for alias in node.names)


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_imports_no_clock_and_no_io(package: str) -> None:
    found = set()
    for by, tree in trees().items():
        if not by.startswith(f"{package}/"):
            continue
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found |= {
                f"{by}: {name}" for name in names if name.partition(".")[0] not in PURE_IMPORTS | {"dray"}
            }
    assert found == set()


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_does_not_ask_for_the_time_or_touch_files(package: str) -> None:
    found = []
    for by, tree in trees().items():
        for node in ast.walk(tree) if by.startswith(f"{package}/") else ():
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in IMPURE_CALLS:
                    found.append(f"{by}:{node.lineno}: {called}")
    assert found == []


def test_packages_are_used_through_their_exports() -> None:
    found = [
        f"{each.by}: dray.{each.package}.{each.module}"
        for each in imports_between_packages()
        if each.package in THROUGH_EXPORTS
        and each.module
        and each.module not in THROUGH_EXPORTS[each.package]
    ]
    assert found == []


def test_every_package_says_how_it_is_used() -> None:
    packages = {name.partition("/")[0].removesuffix(".py") for name in trees()}
    assert packages - {"__init__", "__main__", "version", "_version"} == THROUGH_MODULES | set(
        THROUGH_EXPORTS
    )


def test_no_module_is_open_that_nobody_uses() -> None:
    used = {(each.package, each.module) for each in imports_between_packages()}
    unused = [
        f"{package}.{module}"
        for package, modules in THROUGH_EXPORTS.items()
        for module in modules
        if (package, module) not in used
    ]
    assert unused == []


def test_names_of_other_packages_are_public_and_imported_from_where_they_are_defined() -> None:
    wrong = []
    for each in imports_between_packages():
        parts = [each.package, *filter(None, each.module.split("."))]
        tree = trees().get("/".join(parts) + ".py") or trees().get("/".join([*parts, "__init__.py"]))
        if tree is None or "rpc" in parts:
            continue  # generated
        if any(part.startswith("_") for part in [*parts, each.name]) or not offers(
            tree, "/".join(parts), each.name
        ):
            wrong.append(f"{each.by}: {each.name} is not defined by dray.{'.'.join(parts)}")
    assert wrong == []


def offers(tree: ast.Module, path: str, name: str) -> bool:
    """Return whether a module defines a name or has it in `__all__`, or a package has such a module."""
    if f"{path}/{name}.py" in trees() or f"{path}/{name}/__init__.py" in trees():
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return True
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and target.id == name:
                return True
            if isinstance(target, ast.Name) and target.id == "__all__":
                exported = {getattr(item, "value", "") for item in getattr(node.value, "elts", ())}
                if name in exported:
                    return True
    return False


def test_every_package_has_exhaustive_layers() -> None:
    contracts = ConfigParser()
    contracts.read(SOURCES.parent.parent / ".importlinter")
    layered = {
        container
        for section in contracts.values()
        if section.get("type") == "layers" and section.getboolean("exhaustive", fallback=False)
        for container in section["containers"].split()
    }
    packages = {f"dray.{name.partition('/')[0]}" for name in trees() if "/" in name}
    assert packages | {"dray"} <= layered


def test_no_package_may_have_a_cycle_of_imports() -> None:
    contracts = ConfigParser()
    contracts.read(SOURCES.parent.parent / ".importlinter")
    found = [section for section in contracts.values() if section.get("type") == "acyclic_siblings"]
    assert [section["ancestors"].split() for section in found] == [["dray"]]
    assert all("ignore_imports" not in section and "depth" not in section for section in found)
