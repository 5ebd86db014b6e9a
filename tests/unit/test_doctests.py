"""The examples in docstrings run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import dray

SOURCES = Path(dray.__file__).parent
WITH_EXAMPLES = sorted(
    path.relative_to(SOURCES).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in SOURCES.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_print_what_they_show(module: str) -> None:
    result = doctest.testmod(import_module(f"dray.{module}"))
    assert result.attempted and not result.failed
