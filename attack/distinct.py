"""Many requests with long texts that are all different: what remembers texts of clients must be bounded in bytes, not in number only.

Each sort of text is sent often enough to fill a cache with entries as long as they get. What
the server still holds after a moment of quiet is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attack.bombs.building import CLAIMS, CORE, SLICES, send
from attack.vocabulary import JSON
from attack.wire import Request

LONG = 60_000  # characters in a head
DRY = "?dryRun=All"


def _pod(number: int, **container: Any) -> Request:
    spec = {"containers": [{"name": "c", "image": "i", **container}]}
    return send("POST", f"{CORE}/pods{DRY}", {"metadata": {"name": f"p{number}"}, "spec": spec})


def _claim(number: int, expression: str) -> Request:
    selectors = [
        {"cel": {"expression": expression.replace("@", f"{number}{place:02d}")}} for place in range(32)
    ]
    exactly = {"deviceClassName": "a", "selectors": selectors}
    return send(
        "POST",
        CLAIMS + DRY,
        {
            "metadata": {"name": f"c{number}"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        },
    )


def distinct() -> Iterator[tuple[str, Iterator[Request]]]:
    """Yield (name, requests) of each sort of text."""
    wide = " || ".join(['device.attributes["a.example.com"].b@ == 1'] * 190)
    pattern = 'device.driver.matches("' + "a" * 3_000 + '@")'
    spec = {"driver": "a.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1}}
    yield "paths", (Request("GET", f"{CORE}/configmaps/{number}" + "a" * LONG) for number in range(1_200))
    yield (
        "queries",
        (
            Request("GET", f"{CORE}/configmaps?labelSelector=a%3D{number}" + "a" * LONG)
            for number in range(600)
        ),
    )
    yield (
        "write queries",
        (
            send("POST", f"{CORE}/configmaps?dryRun=All&x={number}{'a' * LONG}", {"metadata": {"name": "x"}})
            for number in range(1_200)
        ),
    )
    yield (
        "accepts",
        (
            Request("GET", f"{CORE}/configmaps/a0", {"Accept": f"application/json;a={number}" + "a" * LONG})
            for number in range(400)
        ),
    )
    yield (
        "content types",
        (
            send("POST", f"{CORE}/configmaps{DRY}", {}, f"{JSON};a={number}" + "a" * LONG)
            for number in range(400)
        ),
    )
    yield (
        "tokens",
        (Request("GET", f"{CORE}/configmaps/a0", token=f"a{number}" + "a" * LONG) for number in range(400)),
    )
    yield (
        "label keys",
        (
            send(
                "POST",
                f"{CORE}/configmaps{DRY}",
                {"metadata": {"name": "x", "labels": {f"a{number}" + "a" * 2_000_000: "b"}}},
            )
            for number in range(80)
        ),
    )
    yield (
        "quantities",
        (
            _pod(number, resources={"limits": {"cpu": f"{'0' * 2_000_000}{number + 1}"}})
            for number in range(80)
        ),
    )
    yield "versions", (
        send("POST", SLICES + DRY, {"metadata": {"name": "v"}, "spec": {**spec, "devices": [{"name": "d", "attributes": {"v": {"version": f"1.0.{number}-" + "a" * 1_000_000}}}]}})
        for number in range(120)
    )  # fmt: skip
    yield (
        "times",
        (
            send(
                "POST",
                f"{CORE}/configmaps{DRY}",
                {
                    "metadata": {
                        "name": "t",
                        "creationTimestamp": f"2026-01-02T03:04:05.{number}" + "0" * 1_000_000 + "Z",
                    }
                },
            )
            for number in range(120)
        ),
    )
    yield (
        "images",
        (
            _pod(number, imagePullPolicy="Always", command=[f"{number}" + "x" * 1_000_000])
            for number in range(120)
        ),
    )
    yield "expressions", (_claim(number, wide) for number in range(150))
    yield "patterns", (_claim(number, pattern) for number in range(60))
    yield (
        "managers",
        (
            send(
                "POST",
                f"{CORE}/configmaps?dryRun=All&fieldManager=m{number}",
                {"metadata": {"name": "x"}, "data": {f"k{number}": "x" * 500_000}},
            )
            for number in range(150)
        ),
    )
    yield (
        "config maps",
        (
            send(
                "POST",
                f"{CORE}/configmaps{DRY}",
                {"metadata": {"name": f"x{number}"}, "data": {f"k{number}x{n}": "v" for n in range(20_000)}},
            )
            for number in range(60)
        ),
    )
