"""What the parts of dray must agree on is defined once.

Well-known names, API groups, media types: a literal of the same value elsewhere is a second definition. Rules:
each has one function, and the marks of a second implementation (a call, a pair of literals) are searched for.
Tables keyed by group and resource may name only kinds that exist in `dray.api.kinds`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dray
from dray.api import kinds, media_types, well_known

SOURCES = Path(dray.__file__).parent
# Names too short to belong to one thing only.
COMMON_WORDS = {well_known.ORPHAN_FINALIZER, well_known.FOREGROUND_FINALIZER}
LITERALS = {
    value: module.__name__.removeprefix("dray.").replace(".", "/") + ".py"
    for module in (well_known, media_types, kinds)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str) and value not in COMMON_WORDS
}
# What is decided or formatted in one place: name of the class or function -> its module.
DEFINITIONS = {
    "DeviceId": "devices/identities.py",
    "PoolId": "devices/identities.py",
    "Ledger": "devices/ledger.py",
    "newest_generation": "devices/published.py",
    "holds_of": "devices/ledger.py",
    "tolerates": "api/tolerations.py",
    "first_untolerated": "api/tolerations.py",
    "claim_charges": "api/quota_charges.py",
    "pod_charges": "api/quota_charges.py",
    "total_requests": "api/pod_resources.py",
    "parse_quantity": "api/quantity.py",
    "parse_time": "api/times.py",
    "format_time": "api/times.py",
    "format_microtime": "api/times.py",
    "kind_of_plural": "api/kinds.py",
    "Resource": "client/resources.py",
    "View": "api/meta.py",
    "ObjectMeta": "api/meta.py",
    "BoundedCache": "api/caching.py",
    "BoundedMap": "api/caching.py",
    "cached_by_text": "api/caching.py",
    "schema_of": "api/schema/__init__.py",
    "is_true": "api/conditions.py",
    "is_true_in": "api/conditions.py",
    "format_selector": "api/label_selectors.py",
    "parse_ranges": "api/number_ranges.py",
    "format_ranges": "api/number_ranges.py",
    "is_rich": "api/slice_limits.py",
    "group_key": "scheduler/group_keys.py",
    "hardware_node": "sim/hardware.py",
    "requested_class": "workbench/inventory.py",
    "plural": "api/wording.py",
    "join_names": "api/wording.py",
    "utc_now": "host/clock.py",
    "random_suffix": "host/random_names.py",
    "inspect": "api/reading.py",
    "read": "api/reading.py",
}
# Marks of an implementation -> the modules that may have it.
MARKS = {
    "CertificateBuilder": {"certificates.py"},
    "isoformat": {"api/times.py"},
    # The latter two are queues.
    "popitem": {"api/caching.py", "client/events.py", "server/store/memory_store.py"},
}
# Texts of expressions that each belong to one module: a second one is a second implementation.
EXPRESSIONS = {
    r"datetime\.now\(UTC\)": "host/clock.py",
    r"secrets\.choice\(": "host/random_names.py",
    r'"Succeeded", "Failed"[)}]|"Failed", "Succeeded"[)}]': "api/well_known.py",
    r'"type"[\])] == .* and .*"status"[\])] == "True"': "api/conditions.py",
    r'\.type == .* and .*\.status == "True"': "api/conditions.py",
}


@cache
def texts() -> dict[str, str]:
    return {
        path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(SOURCES.rglob("*.py"))
        if "generated" not in path.parts
    }


@cache
def trees() -> dict[str, ast.Module]:
    return {module: ast.parse(text) for module, text in texts().items()}


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings of a module, except docstrings and the parts of f-strings."""
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node


def second_literals(name: str, tree: ast.AST) -> list[str]:
    return [
        f"{name}:{node.lineno}: {node.value!r} is defined in {LITERALS[node.value]}"
        for node in literals(tree)
        if LITERALS.get(node.value, name) != name
    ]


def test_well_known_names_groups_and_media_types_are_written_once() -> None:
    assert [found for name, tree in trees().items() for found in second_literals(name, tree)] == []


def test_a_second_literal_is_found() -> None:
    tree = ast.parse('"""resource.k8s.io"""\nGROUP = "resource.k8s.io"\n')
    assert second_literals("x.py", tree) == ["x.py:2: 'resource.k8s.io' is defined in api/kinds.py"]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_one_module_defines(name: str) -> None:
    kinds_of_definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        module
        for module, tree in trees().items()
        for node in tree.body
        if isinstance(node, kinds_of_definition) and node.name == name
    ]
    assert found == [DEFINITIONS[name]]


@pytest.mark.parametrize("mark", MARKS)
def test_only_one_module_uses(mark: str) -> None:
    found = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == mark
    }
    assert found == MARKS[mark]


@pytest.mark.parametrize("pattern", EXPRESSIONS)
def test_only_one_module_has_the_expression(pattern: str) -> None:
    found = {module for module, text in texts().items() if re.search(pattern, text)}
    assert found == {EXPRESSIONS[pattern]}


def test_tables_name_only_kinds_that_exist() -> None:
    groups = {name: value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)}
    known = {(row.group, name) for row in kinds.KINDS for name in (row.plural, row.kind)}
    unknown, n_found = [], 0
    for module, tree in trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Tuple(elts=[ast.Name(id=group), ast.Constant(value=str(resource))]) if (
                    group in groups
                ):
                    n_found += 1
                    plural = resource.partition("/")[0]
                    if plural[-1:] == "s" and plural.isalpha() and (groups[group], plural) not in known:
                        unknown.append(f"{module}:{node.lineno}: {groups[group]}/{resource}")
    assert unknown == []
    assert n_found > 40
