"""The document that a patch made, as text: what a refused patch shows of its result.

kube-apiserver prints the JSON that its patch library wrote. That library sorts the members of the
objects that a patch went into, and leaves everything else as it was: in the order of the schema
where the object had it, in the order of the patch where the patch brought it.

Theory of operation: from the patch follows which objects it went into (`Entered`, a tree of member
names); one walk over document, schema and tree puts members in order.
"""

from __future__ import annotations

from typing import Any

from dray.api.codec import encode
from dray.api.schema import STRUCT, Type

# Member name → what the patch did below it; None: the value is the patch's own.
Entered = dict[str, "Entered | None"]


def entered_by_merge(patch: Any) -> Entered:
    """Return where a merge patch went."""
    return {
        name: entered_by_merge(value) if isinstance(value, dict) else None for name, value in patch.items()
    }


def entered_by_operations(operations: list[dict[str, Any]]) -> Entered:
    """Return where the operations of a JSON patch went."""
    entered: Entered = {}
    for operation in operations:
        for path in (operation.get("from"), operation.get("path")):
            if not isinstance(path, str):
                continue
            *parents, last = path.split("/")[1:] or [""]
            level: Entered = entered
            for part in parents:
                below = level.setdefault(_name(part), {})
                level = {} if below is None else below  # within a value of the patch itself
            if path == operation.get("path") and operation.get("op") != "remove":
                level.setdefault(_name(last), None)
    return entered


def in_patched_order(value: Any, schema: Type | None, entered: Entered | None) -> Any:
    """Return a document whose members stand in the order in which they are printed."""
    if isinstance(value, list):
        element = schema.element if schema else None
        return [_member(item, element, entered, str(position)) for position, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    fields = schema.fields if schema is not None and schema.kind == STRUCT else {}
    if entered is not None or not fields:
        names = sorted(value)
    else:
        head = ("kind", "apiVersion") if schema is not None and schema.has_type_meta else ()
        known = [name for name in (*head, *fields) if name in value]
        names = known + [name for name in value if name not in fields and name not in known]
    element = schema.element if schema is not None else None
    return {
        name: _member(value[name], fields[name].type if name in fields else element, entered, name)
        for name in names
    }


def _member(value: Any, schema: Type | None, entered: Entered | None, name: str) -> Any:
    if entered is not None and name in entered and entered[name] is None:
        return value
    return in_patched_order(value, schema, (entered or {}).get(name))


def _name(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def patched_text(document: Any, schema: Type | None, entered: Entered) -> str:
    """Return a patched document as its refusal shows it, cut to a bounded length."""
    text = encode(in_patched_order(document, schema, entered))[:_MOST_SHOWN].decode("utf-8", "ignore")
    # Go writes JSON so that it can stand in HTML; only texts within can have these characters.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_MOST_SHOWN = 65_536  # bytes; upstream shows all of it
