"""Custom kinds whose schema is the bomb."""

from __future__ import annotations

from collections.abc import Iterator

from attack.bombs.building import DEFINITIONS, HOME, Bomb, Json, review_protobuf, send
from attack.custom_kinds import GROUP
from attack.protobuf import varint
from attack.vocabulary import APPLY
from attack.wire import Request


def definitions() -> Iterator[Bomb]:
    """Custom kinds: their definitions and patterns come from a client as well."""

    def definition(name: str, schema: Json, **more: Json) -> Json:
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
            **more,
        }
        names = {
            "plural": f"{name}s",
            "singular": name,
            "kind": name.title(),
            "listKind": f"{name.title()}List",
        }
        return {
            "metadata": {"name": f"{name}s.{GROUP}"},
            "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
        }

    deep: Json = {"type": "object"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    yield "schema 300 deep", send("POST", DEFINITIONS, definition("deepschema", deep))
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(50_000)}}
    yield "schema 50000 wide", send("POST", DEFINITIONS, definition("wideschema", wide))
    yield "read the wide schema", Request("GET", f"/openapi/v3/apis/{GROUP}/v1")
    pattern = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "a": {"type": "string", "pattern": "^(a+)+$"},
                    "b": {"type": "string", "pattern": "(x+x+)+y"},
                },
            }
        },
    }
    yield "schema with a slow pattern", send("POST", DEFINITIONS, definition("pattern", pattern))
    yield (
        "text for the slow pattern",
        send(
            "POST",
            f"/apis/{GROUP}/v1/namespaces/{HOME}/patterns",
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "Pattern",
                "metadata": {"name": "p"},
                "spec": {"a": "a" * 28 + "!", "b": "x" * 28},
            },
        ),
    )
    huge = {
        "type": "object",
        "properties": {"spec": {"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100})"}},
    }
    yield "schema with a large pattern", send("POST", DEFINITIONS, definition("largepattern", huge))
    yield (
        "text for the large pattern",
        send(
            "POST",
            f"/apis/{GROUP}/v1/namespaces/{HOME}/largepatterns",
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "Largepattern",
                "metadata": {"name": "p"},
                "spec": "a" * 10_000,
            },
        ),
    )
    rule = {"rule": "self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d >= 0))))"}
    listed = {
        "type": "object",
        "properties": {
            "spec": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [rule]}
        },
    }
    yield "schema with a costly rule", send("POST", DEFINITIONS, definition("rule", listed))
    yield (
        "list for the costly rule",
        send(
            "POST",
            f"/apis/{GROUP}/v1/namespaces/{HOME}/rules",
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "Rule",
                "metadata": {"name": "p"},
                "spec": list(range(100)),
            },
        ),
    )
    unique = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "array",
                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "uniqueItems": True,
            }
        },
    }
    yield "schema with unique items", send("POST", DEFINITIONS, definition("unique", unique))
    sets = {
        "type": "object",
        "properties": {
            "spec": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"}
        },
    }
    yield "schema with a set", send("POST", DEFINITIONS, definition("setlist", sets))
    yield (
        "a set of 200000",
        send(
            "POST",
            f"/apis/{GROUP}/v1/namespaces/{HOME}/setlists",
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": "Setlist",
                "metadata": {"name": "p"},
                "spec": list(range(200_000)),
            },
        ),
    )
    maps = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "array",
                "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
            }
        },
    }
    yield "schema with a keyed list", send("POST", DEFINITIONS, definition("maplist", maps))
    for manager in ("m", "o"):
        yield (
            f"a keyed list of 50000 by {manager}",
            send(
                "PATCH",
                f"/apis/{GROUP}/v1/namespaces/{HOME}/maplists/p?fieldManager={manager}",
                {
                    "apiVersion": f"{GROUP}/v1",
                    "kind": "Maplist",
                    "metadata": {"name": "p"},
                    "spec": [{"k": f"{manager}{n}"} for n in range(50_000)],
                },
                APPLY,
            ),
        )
    columns = [{"name": f"C{n}", "type": "string", "jsonPath": ".spec" + "[*]" * 50} for n in range(2_000)]
    yield (
        "columns",
        send(
            "POST",
            DEFINITIONS,
            definition(
                "column",
                {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                additionalPrinterColumns=columns,
            ),
        ),
    )
    nested: Json = "x"
    for _ in range(12):
        nested = [nested, nested]
    yield (
        "object for the columns",
        send(
            "POST",
            f"/apis/{GROUP}/v1/namespaces/{HOME}/columns",
            {"apiVersion": f"{GROUP}/v1", "kind": "Column", "metadata": {"name": "p"}, "spec": nested},
        ),
    )
    yield (
        "columns shown",
        Request(
            "GET",
            f"/apis/{GROUP}/v1/namespaces/{HOME}/columns",
            {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
        ),
    )
    yield "numbers", review_protobuf(varint(1 << 3) + b"\xff" * 100_000)
