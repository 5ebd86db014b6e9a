"""docs/api.md names every kind and every field of resource.k8s.io."""

from pathlib import Path

import pytest

from dray.api.kinds import KINDS
from dray.api.schema import schema_of

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text()


def section_of(name):
    """The text below a heading, up to the next."""
    for level in ("\n### ", "\n#### "):
        _, found, rest = TEXT.partition(f"{level}{name}\n")
        if found:
            return rest.split("\n###")[0].split("\n## ")[0]
    return ""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.group_resource)
def test_every_kind_is_in_the_table(kind):
    assert f"| {kind.group or 'core'} | {kind.kind} | `{kind.plural}`" in TEXT


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.group == "resource.k8s.io"], ids=lambda kind: kind.kind
)
def test_every_field_is_documented_in_its_section(kind):
    for struct in schema_of(kind.group, kind.versions[0], kind.kind).structs():
        if struct.group == "resource":
            section = section_of(struct.name)
            for field in struct.fields.values():
                assert f"| `{field.name}`" in section, f"{struct.name}.{field.name}"
                assert field.description in section, (
                    f"{struct.name}.{field.name}: the description differs from the schema's"
                )
