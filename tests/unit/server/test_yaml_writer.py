"""YAML answers: the same text as PyYAML's dumper writes, and readable again."""

from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dray.api.parsing import load_yaml
from dray.api.yaml_text import is_text
from dray.server.requests.yaml_writer import write_yaml


class Dumper(yaml.SafeDumper):
    """Writes double quotes where quotes are needed, as Go's library does."""

    def choose_scalar_style(self) -> Any:
        style = super().choose_scalar_style()
        return '"' if style == "'" else style


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if is_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, represent_text)


def dumped(value: Any) -> str:
    return yaml.dump(
        value, Dumper=Dumper, sort_keys=True, default_flow_style=False, allow_unicode=True, width=2**31
    )


WORDS = st.sampled_from(
    ["", "yes", "No", "~", "null", "1", "0x1f", "1e3", ".5", "1:30", "2026-01-01", "<<", "=", "---", "...", "- a", "-",
     "a: b", "a:", "a #b", "#", " a", "a ", "?", "? a", "\n", "a\nb", "\t", "\x85", "\u2028", "\ufeff", "é", "\U0001f600",
     "'", '"', "\\", "a'b", 'a"b', "*a", "&a", "!a", "%a", "@a", "`a", "{a", "[a", "a]", ",", "|", ">", "k" * 122, "k" * 123,
     "k" * 200, "0o7", "+1", "-1", "1_000", "on", "y", "N", ":", ":a", "-a", "\x00", "\U0010ffff"]
)  # fmt: skip
TEXTS = WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(VALUES)
@example({"k" * 200: {"a": [1, {"b": []}]}, "": [[1, [2]], {}], "x\ny": [{"a": 1, "c": {"d": 2}}]})
@example([[[["a"], {"b": [{"c": "d"}]}]]])
def test_the_text_is_what_pyyaml_writes(value):
    assert write_yaml(value) == dumped(value)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_was_written_is_read_again(value):
    assert load_yaml(write_yaml(value)) == value
