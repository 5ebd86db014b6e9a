"""A random walk over two API servers: the same requests to both, their answers compared.

Requests build on what is there: objects are made, read, replaced, patched, applied, listed in pages while others
write, watched from an earlier version, deleted. What a server makes up itself (uids, versions, continue tokens) is
kept for each server and put into its next request, so the same request means the same on both.

A walk is known by its seed. `python tests/random_walk.py KUBECONFIG KUBECONFIG --seed 1 --requests 1000` walks over
two running servers; tests/e2e/test_random_walk.py starts them itself.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml
from api_sequences import APPLY, JSON_PATCH, MERGE, METADATA_ONLY, STRATEGIC, TABLE, comparable

JsonObject = dict[str, Any]
NAMESPACES = ("walk-a", "walk-b")
NAMES = tuple(f"n{number}" for number in range(6))
LABELS = ({}, {"app": "a"}, {"app": "b", "tier": "x"}, {"tier": "y"})
OTHERS_WRITE = ("leases", "configmaps")  # the servers themselves, in kube-system
OWN_CLASSES = ("dray-high", "dray-low", "dray-normal")
PROTOCOL_ERRORS = (http.client.HTTPException, OSError)


class Server:
    """One server, and what it told that the next request needs."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        address = urlsplit(config["clusters"][0]["cluster"]["server"])
        # The servers are started by the caller, on loopback.
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._address = (address.hostname or "", address.port)
        self._connection: http.client.HTTPSConnection | None = None
        self.continues: dict[str, str] = {}  # list path -> token of the next page
        self.versions: dict[str, str] = {}  # collection -> a version it had

    def ask(self, method: str, path: str, body: Any, kind: str, accept: str) -> tuple[int, bytes, list[str]]:
        """Send a request; returns status, body and warnings."""
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        headers = {
            "Authorization": "Bearer admintoken",
            "Accept": accept or "application/json",
            "User-Agent": "walker/1",
        }
        if text is not None:
            headers["Content-Type"] = kind or "application/json"
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(*self._address, context=self._tls, timeout=60)
            try:
                self._connection.request(method, path, text, headers)
                answer = self._connection.getresponse()
                return answer.status, answer.read(), answer.headers.get_all("Warning") or []
            except PROTOCOL_ERRORS:
                self._connection = None
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def current(self, path: str) -> JsonObject | None:
        """Return an object as it is now, or None."""
        status, body, _ = self.ask("GET", path, None, "", "")
        return json.loads(body) if status == 200 else None


@dataclass(frozen=True)
class Step:
    """One request for both servers; `body` is computed for each from what it has."""

    method: str
    path: str
    body: Callable[[Server], Any] = lambda server: None
    kind: str = ""
    accept: str = ""
    query: Callable[[Server], str] = lambda server: ""


@dataclass
class Kind:
    """A kind to walk over."""

    base: str  # path of the group version, without namespace
    plural: str
    namespaced: bool
    make: Callable[[random.Random], JsonObject]
    change: Callable[[random.Random], JsonObject]  # a merge patch of a random part
    versions: tuple[str, ...] = ()  # further group versions that serve it

    def collection(self, chance: random.Random, *, every: bool = False) -> str:
        base = chance.choice((self.base, *self.versions))
        if not self.namespaced or (every and self.plural not in OTHERS_WRITE and chance.random() < 0.2):
            return f"{base}/{self.plural}"
        return f"{base}/namespaces/{chance.choice(NAMESPACES)}/{self.plural}"


def _claim_spec(chance: random.Random, *, flat: bool = False) -> JsonObject:
    exact: JsonObject = {"deviceClassName": chance.choice(("gpu", "nic", "", "Bad Name"))}
    if chance.random() < 0.5:
        exact["count"] = chance.choice((1, 2, 0, -1))
    if chance.random() < 0.2:
        exact["allocationMode"] = chance.choice(("All", "ExactCount", "Odd"))
    if chance.random() < 0.4:
        expression = chance.choice(
            (
                'device.driver == "a.test"',
                "true",
                "device.nothing",
                "1 +",
                'device.attributes["a.test"].x > 3',
            )
        )
        exact["selectors"] = [{"cel": {"expression": expression}}]
    names = chance.sample(("a", "b", "c", "A"), chance.choice((1, 1, 2)))
    requests = [{"name": name, **exact} if flat else {"name": name, "exactly": exact} for name in names]
    devices: JsonObject = {"requests": requests}
    if chance.random() < 0.2:
        devices["constraints"] = [
            {
                "matchAttribute": chance.choice(("a.test/x", "x")),
                "requests": chance.choice(([], ["a"], ["z"])),
            }
        ]
    return {"devices": devices}


