"""Patches that multiply, and managed fields."""

from __future__ import annotations

from collections.abc import Iterator

from attack.bombs.building import CORE, Bomb, send
from attack.vocabulary import APPLY, JSON_PATCH, MERGE, STRATEGIC


def patches() -> Iterator[Bomb]:
    """Patches that multiply, and patches that look at everything for each of their parts."""
    target = f"{CORE}/configmaps/a0?dryRun=All"
    for copies in (10, 20, 23, 26, 40):
        operations = [{"op": "add", "path": "/data", "value": {"a": ["x"] * 16}}]
        operations += [{"op": "copy", "from": "/data/a", "path": "/data/a/-"} for _ in range(copies)]
        yield f"json patch copies into itself x {copies}", send("PATCH", target, operations, JSON_PATCH)
        doubling = [{"op": "add", "path": "/data", "value": {"a": "x" * 100}}]
        doubling += [{"op": "copy", "from": "/data", "path": f"/data/b{n}"} for n in range(copies)]
        yield f"json patch copies the whole x {copies}", send("PATCH", target, doubling, JSON_PATCH)
    large = [{"op": "add", "path": "/data", "value": {"a": "x" * 1_000_000}}]
    large += [{"op": "copy", "from": "/data/a", "path": f"/data/b{n}"} for n in range(1_000)]
    yield "json patch copies a large text", send("PATCH", target, large, JSON_PATCH)
    for count in (9_999, 60_000):
        yield (
            f"json patch tests x {count}",
            send("PATCH", target, [{"op": "test", "path": "/data", "value": {}}] * count, JSON_PATCH),
        )
        yield (
            f"json patch inserts x {count}",
            send(
                "PATCH",
                target,
                [{"op": "add", "path": "/metadata/finalizers", "value": []}]
                + [{"op": "add", "path": "/metadata/finalizers/0", "value": "a"}] * count,
                JSON_PATCH,
            ),
        )
        yield (
            f"json patch moves x {count}",
            send(
                "PATCH",
                target,
                [{"op": "add", "path": "/data/a", "value": ["x"] * 10_000}]
                + [{"op": "move", "from": "/data/a/0", "path": "/data/a/-"}] * count,
                JSON_PATCH,
            ),
        )
    tests = [
        {"op": "add", "path": "/data/a", "value": ["x"] * 100_000},
        *([{"op": "test", "path": "/data", "value": {"a": ["x"] * 10}}] * 100),
    ]
    yield "json patch compares", send("PATCH", target, tests, JSON_PATCH)
    yield (
        "json pointer",
        send("PATCH", target, [{"op": "add", "path": "/a" * 1_000_000, "value": 1}], JSON_PATCH),
    )
    yield (
        "json pointer escapes",
        send("PATCH", target, [{"op": "add", "path": "/" + "~1" * 1_000_000, "value": 1}], JSON_PATCH),
    )
    containers = [{"name": f"c{n}", "image": "i"} for n in range(20_000)]
    order = [{"name": each["name"]} for each in containers]
    pod = f"{CORE}/pods/a0?dryRun=All"
    yield "strategic list", send("PATCH", pod, {"spec": {"containers": containers}}, STRATEGIC)
    yield (
        "strategic order",
        send(
            "PATCH",
            pod,
            {"spec": {"$setElementOrder/containers": order, "containers": containers[:10_000]}},
            STRATEGIC,
        ),
    )
    yield (
        "strategic order reversed",
        send(
            "PATCH",
            pod,
            {"spec": {"$setElementOrder/containers": order[::-1], "containers": containers[:10_000]}},
            STRATEGIC,
        ),
    )
    yield (
        "strategic deletes",
        send(
            "PATCH",
            pod,
            {"spec": {"containers": [{"name": f"c{n}", "$patch": "delete"} for n in range(30_000)]}},
            STRATEGIC,
        ),
    )
    yield (
        "strategic primitives",
        send(
            "PATCH",
            f"{CORE}/configmaps/a0?dryRun=All",
            {
                "metadata": {
                    "$deleteFromPrimitiveList/finalizers": [f"a/{n}" for n in range(100_000)],
                    "finalizers": [f"a/b{n}" for n in range(100_000)],
                }
            },
            STRATEGIC,
        ),
    )
    yield (
        "strategic retain",
        send("PATCH", pod, {"spec": {"$retainKeys": [f"k{n}" for n in range(200_000)]}}, STRATEGIC),
    )
    applied = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a0"},
        "spec": {"containers": containers},
    }
    yield "apply list", send("PATCH", f"{CORE}/pods/a0?fieldManager=m&force=true&dryRun=All", applied, APPLY)
    applied["spec"] = {"containers": [{"name": "c", "image": "i"}] * 40_000}
    yield (
        "apply same key",
        send("PATCH", f"{CORE}/pods/a0?fieldManager=m&force=true&dryRun=All", applied, APPLY),
    )
    data = {f"k{n}": "v" for n in range(40_000)}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wide"}, "data": data}
    yield "apply many fields", send("PATCH", f"{CORE}/configmaps/wide?fieldManager=m", config, APPLY)
    yield (
        "apply many conflicts",
        send(
            "PATCH",
            f"{CORE}/configmaps/wide?fieldManager=other",
            {**config, "data": dict.fromkeys(data, "w")},
            APPLY,
        ),
    )
    yield (
        "merge many fields",
        send("PATCH", f"{CORE}/configmaps/wide", {"data": dict.fromkeys(data, None)}, MERGE),
    )
    entries = [
        {
            "manager": f"m{n}",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {f"f:k{n}": {}}},
        }
        for n in range(15_000)
    ]
    yield (
        "many managers",
        send(
            "POST",
            f"{CORE}/configmaps",
            {"metadata": {"name": "managers", "managedFields": entries}, "data": {"a": "b"}},
        ),
    )
    yield (
        "many managers, updated",
        send("PATCH", f"{CORE}/configmaps/managers?fieldManager=x", {"data": {"a": "c"}}, MERGE),
    )
    fields = {"f:data": {f"f:k{n}": {} for n in range(100_000)}}
    wide = [
        {
            "manager": "m",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
    ]
    yield (
        "wide managed fields",
        send("POST", f"{CORE}/configmaps", {"metadata": {"name": "widefields", "managedFields": wide}}),
    )
