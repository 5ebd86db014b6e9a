"""Discovery documents: legacy, aggregated, negotiated, with custom kinds."""

import doctest
import json

import pytest
from shared_data import shared

from dray.api.kinds import Kind, Subresource
from dray.server.openapi import discovery
from dray.server.openapi.discovery import AGGREGATED_TYPE, Discovery
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request

WIDGET = Kind(
    group="example.com",
    kind="Widget",
    plural="widgets",
    versions=("v1", "v1alpha1"),
    storage_version="v1",
    namespaced=True,
    short_names=("wd",),
    subresources=(Subresource("status"),),
)


def get(served, path, accept="", **headers):
    answer = served.respond(Request("GET", path, headers={"accept": accept, **headers}))
    return answer and (json.loads(answer.body) if answer.body else None)


def test_the_examples_hold():
    assert doctest.testmod(discovery).failed == 0


def test_groups_list_their_versions_in_order_of_priority():
    groups = {group["name"]: group for group in get(Discovery(), "/apis")["groups"]}
    versions = [version["version"] for version in groups["resource.k8s.io"]["versions"]]
    assert versions == ["v1", "v1beta2", "v1beta1", "v1alpha3"]
    assert groups["resource.k8s.io"]["preferredVersion"]["groupVersion"] == "resource.k8s.io/v1"
    assert get(Discovery(), "/apis/resource.k8s.io")["kind"] == "APIGroup"


def test_a_group_version_lists_resources_and_subresources():
    found = {entry["name"]: entry for entry in get(Discovery(), "/api/v1")["resources"]}
    assert found["pods"]["storageVersionHash"] == "xPOwRZ+Yhw8="
    assert found["pods"]["shortNames"] == ["po"]
    assert (found["pods/eviction"]["group"], found["pods/eviction"]["kind"]) == ("policy", "Eviction")
    assert "group" not in found["pods/binding"]
    assert found["pods/status"]["singularName"] == ""
    assert "storageVersionHash" not in found["bindings"]


def test_unknown_groups_versions_and_deeper_paths_are_not_discovery():
    for path in (
        "/apis/none",
        "/apis/apps/v2",
        "/api/v2",
        "/apis/apps/v1/deployments",
        "/apis//v1",
        "/metrics",
    ):
        assert Discovery().respond(Request("GET", path)) is None


def test_trailing_slashes_do_not_matter():
    assert get(Discovery(), "/apis/")["kind"] == "APIGroupList"
    assert get(Discovery(), "/version/")["minor"] == "37"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "APIGroupList"),
        ("*/*", "APIGroupList"),
        (AGGREGATED_TYPE, "APIGroupDiscoveryList"),
        (
            f"{AGGREGATED_TYPE},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
            "APIGroupDiscoveryList",
        ),
        (
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
            "APIGroupList",
        ),
        ("application/vnd.kubernetes.protobuf,application/json", "APIGroupList"),
        (f"{AGGREGATED_TYPE};q=0.5,application/json", "APIGroupList"),
    ],
)
def test_the_accept_header_chooses_the_form(accept, kind):
    assert get(Discovery(), "/apis", accept)["kind"] == kind


@pytest.mark.parametrize(
    "accept",
    [
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        "application/*",
        "text/html",
    ],
)
def test_other_media_types_are_406(accept):
    with pytest.raises(ApiError) as caught:
        Discovery().respond(Request("GET", "/apis", headers={"accept": accept}))
    assert caught.value.code == 406


def test_a_matching_etag_saves_the_body():
    served = Discovery()
    first = served.respond(Request("GET", "/apis", headers={"accept": AGGREGATED_TYPE}))
    tag = dict(first.headers)["ETag"]
    again = served.respond(Request("GET", "/apis", headers={"accept": AGGREGATED_TYPE, "if-none-match": tag}))
    assert (again.status, again.body) == (304, b"")


def test_custom_kinds_come_and_go():
    served = Discovery()
    before = served.respond(Request("GET", "/apis", headers={"accept": AGGREGATED_TYPE}))
    served.use_custom_kinds([WIDGET])
    groups = {item["metadata"].get("name"): item for item in get(served, "/apis", AGGREGATED_TYPE)["items"]}
    (resource,) = groups["example.com"]["versions"][0]["resources"]
    assert resource["responseKind"]["kind"] == "Widget"
    assert [entry["name"] for entry in get(served, "/apis/example.com/v1alpha1")["resources"]] == [
        "widgets",
        "widgets/status",
    ]
    assert ("example.com", "v1") in served.group_versions()
    served.use_custom_kinds([])
    after = served.respond(Request("GET", "/apis", headers={"accept": AGGREGATED_TYPE}))
    assert after.body == before.body


def test_the_root_lists_paths():
    paths = get(Discovery(), "/")["paths"]
    assert {"/api/v1", "/apis/resource.k8s.io/v1", "/metrics", "/openapi/v3"} <= set(paths)


def test_answers_agree_with_recorded_aggregated_discovery():
    recorded = [
        json.loads(line) for line in shared("vectors/api/recorded/visible.jsonl").read_text().splitlines()
    ]
    corpus = [
        json.loads(line) for line in shared("vectors/api/corpus/visible.jsonl").read_text().splitlines()
    ]
    steps = next(story["steps"] for story in corpus if story["story"] == "discovery-aggregated")
    answers = next(story["answers"] for story in recorded if story["story"] == "discovery-aggregated")
    compared = 0
    for step, answer in zip(steps, answers, strict=True):
        wanted = step["view"].get("version")
        if answer["code"] != 200 or not wanted:
            continue
        document = get(Discovery(), step["path"], step["headers"]["Accept"])
        item = next(i for i in document["items"] if i["metadata"].get("name", "") == step["view"]["group"])
        version = next(v for v in item["versions"] if v["version"] == wanted)
        ours = {entry["resource"]: entry for entry in version["resources"]}
        for name, entry in answer["body"]["versions"][wanted]["resources"].items():
            assert ours[name] == entry
            compared += 1
    assert compared > 15
