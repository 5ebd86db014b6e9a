"""Server-side apply across versions, with empty lists, and with values that cannot be read: as kube-apiserver answers."""

import pytest
from server_cluster import APPLY, running_cluster

RESOURCE = "/apis/resource.k8s.io"
PODS = "/api/v1/namespaces/default/pods"
SPEC = {"selectors": [{"cel": {"expression": "true"}}]}


def device_class(version: str, labels: dict[str, str]) -> dict:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceClass",
        "metadata": {"name": "x", "labels": labels},
        "spec": SPEC,
    }


def resource_slice(devices: list) -> dict:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {"driver": "a.test", "pool": pool, "nodeName": "n", "devices": devices},
    }


def pod(image: str, cpu: str | None = None) -> dict:
    resources = {"requests": {"cpu": cpu}} if cpu else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": image, "resources": resources}]},
    }


async def apply(client, path, manager, config, code=200):
    answer = await client.call("PATCH", f"{path}?fieldManager={manager}", config, content=APPLY)
    assert answer.code == code, answer.json
    return answer.json


async def test_what_was_applied_in_one_version_and_is_not_named_in_another_is_removed():
    async with running_cluster() as client:
        await apply(client, f"{RESOURCE}/v1/deviceclasses/x", "one", device_class("v1", {"app": "a"}), 201)
        other = device_class("v1beta2", {"tier": "y"})
        found = await apply(client, f"{RESOURCE}/v1beta2/deviceclasses/x", "one", other)
        assert found["metadata"]["labels"] == {"tier": "y"}


async def test_what_another_manager_applied_in_another_version_stays():
    async with running_cluster() as client:
        both = {"app": "a", "tier": "y"}
        await apply(client, f"{RESOURCE}/v1/deviceclasses/x", "one", device_class("v1", both), 201)
        mine = device_class("v1beta1", {"app": "a"})
        await apply(client, f"{RESOURCE}/v1beta1/deviceclasses/x", "two", mine)
        found = await apply(client, f"{RESOURCE}/v1beta2/deviceclasses/x", "one", device_class("v1beta2", {}))
        assert found["metadata"]["labels"] == {"app": "a"}
        assert found["spec"] == SPEC


async def test_labels_that_an_apply_empties_are_nobodys_in_other_versions():
    # Upstream compares in each version that somebody wrote, and an empty map does not survive the conversion.
    classes = f"{RESOURCE}/v1beta1/deviceclasses"
    async with running_cluster() as client:
        created = await client.call(
            "POST", f"{classes}?fieldManager=walker", device_class("v1beta1", {"tier": "x"})
        )
        assert created.code == 201
        path = f"{RESOURCE}/v1/deviceclasses/x"
        forced = await client.call(
            "PATCH", f"{path}?fieldManager=two&force=true", device_class("v1", {"tier": "y"}), content=APPLY
        )
        owners = {each["manager"]: each["fieldsV1"] for each in forced.json["metadata"]["managedFields"]}
        assert owners["walker"] == {"f:metadata": {"f:labels": {}}, "f:spec": {"f:selectors": {}}}
        emptied = await apply(
            client, f"{RESOURCE}/v1beta2/deviceclasses/x", "two", device_class("v1beta2", {})
        )
        owners = {each["manager"]: each["fieldsV1"] for each in emptied["metadata"]["managedFields"]}
        assert owners["walker"] == {"f:spec": {"f:selectors": {}}}
        assert owners["two"]["f:metadata"] == {"f:labels": {}}
        again = await apply(client, path, "two", device_class("v1", {"tier": "y"}))
        assert again["metadata"]["labels"] == {"tier": "y"}


@pytest.mark.parametrize("is_new", [True, False])
async def test_an_empty_list_of_a_slice_is_owned_but_not_stored(is_new):
    path = f"{RESOURCE}/v1/resourceslices/s"
    async with running_cluster() as client:
        if not is_new:
            await client.call("POST", f"{RESOURCE}/v1/resourceslices", resource_slice([]))
        found = await apply(client, path, "one", resource_slice([]), 201 if is_new else 200)
        assert "devices" not in found["spec"]
        assert found["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:devices"] == {}
        refused = await apply(client, path, "two", resource_slice([{"name": "d"}]), 409)
        assert [cause["field"] for cause in refused["details"]["causes"]] == [".spec.devices"]


async def test_conflicts_are_told_before_a_quantity_that_cannot_be_read():
    async with running_cluster() as client:
        await client.call("POST", PODS, pod("i"))
        refused = await apply(client, f"{PODS}/p", "one", pod("j", "x"), 409)
        assert [cause["field"] for cause in refused["details"]["causes"]] == [
            '.spec.containers[name="c"].image'
        ]
        failed = await apply(client, f"{PODS}/p", "one", pod("i", "x"), 500)
        assert failed["message"].startswith(
            "failed to convert new object (/p; /v1, Kind=Pod) to proper version: "
            "unable to convert unstructured object to /v1, Kind=Pod: quantities must match"
        )
        kept = (await client.call("GET", f"{PODS}/p")).json
        assert kept["spec"]["containers"][0]["image"] == "i"