def _slice(chance: random.Random) -> JsonObject:
    devices = [
        {
            "name": f"d{number}",
            "attributes": {"x": chance.choice(({"int": number}, {"string": "s"}, {"bool": True}, {}))},
        }
        for number in range(chance.randrange(3))
    ]
    pool = {
        "name": chance.choice(("p", "q")),
        "generation": chance.choice((1, 2, -1)),
        "resourceSliceCount": chance.choice((1, 0)),
    }
    place = chance.choice(
        ({"nodeName": "node-1"}, {"allNodes": True}, {}, {"nodeName": "n", "allNodes": True})
    )
    return {
        "spec": {
            "driver": chance.choice(("a.test", "b.test", "Bad")),
            "pool": pool,
            "devices": devices,
            **place,
        }
    }


def _pod(chance: random.Random) -> JsonObject:
    resources = (
        {"requests": {"cpu": chance.choice(("1", "100m", "x", "-1"))}} if chance.random() < 0.5 else {}
    )
    spec: JsonObject = {
        "containers": [{"name": chance.choice(("c", "C")), "image": "i", "resources": resources}]
    }
    if chance.random() < 0.3:
        spec["resourceClaims"] = [
            {"name": "r", chance.choice(("resourceClaimName", "resourceClaimTemplateName")): "x"}
        ]
    if chance.random() < 0.3:
        spec["schedulingGates"] = [{"name": chance.choice(("a.test/g", "bad gate"))}]
    if chance.random() < 0.3:
        spec["tolerations"] = [
            {"key": "k", "operator": chance.choice(("Exists", "Equal", "Is")), "effect": "NoSchedule"}
        ]
    return {"spec": spec}


def _labels(chance: random.Random) -> JsonObject:
    return {
        "metadata": {
            "labels": chance.choice((None, {"app": "a"}, {"app": None}, {"tier": "z"}, {"bad key": "x"}))
        }
    }


def _one_of(*options: Callable[[random.Random], JsonObject]) -> Callable[[random.Random], JsonObject]:
    return lambda chance: chance.choice(options)(chance)


