"""Put rows together into a Table object.

A table of many objects is mostly the same from one request to the next. `encoded_rows` keeps
what was made of an object: the bytes of its row, open where a cell depends on the time, and
without the metadata where those are a part of the stored bytes, which the store keeps anyway.
A row is kept under the object's resourceVersion, so it is never out of date. Rows of custom
kinds are not kept: their columns may change while the objects do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from dray.api.caching import BoundedCache
from dray.api.json_types import JsonObject
from dray.api.kinds import META, Kind
from dray.host.clock import utc_now
from dray.server.requests import encode
from dray.server.tables.ages import UNKNOWN, Since, epoch, human_duration
from dray.server.tables.json_path import Budget, find
from dray.server.tables.kind_columns import LAYOUTS, NAME_AND_CREATION, Column, Layout, columns
from dray.server.tables.workload_cells import pod_conditions

# (kind, version) -> additionalPrinterColumns of a custom kind; None for built-in kinds
CustomColumns = Callable[[Kind, str], Sequence[Mapping[str, Any]] | None]


ROWS_BYTES = 16 * 1024 * 1024  # of rows that are kept: those of about 30,000 objects
_ROW_OVERHEAD = 200  # bytes of a kept row beside its text
_SHORT_METADATA = 64  # bytes; shorter ones are not worth a look into the stored object


class StoredRecord(Protocol):
    """What a row is made of."""

    @property
    def revision(self) -> int:
        """Return the number of the write that made it; no other write has it."""

    @property
    def value(self) -> bytes:
        """Return the stored object."""


Stored = TypeVar("Stored", bound=StoredRecord)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row between whose pieces stand the times, and before the last one the stored metadata."""

    pieces: list[bytes]
    since: list[float]  # moments, each followed by a piece
    start: int  # of the metadata in the stored object
    end: int  # 0: the pieces have the metadata

    def size(self) -> int:
        """Return about how many bytes it takes."""
        return _ROW_OVERHEAD + sum(map(len, self.pieces)) + 64 * len(self.since)

    def at(self, now: float, value: bytes) -> bytes:
        """Return the row at a time."""
        text = self.pieces[0]
        for number, moment in enumerate(self.since, 1):
            text += human_duration(now - moment).encode() + self.pieces[number]
        return text + value[self.start : self.end] + self.pieces[-1] if self.end else text


@dataclass(slots=True)
class Tables:
    """Make tables of objects."""

    now: Callable[[], datetime] = utc_now
    custom_columns: CustomColumns = lambda kind, version: None
    _rows: BoundedCache[tuple[int, tuple[str, str, str, str]], _Row] = field(
        default_factory=lambda: BoundedCache(ROWS_BYTES), init=False
    )

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
        rows: list[JsonObject] = []
        for thing in objects:
            row: JsonObject = {"cells": _at(now, layout.cells(thing))}
            marks = _conditions(kind, thing)
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

    def encoded_rows(
        self,
        kind: Kind,
        version: str,
        records: Iterable[Stored],
        read: Callable[[Stored], JsonObject],
        include: str,
        table_version: str,
    ) -> Iterator[bytes]:
        """Yield the rows of stored objects as JSON; each is made once for a resourceVersion.

        `read` returns a stored object in the version that was asked for.
        """
        now, rows = self.now().timestamp(), self._rows
        keeps = (kind.group, kind.plural) in LAYOUTS and include != "Object"
        form = (kind.group, version, include, table_version)
        for record in records:
            key = (record.revision, form)
            row = rows.get(key)
            if row is None:
                row = self._make_row(
                    kind, version, read(record), record.value, include, f"{META}/{table_version}"
                )
                if keeps:
                    rows.add(key, row, row.size())
            yield row.at(now, record.value)

    def _make_row(
        self, kind: Kind, version: str, thing: JsonObject, value: bytes, include: str, api_version: str
    ) -> _Row:
        pieces: list[bytes] = [b'{"cells":[']
        since: list[float] = []
        comma = b""
        for cell in self._layout(kind, version).cells(thing):
            if isinstance(cell, Since):
                since.append(cell.moment)
                pieces[-1] += comma + b'"' + encode(cell.before)[1:-1]
                pieces.append(encode(cell.after)[1:-1] + b'"')
            else:
                pieces[-1] += comma + encode(cell)
            comma = b","
        marks = _conditions(kind, thing)
        pieces[-1] += b"]," + (b'"conditions":' + encode(marks) + b"," if marks else b"") + b'"object":'
        if include != "Metadata":
            pieces[-1] += encode(_included(thing, include, api_version)) + b"}"
            return _Row(pieces, since, 0, 0)
        head = {"kind": "PartialObjectMetadata", "apiVersion": api_version}
        pieces[-1] += encode(head)[:-1] + b',"metadata":'
        metadata = encode(thing["metadata"])
        start = value.find(metadata) if len(metadata) > _SHORT_METADATA else -1
        if start < 0:
            pieces[-1] += metadata + b"}}"
            return _Row(pieces, since, 0, 0)
        pieces.append(b"}}")
        return _Row(pieces, since, start, start + len(metadata))

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

    def cells(thing: JsonObject) -> list[Any]:
        budget = Budget()
        found = (
            next(find(definition.get("jsonPath", ""), thing, budget), None) for definition in definitions
        )
        values = (_cell(column.type, value, budget) for column, value in zip(made, found, strict=True))
        return [thing["metadata"].get("name", ""), *values]

    return Layout((*columns("Name"), *made), cells)


def _at(now: float, cells: list[Any]) -> list[Any]:
    return [cell.at(now) if isinstance(cell, Since) else cell for cell in cells]


def _conditions(kind: Kind, thing: JsonObject) -> list[JsonObject] | None:
    return pod_conditions(thing) if kind.plural == "pods" and not kind.group else None


def _included(thing: JsonObject, include: str, api_version: str) -> JsonObject | None:
    if include == "None":
        return None
    if include == "Object":
        return thing
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": thing["metadata"]}


def _cell(kind: str, value: Any, budget: Budget) -> Any:
    if value is None:
        return None
    if kind == "string":
        return _text(value, budget)
    if kind == "date":
        then = epoch(value) if isinstance(value, str) else None
        return "<invalid>" if then is None else Since(then) if value else UNKNOWN
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer":
        return int(value) if is_number else None
    if kind == "number":
        return float(value) if is_number else None
    return value if kind == "boolean" and isinstance(value, bool) else None


def _text(value: Any, budget: Budget) -> str | None:
    if budget.characters <= 0:
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    budget.characters -= len(text)
    return text if budget.characters >= 0 else None
