"""Versions that are switched off are absent everywhere: paths, discovery, OpenAPI."""

from server_cluster import running_cluster

from dray.api.features import Features
from dray.api.runtime_config import parse_runtime_config

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


async def test_pod_groups_exist_only_with_their_gate():
    async with running_cluster(features=Features.default()) as client:
        assert (await client.call("GET", GROUPS)).code == 404
        assert (await client.call("GET", "/apis/scheduling.k8s.io/v1beta1")).code == 404
        group = (await client.call("GET", "/apis/scheduling.k8s.io")).json
        assert [each["version"] for each in group["versions"]] == ["v1"]
        assert "apis/scheduling.k8s.io/v1beta1" not in (await client.call("GET", "/openapi/v3")).json["paths"]
    async with running_cluster(features=Features.default().switched(on=["GenericWorkload"])) as client:
        assert (await client.call("GET", GROUPS)).json["kind"] == "PodGroupList"


async def test_a_group_without_versions_is_an_unknown_path_and_a_version_an_unknown_resource():
    config = parse_runtime_config(["batch/v1=false,resource.k8s.io/v1beta1=false"])
    async with running_cluster(runtime_config=config) as client:
        gone = await client.call("GET", "/apis/batch/v1/jobs")
        assert (gone.code, gone.body) == (404, b"404 page not found\n")
        older = await client.call("GET", "/apis/resource.k8s.io/v1beta1/resourceslices")
        assert older.json["message"] == "the server could not find the requested resource"
        assert (await client.call("GET", "/apis/resource.k8s.io/v1beta2/resourceslices")).code == 200
        groups = (await client.call("GET", "/apis")).json["groups"]
        assert "batch" not in {group["name"] for group in groups}