RESOURCE = "/apis/resource.k8s.io"
KINDS = (
    Kind("/api/v1", "configmaps", True,
         lambda chance: {"data": chance.choice(({}, {"k": "v"}, {"bad key": "v"}, {"k": 1}))},
         _one_of(_labels, lambda chance: {"data": {chance.choice("kl"): chance.choice(("v", None, "w"))}})),
    Kind("/api/v1", "pods", True, _pod,
         _one_of(_labels, lambda chance: {"spec": {"containers": [{"name": "c", "image": chance.choice(("i", "j", ""))}]}},
                 lambda chance: {"spec": {"activeDeadlineSeconds": chance.choice((5, -1))}})),
    Kind("/apis/coordination.k8s.io/v1", "leases", True,
         lambda chance: {"spec": chance.choice(({}, {"holderIdentity": "x", "leaseDurationSeconds": chance.choice((5, 0))}))},
         lambda chance: {"spec": {"holderIdentity": chance.choice(("x", "y", None)), "leaseTransitions": chance.choice((1, -1))}}),
    Kind("/apis/scheduling.k8s.io/v1", "priorityclasses", False,
         lambda chance: {"value": chance.choice((1, 5, 2_000_000_000)), "preemptionPolicy": chance.choice(("Never", "Odd"))},
         _one_of(_labels, lambda chance: {"value": chance.choice((1, 5))}, lambda chance: {"description": "d"})),
    Kind(f"{RESOURCE}/v1", "deviceclasses", False,
         lambda chance: {"spec": {"selectors": [{"cel": {"expression": chance.choice(("true", "1", 'device.driver == "a"'))}}]}},
         _one_of(_labels, lambda chance: {"spec": {"extendedResourceName": chance.choice(("a.test/x", "bad", None))}}),
         (f"{RESOURCE}/v1beta1", f"{RESOURCE}/v1beta2")),
    Kind(f"{RESOURCE}/v1", "resourceclaims", True, lambda chance: {"spec": _claim_spec(chance)},
         _one_of(_labels, lambda chance: {"spec": _claim_spec(chance)}, lambda chance: {"status": {"reservedFor": []}}), (f"{RESOURCE}/v1beta2",)),
    Kind(f"{RESOURCE}/v1beta1", "resourceclaims", True, lambda chance: {"spec": _claim_spec(chance, flat=True)}, _labels),
    Kind(f"{RESOURCE}/v1", "resourceclaimtemplates", True, lambda chance: {"spec": {"spec": _claim_spec(chance), **chance.choice(({}, _labels(chance)))}},
         _labels, (f"{RESOURCE}/v1beta2",)),
    Kind(f"{RESOURCE}/v1", "resourceslices", False, _slice, _one_of(_labels, _slice), (f"{RESOURCE}/v1beta2",)),
    Kind(f"{RESOURCE}/v1beta2", "devicetaintrules", False,
         lambda chance: {"spec": {"deviceSelector": {"driver": "a.test"}, "taint": {"key": chance.choice(("a.test/k", "")), "effect": chance.choice(("NoSchedule", "NoExecute", "Odd")), "timeAdded": "2026-01-01T00:00:00Z"}}},
         _one_of(_labels, lambda chance: {"spec": {"taint": {"effect": chance.choice(("None", "NoExecute"))}}}), (f"{RESOURCE}/v1alpha3",)),
)  # fmt: skip


