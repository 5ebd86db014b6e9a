"""Label selectors: what each operator means, and that only one module says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dray
from dray.api.label_selectors import compares, holds, matches_label_object, matches_labels, object_holds
from dray.api.meta import LabelSelector

SOURCES = Path(dray.__file__).parent
LABELS = {"app": "web", "size": "10"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("app", "In", ["db", "web"], True),
        ("app", "In", ["db"], False),
        ("app", "In", [], False),
        ("absent", "In", [""], False),
        ("app", "NotIn", ["db"], True),
        ("app", "NotIn", ["web"], False),
        ("absent", "NotIn", ["web"], True),
        ("app", "Exists", [], True),
        ("absent", "Exists", [], False),
        ("app", "DoesNotExist", [], False),
        ("absent", "DoesNotExist", [], True),
        ("size", "Gt", ["9"], True),
        ("size", "Gt", ["10"], False),
        ("size", "Lt", ["11"], True),
        ("absent", "Lt", ["11"], False),
        ("app", "Gt", ["1"], False),
        ("app", "Resembles", ["web"], False),
    ],
)
def test_a_requirement_holds_as_its_operator_says(
    key: str, operator: str, values: list[str], expected: bool
) -> None:
    assert holds(key, operator, values, LABELS) is expected
    assert holds(key, operator, frozenset(values), LABELS) is expected
    assert object_holds({"key": key, "operator": operator, "values": values or None}, LABELS) is expected


@pytest.mark.parametrize("text", ["1_0", " 10", "10 ", "0x10", "1e1", "", "٣", str(2**63), "9" * 100_000])
def test_what_is_not_a_64_bit_decimal_integer_does_not_compare(text: str) -> None:
    assert not compares(text, "Gt", ["1"])
    assert not compares("1", "Lt", [text])


def test_integers_compare_with_sign_and_leading_zeros() -> None:
    assert compares("+5", "Gt", ["-5"])
    assert compares("007", "Lt", ["8"])
    assert compares(str(2**63 - 1), "Gt", [str(-(2**63))])


def test_a_comparison_needs_exactly_one_value() -> None:
    assert not compares("5", "Gt", [])
    assert not compares("5", "Gt", ["1", "2"])


def test_a_missing_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert not matches_labels(None, LABELS)
    assert matches_labels(LabelSelector(), LABELS)
    assert matches_labels(LabelSelector(), None)
    assert not matches_label_object(None, LABELS)
    assert matches_label_object({}, LABELS)
    assert matches_label_object({"matchLabels": None, "matchExpressions": None}, None)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "size", "operator": "Exists"}]}, True),
        (
            {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "size", "operator": "DoesNotExist"}],
            },
            False,
        ),
        ({"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "size", "operator": "Exists"}]}, False),
        ({"matchLabels": {"absent": ""}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
    ],
)
def test_labels_and_expressions_of_a_selector_must_all_hold(selector: dict[str, Any], expected: bool) -> None:
    assert matches_label_object(selector, LABELS) is expected
    assert matches_labels(msgspec.convert(selector, LabelSelector), LABELS) is expected


def test_no_other_module_decides_the_operators() -> None:
    # A dict or match that maps "NotIn" to a membership test.
    decision = re.compile(r"""["']NotIn["']:?\s*(?:return\s+)?[^\n]*\bnot in\b""")
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if decision.search(path.read_text(encoding="utf-8"))
    }
    # A node selector's fields (metadata.name) have no labels to look up.
    assert found - {"scheduler/selecting.py"} <= {"api/label_selectors.py"}
    assert "api/label_selectors.py" in found
