"""pods/resourceclaims: claims of a running pod come and go; what may not is refused with the reason."""

import pytest
from server_cluster import pod, running_cluster

from dray.api.features import DEVICES_AFTER_POD_START, Features

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = f"{PODS}/p/resourceclaims"
MERGE = "application/merge-patch+json"


def entry(name, claim=None):
    return {"name": name, "resourceClaimName": claim or name}


async def start(client, *, phase="Running", declares=(DEVICES_AFTER_POD_START,), **spec):
    """Bind a pod to a node and let it run."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    await client.call("POST", "/api/v1/nodes", node)
    await client.call(
        "PATCH", "/api/v1/nodes/n/status", {"status": {"declaredFeatures": list(declares)}}, content=MERGE
    )
    made = await client.call("POST", PODS, pod(nodeName="n", **spec))
    assert made.code == 201, made.body
    await client.call("PATCH", f"{PODS}/p/status", {"status": {"phase": phase}}, content=MERGE)


async def change(client, *entries):
    body = {"spec": {"resourceClaims": list(entries)}}
    return await client.call("PATCH", CLAIMS, body, content=MERGE)


async def test_a_claim_is_added_and_removed_and_the_generation_counts_it():
    async with running_cluster() as client:
        await start(client)
        added = await change(client, entry("net"))
        assert added.code == 200, added.body
        assert added.json["spec"]["resourceClaims"] == [entry("net")]
        assert added.json["metadata"]["generation"] == 2
        assert added.json["status"]["phase"] == "Running"
        removed = await client.call("PATCH", CLAIMS, {"spec": {"resourceClaims": None}}, content=MERGE)
        assert "resourceClaims" not in removed.json["spec"]
        assert removed.json["metadata"]["generation"] == 3


async def test_nothing_but_the_claims_changes():
    async with running_cluster() as client:
        await start(client)
        body = {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"resourceClaims": [entry("net")], "containers": [{"name": "c", "image": "other:1"}]},
            "status": {"phase": "Failed"},
        }
        answer = await client.call("PATCH", CLAIMS, body, content=MERGE)
        assert answer.code == 200, answer.body
        assert answer.json["spec"]["containers"][0]["image"] == "image:1"
        assert answer.json["status"]["phase"] == "Running"
        assert "labels" not in answer.json["metadata"]


async def test_a_plain_update_still_may_not_change_claims():
    async with running_cluster() as client:
        await start(client)
        answer = await client.call(
            "PATCH", f"{PODS}/p", {"spec": {"resourceClaims": [entry("net")]}}, content=MERGE
        )
        assert answer.code == 422


async def test_without_the_gate_the_path_does_not_exist():
    features = Features.everything().switched(off=[DEVICES_AFTER_POD_START])
    async with running_cluster(features=features) as client:
        await start(client)
        assert (await change(client, entry("net"))).code == 404
        assert (await client.call("GET", CLAIMS)).code == 404
        assert (await client.call("GET", f"{PODS}/p/status")).code == 200


@pytest.mark.parametrize(
    ("settings", "before", "after", "reason"),
    [
        ({"phase": "Pending"}, [], [entry("net")], "claims of a pod change only while it runs; this one is Pending"),
        ({"phase": "Succeeded"}, [], [entry("net")], "this one is Succeeded"),
        ({"declares": ()}, [], [entry("net")], "node n does not declare DRADevicesAfterPodStart"),
        (
            {},
            [],
            [{"name": "net", "resourceClaimTemplateName": "t"}],
            "a running pod is given claims by resourceClaimName, not from a template",
        ),
        ({}, [entry("a")], [entry("a", "other")], "none be changed"),
        ({}, [entry("a", "net")], [entry("a", "net"), entry("b", "net")], "the pod has this claim already"),
        ({}, [], [entry(f"n{number}") for number in range(33)], "must have at most 32 items"),
        ({}, [], [entry("a"), entry("a", "b")], "Duplicate value"),
        (
            {},
            [{"name": "a", "resourceClaimTemplateName": "t"}],
            [],
            "a claim that was made from a template ends with its pod",
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_with_the_reason(settings, before, after, reason):
    async with running_cluster() as client:
        await start(client, **settings, **({"resourceClaims": before} if before else {}))
        answer = await change(client, *after)
        assert answer.code == 422, answer.body
        assert reason in answer.json["message"]


async def test_a_claim_that_a_container_refers_to_stays():
    container = {"name": "c", "image": "image:1", "resources": {"claims": [{"name": "a"}]}}
    async with running_cluster() as client:
        await start(client, resourceClaims=[entry("a")], containers=[container])
        answer = await change(client)
        assert answer.code == 422
        assert "container c refers to it, so it ends with its pod" in answer.json["message"]


async def test_a_pod_that_is_being_deleted_gets_nothing():
    async with running_cluster() as client:
        await start(client)
        await client.call("DELETE", f"{PODS}/p")
        answer = await change(client, entry("net"))
        assert "the pod is being deleted" in answer.json["message"]


async def test_who_may_not_is_refused():
    async with running_cluster() as client:
        await start(client)
        answer = await client.call(
            "PATCH", CLAIMS, {"spec": {"resourceClaims": [entry("a")]}}, content=MERGE, token="guest"
        )
        assert answer.code == 403
        assert 'cannot patch resource "pods/resourceclaims"' in answer.json["message"]
