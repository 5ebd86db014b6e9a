"""Types of parsed JSON: one name for each meaning, defined in one module."""

import re
from pathlib import Path

import pytest

import dray
from dray.api import json_types

SOURCES = Path(dray.__file__).parent
# Packages whose modules have no alias of their own any more.
PACKAGES = ["api", "cli", "client", "control", "server", "sim"]


@pytest.mark.parametrize("package", PACKAGES)
def test_aliases_of_json_are_defined_in_one_module(package):
    alias = re.compile(r"^_?(Json\w*|Object) = (?!TypeVar)", re.MULTILINE)
    found = {
        str(path.relative_to(SOURCES))
        for path in (SOURCES / package).rglob("*.py")
        if alias.search(path.read_text(encoding="utf-8"))
    }
    assert found <= {"api/json_types.py"}


def test_the_module_has_a_value_an_object_and_an_object_that_is_only_read():
    names = {name for name in vars(json_types) if name.startswith("Json")}
    assert names == {"JsonValue", "JsonObject", "JsonMapping"}
