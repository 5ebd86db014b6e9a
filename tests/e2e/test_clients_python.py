"""The Python clients, verb by verb: the official one and one for asyncio, against `dray server`.

Both know nothing of dray. Each goes through the life of typed objects: create, list with
selectors, pages, three sorts of patches, conflicts, watch from a version, delete.
"""

import base64
from pathlib import Path

import pytest
from server_process import serving

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "labels": {"app": "x"}},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
}
POD = {
    "metadata": {"name": "p", "labels": {"app": "x"}},
    "spec": {
        "containers": [{"name": "main", "image": "registry.example/a", "env": [{"name": "A", "value": "1"}]}]
    },
}
MERGE, STRATEGIC, JSON = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
)
CLAIMS = ("resource.k8s.io", "v1", "default", "resourceclaims")


@pytest.fixture
def server(tmp_path: Path):
    with serving(tmp_path, "--in-memory", "--disable-admission-plugins", "ServiceAccount") as served:
        yield served


class TestOfficialClient:
    @pytest.fixture
    def api(self, server):
        kubernetes = pytest.importorskip("kubernetes")
        kubernetes.config.load_kube_config(str(server.kubeconfig))
        with kubernetes.client.ApiClient() as client:
            yield kubernetes, client

    @pytest.fixture
    def core(self, api):
        return api[0].client.CoreV1Api(api[1])

    def test_lists_come_in_pages_and_by_selectors(self, core):
        for number in range(5):
            body = {"metadata": {"name": f"m-{number}", "labels": {"odd": str(number % 2)}}}
            core.create_namespaced_config_map("default", body)
        first = core.list_namespaced_config_map("default", limit=3)
        rest = core.list_namespaced_config_map("default", limit=3, _continue=first.metadata._continue)
        assert [item.metadata.name for item in first.items + rest.items] == [f"m-{i}" for i in range(5)]
        assert first.metadata.remaining_item_count == 2
        odd = core.list_namespaced_config_map("default", label_selector="odd=1")
        assert [item.metadata.name for item in odd.items] == ["m-1", "m-3"]
        one = core.list_config_map_for_all_namespaces(field_selector="metadata.name=m-4")
        assert [item.metadata.name for item in one.items] == ["m-4"]

    def test_a_strategic_patch_merges_lists_by_name(self, core):
        core.create_namespaced_pod("default", POD)
        image = {"spec": {"containers": [{"name": "main", "image": "registry.example/b"}]}}
        patched = core.patch_namespaced_pod("p", "default", image, _content_type=STRATEGIC)
        container = patched.spec.containers[0]
        assert (container.image, container.env[0].value) == ("registry.example/b", "1")

    def test_a_merge_patch_replaces_and_removes(self, core):
        core.create_namespaced_config_map(
            "default", {"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}}
        )
        patched = core.patch_namespaced_config_map(
            "m", "default", {"data": {"a": None, "c": "3"}}, _content_type=MERGE
        )
        assert patched.data == {"b": "2", "c": "3"}

    def test_a_json_patch_runs_its_operations_or_none(self, api, core):
        core.create_namespaced_config_map("default", {"metadata": {"name": "m"}, "data": {"a": "1"}})
        steps = [
            {"op": "test", "path": "/data/a", "value": "1"},
            {"op": "move", "from": "/data/a", "path": "/data/b"},
        ]
        assert core.patch_namespaced_config_map("m", "default", steps, _content_type=JSON).data == {"b": "1"}
        with pytest.raises(api[0].client.ApiException) as refused:
            core.patch_namespaced_config_map("m", "default", steps, _content_type=JSON)
        assert refused.value.status == 422

    def test_an_update_of_an_old_version_conflicts(self, api, core):
        made = core.create_namespaced_config_map("default", {"metadata": {"name": "m"}})
        made.data = {"a": "1"}
        core.replace_namespaced_config_map("m", "default", made)
        with pytest.raises(api[0].client.ApiException) as refused:
            core.replace_namespaced_config_map("m", "default", made)
        assert (refused.value.status, '"reason":"Conflict"' in refused.value.body) == (409, True)

    def test_a_watch_tells_the_life_of_an_object(self, api, core):
        version = core.list_namespaced_secret("default").metadata.resource_version
        core.create_namespaced_secret("default", {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
        core.patch_namespaced_secret("s", "default", {"stringData": {"k": "w"}}, _content_type=MERGE)
        core.delete_namespaced_secret("s", "default")
        stream = (
            api[0]
            .watch.Watch()
            .stream(core.list_namespaced_secret, "default", resource_version=version, timeout_seconds=3)
        )
        life = [(event["type"], base64.b64decode(event["object"].data["k"]).decode()) for event in stream]
        assert life == [("ADDED", "v"), ("MODIFIED", "w"), ("DELETED", "w")]

    def test_claims_have_a_typed_client_where_the_library_knows_them(self, api):
        kubernetes, client = api
        if not hasattr(kubernetes.client, "ResourceV1Api"):
            pytest.skip("this version of the client has no resource.k8s.io/v1")
        claims = kubernetes.client.ResourceV1Api(client)
        claims.create_namespaced_resource_claim("default", CLAIM)
        listed = claims.list_namespaced_resource_claim("default", label_selector="app=x").items
        request = listed[0].spec.devices.requests[0].exactly
        assert (request.device_class_name, request.allocation_mode, request.count) == ("gpu", "ExactCount", 1)
        labelled = claims.patch_namespaced_resource_claim(
            "c", "default", {"metadata": {"labels": {"app": "y"}}}, _content_type=STRATEGIC
        )
        assert labelled.metadata.labels == {"app": "y"}
        claims.delete_namespaced_resource_claim("c", "default")
        assert claims.list_namespaced_resource_claim("default").items == []

    def test_the_dynamic_client_discovers_kinds(self, api):
        from kubernetes.dynamic import DynamicClient

        dynamic = DynamicClient(api[1])
        claims = dynamic.resources.get(api_version="resource.k8s.io/v1beta1", kind="ResourceClaim")
        claims.create(body={**CLAIM, "apiVersion": "resource.k8s.io/v1beta1",
                            "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}}},
                      namespace="default")  # fmt: skip
        newest = dynamic.resources.get(api_version="resource.k8s.io/v1", kind="ResourceClaim")
        found = newest.get(name="c", namespace="default")
        assert found.spec.devices.requests[0].exactly.deviceClassName == "gpu"


class TestAsyncioClient:
    @pytest.fixture
    async def library(self, server):
        library = pytest.importorskip("kubernetes_asyncio")
        await library.config.load_kube_config(str(server.kubeconfig))
        async with library.client.ApiClient() as client:
            yield library, client

    async def test_the_life_of_a_pod(self, library):
        library, client = library
        core = library.client.CoreV1Api(client)
        version = (await core.list_namespaced_pod("default")).metadata.resource_version
        await core.create_namespaced_pod("default", POD)
        labels = {"metadata": {"labels": {"step": "merge"}}}
        await core.patch_namespaced_pod("p", "default", labels, _content_type=MERGE)
        image = {"spec": {"containers": [{"name": "main", "image": "registry.example/b"}]}}
        await core.patch_namespaced_pod("p", "default", image, _content_type=STRATEGIC)
        steps = [{"op": "remove", "path": "/metadata/labels/step"}]
        patched = await core.patch_namespaced_pod("p", "default", steps, _content_type=JSON)
        assert patched.metadata.labels == {"app": "x"}
        await core.delete_namespaced_pod("p", "default", grace_period_seconds=0)
        events = []
        async with library.watch.Watch().stream(
            core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=3
        ) as stream:
            async for event in stream:
                pod = event["object"]
                events.append(
                    (event["type"], pod.metadata.labels.get("step"), pod.spec.containers[0].image[-1])
                )
        assert events[:4] == [
            ("ADDED", None, "a"), ("MODIFIED", "merge", "a"), ("MODIFIED", "merge", "b"), ("MODIFIED", None, "b")
        ]  # fmt: skip
        assert events[-1][0] == "DELETED"

    async def test_custom_objects_and_errors(self, library):
        library, client = library
        custom = library.client.CustomObjectsApi(client)
        await custom.create_namespaced_custom_object(*CLAIMS, CLAIM)
        listed = await custom.list_namespaced_custom_object(*CLAIMS, label_selector="app=x")
        assert [item["metadata"]["name"] for item in listed["items"]] == ["c"]
        with pytest.raises(library.client.ApiException) as refused:
            await custom.create_namespaced_custom_object(*CLAIMS, CLAIM)
        assert refused.value.status == 409
        await custom.delete_namespaced_custom_object(*CLAIMS, "c")
        with pytest.raises(library.client.ApiException) as missing:
            await custom.get_namespaced_custom_object(*CLAIMS, "c")
        assert missing.value.status == 404
