"""Rows of tables are kept by resourceVersion: never out of date, whatever changes."""

from datetime import UTC, datetime, timedelta

from server_cluster import CLAIMS, MERGE, claim, pod, running_cluster

from dray.server.requests.calls import Environment

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PODS = "/api/v1/namespaces/default/pods"


async def rows(client, target, accept=TABLE):
    reply = await client.call("GET", target, accept=accept)
    assert reply.code == 200
    return reply.json["rows"]


class Clock:
    """Stands still until it is moved."""

    def __init__(self):
        self.time = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)

    def now(self):
        return self.time


async def test_a_kept_row_grows_older_and_is_the_row_of_the_object():
    clock = Clock()
    async with running_cluster(environment=Environment(now=clock.now)) as client:
        for number in range(3):
            assert (await client.call("POST", CLAIMS, claim(f"c{number}"))).code == 201
        first = await rows(client, CLAIMS)
        assert [row["cells"] for row in first] == [[f"c{number}", "pending", "0s"] for number in range(3)]
        clock.time += timedelta(seconds=150)
        second = await rows(client, CLAIMS)
        assert [row["cells"][2] for row in second] == ["2m30s"] * 3
        one = await rows(client, f"{CLAIMS}/c1")  # made without the cache
        assert second[1] == one[0]
        assert second[1]["object"]["metadata"] == (await client.call("GET", f"{CLAIMS}/c1")).json["metadata"]


async def test_a_changed_object_has_a_new_row_and_a_removed_one_none():
    async with running_cluster() as client:
        for name in "ab":
            await client.call("POST", CLAIMS, claim(name))
        await rows(client, CLAIMS)
        change = {"metadata": {"labels": {"x": "y"}, "finalizers": ["example.com/keep"]}}
        assert (await client.call("PATCH", f"{CLAIMS}/a", change, content=MERGE)).code == 200
        await client.call("DELETE", f"{CLAIMS}/a")
        await client.call("DELETE", f"{CLAIMS}/b")
        (row,) = await rows(client, CLAIMS)
        assert row["cells"][:2] == ["a", "deleted"]
        assert row["object"]["metadata"]["labels"] == {"x": "y"}


async def test_forms_of_a_row_are_kept_apart():
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("a"))
        older = CLAIMS.replace("/v1/", "/v1beta1/")
        for _ in range(2):
            assert (await rows(client, CLAIMS))[0]["object"]["apiVersion"] == "meta.k8s.io/v1"
            assert (await rows(client, f"{CLAIMS}?includeObject=None"))[0]["object"] is None
            shown = (await rows(client, f"{older}?includeObject=Object"))[0]["object"]
            assert shown["apiVersion"] == "resource.k8s.io/v1beta1"
            beta = await rows(client, CLAIMS, TABLE.replace("v=v1", "v=v1beta1"))
            assert beta[0]["object"]["apiVersion"] == "meta.k8s.io/v1beta1"
        refused = await client.call("GET", f"{CLAIMS}?includeObject=Some", accept=TABLE)
        assert refused.code == 400


async def test_a_row_with_conditions_and_a_time_within_a_text():
    clock = Clock()
    async with running_cluster(environment=Environment(now=clock.now)) as client:
        await client.call("POST", PODS, pod("p"))
        ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-03-04T05:06:00Z"}}
        container = {
            "name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 3,
            "state": {"waiting": {"reason": 'Crash"Loop'}}, "lastState": ended,
        }  # fmt: skip
        status = {"status": {"phase": "Failed", "containerStatuses": [container]}}
        assert (await client.call("PATCH", f"{PODS}/p/status", status, content=MERGE)).code == 200
        for seconds, restarts in ((0, "3 (7s ago)"), (10, "3 (17s ago)")):
            clock.time += timedelta(seconds=seconds)
            (row,) = await rows(client, PODS)
            assert row["cells"][:4] == ["p", "0/1", 'Crash"Loop', restarts]
            assert row["conditions"][0]["reason"] == "Failed"
            assert row == (await rows(client, f"{PODS}/p"))[0]


async def test_columns_of_a_custom_kind_may_change_while_its_objects_do_not():
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [column],
    }  # fmt: skip
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "names": names, "scope": "Cluster", "versions": [version]},
    }  # fmt: skip
    async with running_cluster() as client:
        assert (await client.call("POST", definitions, definition)).code == 201
        widget = {
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "w"},
            "spec": {"size": 3},
        }
        assert (await client.call("POST", "/apis/example.com/v1/widgets", widget)).code == 201
        assert (await rows(client, "/apis/example.com/v1/widgets"))[0]["cells"] == ["w", 3]
        column["type"] = "string"
        change = {"spec": {"versions": [version]}}
        target = f"{definitions}/widgets.example.com"
        assert (await client.call("PATCH", target, change, content=MERGE)).code == 200
        assert (await rows(client, "/apis/example.com/v1/widgets"))[0]["cells"] == ["w", "3"]
