"""The guides say what the tools do: tables, names and codes in them are those of the code."""

import re
from pathlib import Path

import pytest

from dray.workbench.conversion.labels import IMPLIED, RULES
from dray.workbench.conversion.resources import request_for
from dray.workbench.lint import CODES, lint

DOCS = Path(__file__).resolve().parents[3] / "docs"
MIGRATION = (DOCS / "migration.md").read_text("utf-8")
TROUBLE = (DOCS / "troubleshooting.md").read_text("utf-8")


def test_every_resource_of_the_table_is_converted_to_the_class_beside_it():
    rows = re.findall(r"^\| (`\S+/\S+.*?) \| class `([^`]+)`", MIGRATION, re.MULTILINE)
    assert len(rows) >= 7
    for before, device_class in rows:
        if "gpumem" in before:
            continue
        for resource in re.findall(r"`([a-z.]+/[\w.-]+)", before):
            found = request_for(resource, {})
            assert found is not None, resource
            assert found.device_class == device_class


def test_every_label_with_a_rule_is_in_the_guide():
    table = MIGRATION.partition("| label | selector |")[2].partition("## ")[0]
    stems = {label.rpartition(".")[0] if label.endswith((".major", ".minor")) else label for label in RULES}
    missing = [stem for stem in stems if stem not in table and stem.removeprefix("nvidia.com/") not in table]
    assert missing == []
    assert any(label in table for label in IMPLIED)


def test_the_class_of_the_guide_is_valid():
    (block,) = re.findall(r"```yaml\n(.*?)```", MIGRATION, re.DOTALL)
    assert lint({"class": block.encode()}).findings == []


@pytest.mark.parametrize("text", [MIGRATION, TROUBLE], ids=["migration", "troubleshooting"])
def test_codes_in_the_guides_exist(text):
    named = set(re.findall(r"\(`([a-z]+-[a-z]+)`(?:, `([a-z]+-[a-z]+)`)?\)", text))
    codes = {code for pair in named for code in pair if code}
    assert codes
    assert codes <= set(CODES)
