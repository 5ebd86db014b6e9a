"""From objects to requests: every verb, kind of patch, query parameter, content type and Accept header.

A `Generator` belongs to one worker: it has a namespace and names of its own, and what it
makes depends on its seed alone, not on what the server answers. Most requests carry
an object that is valid but for the last change (`deep`); the rest goes wrong earlier, on purpose.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from attack.custom_kinds import CUSTOM_KINDS, GROUP
from attack.mutation import ODD, STRINGS, Mutator
from attack.policies import EXPRESSION_FIELDS, EXPRESSIONS, as_dry_run
from attack.protobuf import encode_object
from attack.servers import NOBODY, NODE
from attack.species import Species, dumps, named
from attack.vocabulary import (
    ACCEPTS,
    APPLY,
    DELETE_QUERIES,
    DIRECTIVES,
    DOCUMENT_ACCEPTS,
    EXEC_QUERIES,
    JSON,
    JSON_PATCH,
    LOG_QUERIES,
    MERGE,
    NAMES,
    PROTOBUF,
    QUERIES,
    STRATEGIC,
    WRITE_QUERIES,
    YAML,
)
from attack.wire import Request
from dray.api.schema import SchemaError, schema_of

Json = Any


class Generator:
    """Makes requests."""

    def __init__(self, seed: str, species: list[Species], namespace: str) -> None:
        self.chance = random.Random(seed)
        self.namespace = namespace
        self.mutator = Mutator(self.chance)
        self._species = species
        self._stored = [each for each in species if each.kind.is_stored]
        self._reviews = [each for each in species if not each.kind.is_stored]
        for each in species:
            for body in each.bodies:
                self.mutator.learn(body)
        for name in EXPRESSION_FIELDS:
            self.mutator.words.setdefault(name, []).extend(EXPRESSIONS)
        self._n = 0
        shapes: list[tuple[int, Callable[[], Request]]] = [
            (24, self.create), (10, self.update), (8, self.patch_merge), (8, self.patch_strategic), (8, self.patch_apply), (8, self.patch_json),
            (7, self.status), (5, self.read), (5, self.list), (2, self.delete), (1, self.deletecollection), (4, self.subresource),
            (3, self.review), (3, self.protobuf), (2, self.yaml), (3, self.garbage), (1, self.odd_headers), (1, self.odd_path),
        ]  # fmt: skip
        self._shapes = [make for _, make in shapes]
        self._weights = [weight for weight, _ in shapes]

    def next(self) -> Request:
        """Return the next request."""
        self._n += 1
        made = self.chance.choices(self._shapes, self._weights)[0]()
        if made.method != "GET":
            made.target = as_dry_run(made.target)
        return made

    # --- pieces -------------------------------------------------------------------

    def home(self, species: Species) -> str:
        """Return the namespace for objects of a kind."""
        return self.namespace + "-limits" if species.limits else self.namespace

    def name_of(self, species: Species, name: str) -> str:
        """Return the name under which an object is found."""
        return f"gadget{name}s.{GROUP}" if species.kind.kind == "CustomResourceDefinition" else name

    def query(self, table: dict[str, tuple[str, ...]], share: float) -> str:
        """Return a query string of some parameters of a table."""
        chance = self.chance
        chosen = [(name, chance.choice(values)) for name, values in table.items() if chance.random() < share]
        return "?" + urlencode(chosen) if chosen else ""

    def _object(self, species: Species, name: str) -> Json:
        return named(species, self.chance.choice(species.bodies), name, self.home(species))

    def _mutated(self, species: Species, name: str) -> Json:
        return self.mutator.mutate(species.schema, self._object(species, name))

    def _request(
        self, method: str, target: str, value: Json, shape: str, content: str = JSON, deep: bool = True
    ) -> Request:
        return Request(
            method, target, {"Content-Type": content}, dumps(value), shape=shape, deep=deep, changes="dryRun=All" not in target,
            path=self.mutator.path,
        )  # fmt: skip

    def _target(self, species: Species, name: str = "", subresource: str = "") -> str:
        found = self.name_of(species, name) if name else ""
        return species.kind.path(
            version=species.version, namespace=self.home(species), name=found, subresource=subresource
        )

    def _write_query(self, manager: str = "") -> str:
        found = self.query(WRITE_QUERIES, 0.06)
        if manager and "fieldManager" not in found:
            found += ("&" if found else "?") + f"fieldManager={manager}"
        return found

    # --- writing ------------------------------------------------------------------

    def create(self) -> Request:
        """Create: half of them only tried, under a name that is free."""
        species = self.chance.choice(self._stored)
        if self.chance.random() < 0.6:
            value = self._mutated(species, f"d{self._n}")
            query = "?dryRun=All" + self.query(WRITE_QUERIES, 0.03).replace("?", "&")
        else:
            value, query = self._mutated(species, self.chance.choice(NAMES)), self._write_query()
        return self._request("POST", self._target(species) + query, value, "create")

    def update(self) -> Request:
        """Replace an object that probably exists."""
        species, name = self.chance.choice(self._stored), self.chance.choice(NAMES)
        return self._request(
            "PUT", self._target(species, name) + self._write_query(), self._mutated(species, name), "update"
        )

    def _patch(self, shape: str, content: str) -> Request:
        chance = self.chance
        species, name = chance.choice(self._stored), chance.choice(NAMES)
        base = self._object(species, name)
        changed = self.mutator.mutate(species.schema, base)
        value = difference(base, changed) if chance.random() < 0.6 else changed
        if content == STRATEGIC and chance.random() < 0.3:
            value = self._with_directive(value)
        manager = "m" if content == APPLY else ""
        if content == APPLY:
            value = changed
        return self._request(
            "PATCH", self._target(species, name) + self._write_query(manager), value, shape, content
        )

    def patch_merge(self) -> Request:
        """JSON merge patch."""
        return self._patch("patch merge", MERGE)

    def patch_strategic(self) -> Request:
        """Strategic merge patch, with directives."""
        return self._patch("patch strategic", STRATEGIC)

    def patch_apply(self) -> Request:
        """Server-side apply."""
        return self._patch("patch apply", APPLY)

    def _with_directive(self, value: Json) -> Json:
        directive = self.chance.choice(DIRECTIVES)
        if isinstance(value, dict) and value and self.chance.random() < 0.7:
            name = self.chance.choice(list(value))
            if isinstance(value[name], dict):
                return {**value, name: self._with_directive(value[name])}
            if isinstance(value[name], list):
                return {**value, name: [directive, *value[name]]}
        return {**value, **directive} if isinstance(value, dict) else directive

    def patch_json(self) -> Request:
        """JSON patch: operations on places that exist, then one that may not."""
        chance = self.chance
        species, name = chance.choice(self._stored), chance.choice(NAMES)
        base = self._object(species, name)
        operations = [self._operation(species, base) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        return self._request(
            "PATCH", self._target(species, name) + self._write_query(), operations, "patch json", JSON_PATCH
        )

    def _operation(self, species: Species, base: Json) -> Json:
        chance = self.chance
        pointer, value = self._pointer(base)
        kind = chance.choice(
            ("add", "replace", "remove", "test", "copy", "move", "add", "replace", "x", None)
        )
        self.mutator.path = pointer
        made: dict[str, Json] = {"op": kind, "path": pointer}
        if kind in ("copy", "move"):
            made["from"] = self._pointer(base)[0]
        else:
            made["value"] = (
                self.mutator._replacement(None, value, pointer.rpartition("/")[2], 3)
                if chance.random() < 0.7
                else value
            )
        if chance.random() < 0.05:
            made[chance.choice(list(made))] = chance.choice(ODD)
        return made

    def _pointer(self, value: Json) -> tuple[str, Json]:
        """Return a pointer into a value, and what is there."""
        chance, pointer = self.chance, ""
        while isinstance(value, dict | list) and value and (not pointer or chance.random() < 0.8):
            key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
            value = value[key]
            pointer += "/" + str(key).replace("~", "~0").replace("/", "~1")
        if chance.random() < 0.08:
            pointer += chance.choice(("/", "/x", "/-", "/-1", "/0", "/99", "~", "/~2", "/00", "/²", "/1e1"))
        return pointer, value

    def status(self) -> Request:
        """Write a status: by PUT, merge patch or apply."""
        chance = self.chance
        species = chance.choice(
            [each for each in self._stored if each.kind.has_status or each.kind in CUSTOM_KINDS]
        )
        name = chance.choice(NAMES)
        value, schema = self._object(species, name), species.schema
        fields = schema.fields if schema is not None else {}
        self.mutator.path = ".status"
        value["status"] = self.mutator.generate(
            fields["status"].type if "status" in fields else None, "status", 1
        )
        if chance.random() < 0.5:
            value.pop("spec", None)
        target = self._target(species, name, "status")
        method, content = chance.choice(
            (("PUT", JSON), ("PATCH", MERGE), ("PATCH", STRATEGIC), ("PATCH", APPLY))
        )
        return self._request(method, target + self._write_query("m"), value, "status", content)

    # --- reading and deleting ---------------------------------------------------------

    def read(self) -> Request:
        """Get one object."""
        species = self.chance.choice(self._stored)
        return self._reading(self._target(species, self.chance.choice(NAMES)), "get", 0.05)

    def list(self) -> Request:
        """List, with every parameter; some go on from a forged token."""
        species = self.chance.choice(self._stored)
        target = self._target(species)
        if species.kind.namespaced and self.chance.random() < 0.1:
            target = species.kind.path(version=species.version)
        made = self._reading(target, "list", 0.15)
        if self.chance.random() < 0.15:
            made.target += ("&" if "?" in made.target else "?") + "continue=" + self._continue()
        return made

    def _reading(self, target: str, shape: str, share: float) -> Request:
        headers = {"Accept": self.chance.choice(ACCEPTS)} if self.chance.random() < 0.4 else {}
        deep = self.chance.random() < 2  # the path is right; what may be wrong is the last parameter
        return Request("GET", target + self.query(QUERIES, share), headers, shape=shape, deep=deep)

    def _continue(self) -> str:
        chance = self.chance
        token = {
            "v": "meta.k8s.io/v1",
            "rv": chance.choice((1, 50, -1, 0, 2**63, "1", None, 10**30)),
            "start": chance.choice(STRINGS),
        }
        if chance.random() < 0.3:
            token[chance.choice(list(token))] = chance.choice(ODD)
        text = base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")
        return quote(text if chance.random() < 0.8 else text[: chance.randrange(len(text))])

    def watch(self) -> Request:
        """Watch; whoever sends it must be ready for a stream."""
        species = self.chance.choice(self._stored)
        made = self._reading(self._target(species), "watch", 0.15)
        made.target += ("&" if "?" in made.target else "?") + "watch=1&timeoutSeconds=1"
        return made

    def delete(self) -> Request:
        """Delete, with options in the query or in a body whose last field is odd."""
        species = self.chance.choice(self._stored)
        target = self._target(species, self.chance.choice(NAMES)) + self.query(DELETE_QUERIES, 0.1)
        return self._deletion(target, "delete")

    def deletecollection(self) -> Request:
        """Delete the collection of the own namespace, or what carries the own label."""
        species = self.chance.choice([each for each in self._stored if "deletecollection" in each.kind.verbs])
        query = {
            "labelSelector": "attack=none"
            if not species.kind.namespaced
            else self.chance.choice(("attack=yes", "a in (", "x=y"))
        }
        return self._deletion(f"{self._target(species)}?{urlencode(query)}", "deletecollection")

    def _deletion(self, target: str, shape: str) -> Request:
        if self.chance.random() < 0.4:
            return Request("DELETE", target, shape=shape, deep=True, changes=True)
        options = {
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background",
            "preconditions": {"uid": "x", "resourceVersion": "1"}, "dryRun": ["All"],
        }  # fmt: skip
        value = self.mutator.mutate(schema_of("meta.k8s.io", "v1", "DeleteOptions"), options)
        return self._request("DELETE", target, value, shape)

    # --- the rest -------------------------------------------------------------------

    def subresource(self) -> Request:
        """Scale, binding, eviction, token, log, exec, finalize, resize and the like."""
        chance = self.chance
        species = chance.choice([each for each in self._stored if each.kind.subresources])
        sub = chance.choice(species.kind.subresources)
        target = self._target(species, chance.choice(NAMES), sub.name)
        shape = f"{species.kind.plural}/{sub.name}"
        verb = chance.choice(sub.verbs)
        method = {"get": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}[verb]
        if method == "GET":
            table = LOG_QUERIES if sub.name == "log" else EXEC_QUERIES
            return Request("GET", target + self.query(table, 0.2), shape=shape, deep=True)
        name = target.split("/")[-2]
        if not sub.kind:
            value, schema = self._mutated(species, name), None
        else:
            value = {
                "apiVersion": f"{sub.group}/{sub.version}".lstrip("/"),
                "kind": sub.kind,
                "metadata": {"name": name, "namespace": self.home(species)},
            }
            value |= {
                "Scale": {"spec": {"replicas": 3}}, "Binding": {"target": {"kind": "Node", "name": "n1"}},
                "Eviction": {"deleteOptions": {"gracePeriodSeconds": 0, "dryRun": ["All"]}},
                "TokenRequest": {"spec": {"audiences": ["a"], "expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "a0"}}},
            }.get(sub.kind, {})  # fmt: skip
            try:
                schema = schema_of(sub.group, sub.version, sub.kind)
            except SchemaError:
                schema = None
            value = self.mutator.mutate(schema, value)
        content = chance.choice((MERGE, STRATEGIC, APPLY, JSON_PATCH)) if method == "PATCH" else JSON
        return self._request(method, target + self._write_query("m"), value, shape, content)

    def review(self) -> Request:
        """Reviews and bindings: kinds that are only created."""
        species = self.chance.choice(self._reviews)
        value = self._mutated(species, self.chance.choice(NAMES))
        made = self._request("POST", self._target(species) + self._write_query(), value, "review")
        if self.chance.random() < 0.3:
            made.token = self.chance.choice((NOBODY, NODE))
        return made

    def protobuf(self) -> Request:
        """The same as protobuf, some of it cut or flipped."""
        chance = self.chance
        species = chance.choice([each for each in self._species if each.schema is not None])
        name = f"d{self._n}"
        value = self._mutated(species, name)
        assert species.schema is not None
        body = encode_object(species.schema, value)
        deep = True
        if chance.random() < 0.4:
            body, deep = self._flipped(body), False
        target = self._target(species) + ("?dryRun=All" if chance.random() < 0.7 else "")
        return Request(
            "POST",
            target,
            {"Content-Type": PROTOBUF},
            body,
            shape="protobuf",
            deep=deep,
            changes=True,
            path=self.mutator.path,
        )

    def yaml(self) -> Request:
        """YAML: JSON is YAML, so a valid object with anchors and tags around."""
        species = self.chance.choice(self._stored)
        text = dumps(self._mutated(species, f"d{self._n}")).decode()
        text = self.chance.choice(
            (
                text,
                f"--- {text}\n",
                f"%YAML 1.2\n---\n{text}",
                f"&a {text}",
                f"!!map {text}",
                f"# c\n{text}\n---\n{{}}",
                f"{text}\n...",
            )
        )
        return Request(
            "POST",
            self._target(species) + "?dryRun=All",
            {"Content-Type": YAML},
            text.encode(),
            shape="yaml",
            deep=True,
            path=self.mutator.path,
        )

    def _flipped(self, body: bytes) -> bytes:
        chance, out = self.chance, bytearray(body)
        for _ in range(chance.choice((1, 1, 2, 8))):
            if not out:
                break
            place = chance.randrange(len(out))
            match chance.randrange(4):
                case 0:
                    out[place] ^= 1 << chance.randrange(8)
                case 1:
                    del out[place : place + chance.randrange(1, 20)]
                case 2:
                    out[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 8)))
                case _:
                    out = out[:place]
        return bytes(out)

    def garbage(self) -> Request:
        """Bodies that break in the parser, and content types that do not fit."""
        chance = self.chance
        species = chance.choice(self._stored)
        body = dumps(self._object(species, f"d{self._n}"))
        content = chance.choice(
            (
                JSON,
                YAML,
                PROTOBUF,
                MERGE,
                STRATEGIC,
                APPLY,
                JSON_PATCH,
                "application/cbor",
                "text/plain",
                "",
                "x",
                "application/json; charset=utf-16",
            )
        )
        if chance.random() < 0.7:
            body = self._flipped(body)
        method, target = chance.choice((("POST", self._target(species)), ("PATCH", self._target(species, "a0")), ("PUT", self._target(species, "a0")), ("DELETE", self._target(species, "zz"))))  # fmt: skip
        return Request(method, target, {"Content-Type": content}, body, shape="garbage", changes=True)

    def odd_headers(self) -> Request:
        """Impersonation, tokens and headers that nobody expects."""
        chance = self.chance
        made = self.list()
        made.shape, made.deep = "headers", False
        odd = (
            "x",
            "",
            "system:masters",
            "a" * 500,
            "é",
            "system:serviceaccount:default:default",
            "system:node:n1",
            ":",
            "system:serviceaccount::",
        )
        choices = (
            {"Impersonate-User": chance.choice(odd)}, {"Impersonate-Group": chance.choice(odd)}, {"Impersonate-Extra-%zz": "x"},
            {"Impersonate-User": chance.choice(odd), "Impersonate-Extra-a%2fb": chance.choice(odd)}, {"Impersonate-Uid": chance.choice(odd)},
            {"If-None-Match": '"x"'}, {"Accept-Encoding": "gzip;q=x"}, {"X-Remote-User": "admin"}, {"User-Agent": "é" * 100},
        )  # fmt: skip
        made.headers.update(chance.choice(choices))
        made.token = chance.choice(
            (made.token, NOBODY, NODE, "", "x", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", "é")
        )
        return made

    def odd_path(self) -> Request:
        """Paths next to those that exist."""
        chance = self.chance
        species = chance.choice(self._species)
        parts = self._target(species, chance.choice(NAMES)).split("/")[1:]
        place = chance.randrange(len(parts))
        parts[place] = chance.choice(
            (
                "",
                "x",
                "%00",
                "%2f",
                "..",
                "%ff",
                "watch",
                "v9",
                "namespaces",
                "é",
                "a" * 300,
                "%",
                "status",
                "*",
            )
        )
        path = "/" + "/".join(quote(part, safe="%*") for part in parts)
        more = (
            "/openapi/v3/x",
            "/openapi/v3/apis/attack.example.com/v1",
            "/metrics",
            "/livez/x",
            "/readyz?verbose&exclude=x",
            "/api",
            "/apis/x",
            "/version/",
            "/logs",
            "/debug/pprof",
            "/dashboard/../x",
        )
        if chance.random() < 0.3:
            path = chance.choice(more)
        method = chance.choice(("GET", "GET", "POST", "PUT", "DELETE", "PATCH"))
        headers = {"Accept": chance.choice((*ACCEPTS, *DOCUMENT_ACCEPTS))} if chance.random() < 0.3 else {}
        if chance.random() < 0.03:  # two megabytes of document are enough now and then
            method, path = "GET", "/openapi/v2"
        return Request(method, path, headers, shape="path")


def difference(base: Json, changed: Json) -> Json:
    """Return the merge patch from one object to another."""
    if not (isinstance(base, dict) and isinstance(changed, dict)):
        return changed
    found: dict[str, Json] = {name: None for name in base if name not in changed}
    for name, value in changed.items():
        if name not in base:
            found[name] = value
        elif base[name] != value or type(base[name]) is not type(value):
            found[name] = difference(base[name], value)
    return found
