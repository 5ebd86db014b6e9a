"""Put rows together into a Table object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from dray.api.json_types import JsonObject
from dray.api.kinds import META, Kind
from dray.server.tables.ages import UNKNOWN, epoch, human_duration
from dray.server.tables.json_path import find
from dray.server.tables.kinds import LAYOUTS, NAME_AND_CREATION, Column, Layout, columns
from dray.server.tables.workloads import pod_conditions

# (kind, version) -> additionalPrinterColumns of a custom kind; None for built-in kinds
CustomColumns = Callable[[Kind, str], Sequence[Mapping[str, Any]] | None]


@dataclass(slots=True)
class Tables:
    """Make tables of objects."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    custom_columns: CustomColumns = lambda kind, version: None

    def to_table(
        self,
        kind: Kind,
        version: str,
        objects: Sequence[JsonObject],
        metadata: JsonObject,
        include: str,
        table_version: str,
    ) -> JsonObject:
        """Return a Table of objects (in the version that was asked for).

        `include` says what a row carries of its object: Metadata, Object or None.
        """
        layout = self._layout(kind, version)
        now = self.now().timestamp()
        api_version = f"{META}/{table_version}"
        conditions = pod_conditions if (kind.group, kind.plural) == ("", "pods") else None
        rows: list[JsonObject] = []
        for thing in objects:
            row: JsonObject = {"cells": layout.cells(thing, now)}
            marks = conditions(thing) if conditions is not None else None
            if marks:
                row["conditions"] = marks
            row["object"] = _included(thing, include, api_version)
            rows.append(row)
        return {
            "kind": "Table",
            "apiVersion": api_version,
            "metadata": metadata,
            "columnDefinitions": [column.definition() for column in layout.columns],
            "rows": rows,
        }

    def _layout(self, kind: Kind, version: str) -> Layout:
        layout = LAYOUTS.get((kind.group, kind.plural))
        if layout is not None:
            return layout
        custom = self.custom_columns(kind, version)
        return NAME_AND_CREATION if custom is None else custom_layout(custom)


def custom_layout(definitions: Sequence[Mapping[str, Any]]) -> Layout:
    """Return the layout of a custom kind from the columns of its definition."""
    if not definitions:
        definitions = [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
    made = [
        Column(
            definition.get("name", ""),
            definition.get("type", "string"),
            definition.get("format") or "",
            definition.get("priority") or 0,
            definition.get("description") or "",
        )
        for definition in definitions
    ]

    def cells(thing: JsonObject, now: float) -> list[Any]:
        found = (find(definition.get("jsonPath", ""), thing) for definition in definitions)
        values = (_cell(column.type, results, now) for column, results in zip(made, found, strict=True))
        return [thing["metadata"].get("name", ""), *values]

    return Layout((*columns("Name"), *made), cells)


def _included(thing: JsonObject, include: str, api_version: str) -> JsonObject | None:
    if include == "None":
        return None
    if include == "Object":
        return thing
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": thing["metadata"]}


def _cell(kind: str, results: Sequence[Any], now: float) -> Any:
    value = results[0] if results else None
    if value is None:
        return None
    if kind == "string":
        return _text(value)
    if kind == "date":
        then = epoch(value) if isinstance(value, str) else None
        return "<invalid>" if then is None else human_duration(now - then) if value else UNKNOWN
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer":
        return int(value) if is_number else None
    if kind == "number":
        return float(value) if is_number else None
    return value if kind == "boolean" and isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