class Walk:
    """Makes up requests; `steps` are the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # not a secret

    def steps(self) -> Iterator[Step]:
        for name in NAMESPACES:
            yield Step("POST", "/api/v1/namespaces", _constant({"metadata": {"name": name}}))
        actions = (
            (self._create, 30), (self._get, 10), (self._list, 10), (self._page, 8), (self._replace, 10),
            (self._patch, 14), (self._apply, 8), (self._delete, 7), (self._delete_many, 1), (self._odd, 2), (self._watch, 0.2),
        )  # fmt: skip
        choices, weights = zip(*actions, strict=True)
        while True:
            yield self.chance.choices(choices, weights)[0](self.chance.choice(KINDS))

    def _object(self, kind: Kind) -> tuple[str, str]:
        return kind.collection(self.chance), self.chance.choice(NAMES)

    def _create(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        metadata: JsonObject = {"name": name, "labels": self.chance.choice(LABELS)}
        if self.chance.random() < 0.1:
            metadata["finalizers"] = [self.chance.choice(("a.test/f", "bad"))]
        if self.chance.random() < 0.05:
            metadata["name"] = self.chance.choice(("", "Bad Name", "x" * 300))
        extra = {"unknown": 1} if self.chance.random() < 0.05 else {}
        body = {"metadata": metadata, **kind.make(self.chance), **extra}
        query = self.chance.choice(
            ("", "", "", "?dryRun=All", "?fieldValidation=Strict", "?fieldValidation=Ignore", "?dryRun=Some")
        )
        return Step("POST", path + query, _constant(body))

    def _get(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        accept = self.chance.choice(("", "", "", TABLE, METADATA_ONLY))
        return Step("GET", f"{path}/{name}", accept=accept)

    def _list(self, kind: Kind) -> Step:
        path = kind.collection(self.chance, every=True)
        query = self.chance.choice(
            ("", "?labelSelector=app", "?labelSelector=app%3Da", "?labelSelector=app+in+(a,b),!tier", "?labelSelector=(",
             "?fieldSelector=metadata.name%3Dn1", "?fieldSelector=metadata.name!%3Dn1", "?fieldSelector=spec.x%3D1", "?limit=0", "?limit=-1",
             "?resourceVersion=0", "?resourceVersion=x", "?resourceVersionMatch=Exact")
        )  # fmt: skip
        return Step("GET", path + query, accept=self.chance.choice(("", "", "", TABLE, METADATA_ONLY)))

    def _page(self, kind: Kind) -> Step:
        path = f"{kind.collection(self.chance)}?limit={self.chance.choice((1, 2, 3))}"

        def token(server: Server) -> str:
            found = server.continues.get(path)
            return f"&continue={quote(found)}" if found else ""

        return Step("GET", path, query=token)

    def _watch(self, kind: Kind) -> Step:
        path = kind.collection(self.chance)
        selector = self.chance.choice(("", "&labelSelector=app%3Da"))

        def since(server: Server) -> str:
            return f"&resourceVersion={server.versions.get(path, '0')}"

        bookmarks = self.chance.choice(("", "&allowWatchBookmarks=true"))
        return Step("GET", f"{path}?watch=1&timeoutSeconds=1{selector}{bookmarks}", query=since)

    def _replace(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        change, stale, where = kind.change(self.chance), self.chance.random(), f"{path}/{name}"
        suffix = (
            self.chance.choice(("", "", "", "/status"))
            if kind.plural in ("pods", "resourceclaims", "devicetaintrules")
            else ""
        )

        def body(server: Server) -> Any:
            found = server.current(where) or {"metadata": {"name": name}}
            changed = _merged(found, change)
            if stale < 0.15:
                changed["metadata"].pop("resourceVersion", None)
            elif stale < 0.3:
                changed["metadata"]["resourceVersion"] = "1"
            elif stale < 0.35:
                changed["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
            return changed

        return Step("PUT", where + suffix, body)

    def _patch(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        where = f"{path}/{name}" + (
            self.chance.choice(("", "", "/status")) if kind.plural in ("pods", "resourceclaims") else ""
        )
        media = self.chance.choice((MERGE, MERGE, STRATEGIC, JSON_PATCH))
        if media != JSON_PATCH:
            return Step("PATCH", where, _constant(kind.change(self.chance)), media)
        operation = self.chance.choice(
            ({"op": "add", "path": "/metadata/labels/z", "value": "1"}, {"op": "remove", "path": "/metadata/labels/app"},
             {"op": "replace", "path": "/metadata/labels", "value": {"r": "s"}}, {"op": "test", "path": "/metadata/name", "value": "n1"},
             {"op": "add", "path": "/metadata/finalizers", "value": []}, {"op": "odd", "path": "/"})
        )  # fmt: skip
        return Step("PATCH", where, _constant([operation]), media)

    def _apply(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        base = (
            kind.base
            if path.startswith(kind.base + "/")
            else path.split("/namespaces/")[0].rsplit("/" + kind.plural, 1)[0]
        )
        version = base.removeprefix("/apis/").removeprefix("/api/")
        body = {
            "apiVersion": version,
            "kind": KIND_NAMES[kind.plural],
            "metadata": {"name": name, "labels": self.chance.choice(LABELS)},
            **kind.make(self.chance),
        }
        manager, force = self.chance.choice(("one", "two")), self.chance.choice(("", "", "&force=true"))
        return Step("PATCH", f"{path}/{name}?fieldManager={manager}{force}", _constant(body), APPLY)

    def _delete(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        options = self.chance.choice(
            (
                None,
                None,
                {"gracePeriodSeconds": 0},
                {"propagationPolicy": "Foreground"},
                {"preconditions": {"uid": "x"}},
                {"dryRun": ["All"]},
                {"propagationPolicy": "Odd"},
            )
        )
        return Step("DELETE", f"{path}/{name}", _constant(options))

    def _delete_many(self, kind: Kind) -> Step:
        path = kind.collection(self.chance)
        return Step(
            "DELETE",
            path
            + self.chance.choice(
                ("?labelSelector=app%3Da", "?labelSelector=tier", "?fieldSelector=metadata.name%3Dn2")
            ),
        )

    def _odd(self, kind: Kind) -> Step:
        path, name = self._object(kind)
        return self.chance.choice(
            (
                Step("POST", path, _constant("{")), Step("POST", path, _constant("[]")), Step("POST", path, _constant({"kind": "Odd"})),
                Step("PUT", f"{path}/{name}", _constant({"metadata": {"name": "other"}})), Step("POST", f"{path}/{name}", _constant({})),
                Step("PATCH", f"{path}/{name}", _constant({}), "application/odd"), Step("GET", f"{path}/{name}/odd"), Step("PUT", path, _constant({})),
            )
        )  # fmt: skip


KIND_NAMES = {
    "configmaps": "ConfigMap", "pods": "Pod", "leases": "Lease", "priorityclasses": "PriorityClass", "deviceclasses": "DeviceClass",
    "resourceclaims": "ResourceClaim", "resourceclaimtemplates": "ResourceClaimTemplate", "resourceslices": "ResourceSlice",
    "devicetaintrules": "DeviceTaintRule",
}  # fmt: skip


def _constant(value: Any) -> Callable[[Server], Any]:
    return lambda server: value


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


@dataclass
class Report:
    """What a walk found."""

    requests: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    other_words: Counter[str] = field(default_factory=Counter)  # same code and causes, another text
    differences: list[JsonObject] = field(default_factory=list)


def walk(one: Server, other: Server, seed: int, requests: int, most_differences: int = 50) -> Report:
    """Walk until the number of requests is reached, or too many differ."""
    report = Report()
    for server in (one, other):
        for name in OWN_CLASSES:
            server.ask("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}", None, "", "")
    for step in Walk(seed).steps():
        if report.requests >= requests or len(report.differences) >= most_differences:
            break
        answers = [_play(server, step) for server in (one, other)]
        report.requests += 1
        report.codes[answers[0]["code"]] += 1
        if answers[0] == answers[1]:
            continue
        if without_words(answers[0]) == without_words(answers[1]):
            report.other_words[_words(answers)] += 1
            continue
        sent = json.dumps(step.body(one), default=str)[:600]
        report.differences.append(
            {
                "number": report.requests,
                "do": f"{step.method} {step.path}",
                "sent": sent,
                "one": answers[0],
                "other": answers[1],
            }
        )
    return report


def _play(server: Server, step: Step) -> JsonObject:
    path = step.path + step.query(server)
    code, body, warnings = server.ask(step.method, path, step.body(server), step.kind, step.accept)
    if "watch=1" in step.path and code == 200:
        events = [json.loads(line) for line in body.splitlines()]
        seen = [comparable(json.dumps(event).encode()) for event in events if event["type"] != "BOOKMARK"]
        if "resourceVersion=0" in path:
            seen.sort(key=json.dumps)  # of the first state there is no order
        return {"code": code, "body": seen, "warnings": warnings}
    if (
        step.method == "GET"
        and code == 200
        and "/walk" in path
        and step.path.count("?") == 0
        and not step.accept
    ):
        found = json.loads(body)
        if "items" in found:
            server.versions[step.path] = found["metadata"]["resourceVersion"]
    if step.method == "GET" and "limit=" in step.path and code == 200:
        token = (json.loads(body).get("metadata") or {}).get("continue") or ""
        server.continues[step.path] = token
    elif "limit=" in step.path:
        server.continues.pop(step.path, None)
    return {"code": code, "body": comparable(body), "warnings": warnings}


def without_words(answer: JsonObject) -> JsonObject:
    """Return an answer without the texts of errors and warnings."""
    body = answer["body"]
    if not isinstance(body, dict) or body.get("kind") != "Status":
        return {**answer, "warnings": len(answer["warnings"])}
    details = dict(body.get("details") or {})
    causes = [{**cause, "message": ""} for cause in details.get("causes") or ()]
    details["causes"] = sorted(causes, key=lambda cause: json.dumps(cause))
    return {**answer, "body": {**body, "message": "", "details": details}, "warnings": None}


def _words(answers: list[JsonObject]) -> str:
    texts = [
        str((answer["body"] if isinstance(answer["body"], dict) else {}).get("message") or answer["warnings"])
        for answer in answers
    ]
    return " | ".join(text[:300] for text in texts)


def main() -> None:
    """Walk over two running servers and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfigs", nargs=2, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    report = walk(*(Server(path) for path in options.kubeconfigs), options.seed, options.requests)
    for found in report.differences:
        print(json.dumps(found))
    print(
        f"{report.requests} requests, {len(report.differences)} differ, {sum(report.other_words.values())} in words",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
