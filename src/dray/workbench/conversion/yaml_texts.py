"""Objects as YAML for people: blocks for long texts, fields in the order in which they were made."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and indents lists as people do."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(obj: Any) -> str:
    """Return an object as YAML."""
    return str(yaml.dump(obj, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))
