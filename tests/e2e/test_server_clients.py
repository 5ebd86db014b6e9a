"""Client libraries that know nothing of dray work against its server unchanged."""

import threading
from pathlib import Path

import pytest
from server_process import serving

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]

BODY = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
}
MERGE = "application/merge-patch+json"


def test_the_official_client_creates_lists_watches_and_patches(tmp_path: Path) -> None:
    kubernetes = pytest.importorskip("kubernetes")
    with serving(tmp_path, "--in-memory") as server:
        kubernetes.config.load_kube_config(str(server.kubeconfig))
        core, custom = kubernetes.client.CoreV1Api(), kubernetes.client.CustomObjectsApi()
        assert "default" in [item.metadata.name for item in core.list_namespace().items]
        claims = ("resource.k8s.io", "v1", "default", "resourceclaims")
        made = custom.create_namespaced_custom_object(*claims, BODY)
        version = made["metadata"]["resourceVersion"]
        seen = []

        def watch() -> None:
            stream = kubernetes.watch.Watch().stream(
                custom.list_namespaced_custom_object, *claims, resource_version=version, timeout_seconds=60
            )
            for event in stream:
                seen.append((event["type"], event["object"]["metadata"].get("labels")))
                return

        watcher = threading.Thread(target=watch)
        watcher.start()
        custom.patch_namespaced_custom_object(*claims, "c", {"metadata": {"labels": {"a": "b"}}})
        watcher.join(60)
        assert seen == [("MODIFIED", {"a": "b"})]
        with pytest.raises(kubernetes.client.ApiException) as refused:
            custom.create_namespaced_custom_object(*claims, BODY)
        assert refused.value.status == 409


async def test_an_asyncio_client_creates_lists_watches_and_patches(tmp_path: Path) -> None:
    library = pytest.importorskip("kubernetes_asyncio")
    with serving(tmp_path, "--in-memory") as server:
        await library.config.load_kube_config(str(server.kubeconfig))
        async with library.client.ApiClient() as api:
            core = library.client.CoreV1Api(api)
            made = await core.create_namespaced_config_map(
                "default", {"metadata": {"name": "m"}, "data": {"a": "1"}}
            )
            listed = await core.list_namespaced_config_map("default")
            assert [item.metadata.name for item in listed.items] == ["m"]
            await core.patch_namespaced_config_map("m", "default", {"data": {"a": "2"}})
            async with library.watch.Watch().stream(
                core.list_namespaced_config_map,
                "default",
                resource_version=made.metadata.resource_version,
                timeout_seconds=60,
            ) as stream:
                async for event in stream:
                    assert (event["type"], event["object"].data) == ("MODIFIED", {"a": "2"})
                    break
