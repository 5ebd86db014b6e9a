"""OpenAPI documents: complete, cached by hash, the same shapes as Kubernetes'."""

import doctest
import json

import pytest
from shared_data import shared

from dray.api.kinds import GROUP_VERSIONS, Kind
from dray.api.protobuf import read_field
from dray.api.schema import SchemaError, struct_of
from dray.server.openapi import operation_paths
from dray.server.openapi.discovery import Discovery
from dray.server.openapi.enum_values import enumerations
from dray.server.openapi.openapi_documents import OpenApi
from dray.server.openapi.swagger_protobuf import encode_document
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request

WIDGET = Kind("example.com", "Widget", "widgets", ("v1",), "v1", True)
CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
METHODS = {"get", "put", "post", "delete", "patch"}


def get(served, path, query=(), **headers):
    return served.respond(Request("GET", path, tuple(query), headers))


def references(value):
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref" and isinstance(item, str):
                yield item.rpartition("/")[2]
            else:
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


@pytest.fixture(scope="module")
def served():
    return OpenApi(Discovery())


def test_the_examples_hold():
    assert doctest.testmod(operation_paths).failed == 0


def test_every_document_of_the_index_is_whole(served):
    index = json.loads(get(served, "/openapi/v3").body)["paths"]
    assert {"api/v1", "apis/resource.k8s.io/v1beta1", "apis/apps", "apis/apiextensions.k8s.io/v1"} <= set(
        index
    )
    for entry in index.values():
        path, _, tag = entry["serverRelativeURL"].partition("?hash=")
        answer = get(served, path, [("hash", tag)])
        document = json.loads(answer.body)
        assert document["openapi"] == "3.0.0"
        assert set(references(document)) <= set(document["components"]["schemas"])
        assert dict(answer.headers)["Cache-Control"] == "public, immutable"


def test_operation_ids_are_unique(served):
    for name in ("api/v1", "apis/apps/v1", "apis/resource.k8s.io/v1"):
        identifiers = [
            operation["operationId"]
            for item in served.document(name)["paths"].values()
            for method, operation in item.items()
            if method in METHODS
        ]
        assert len(identifiers) == len(set(identifiers)) > 20


def test_a_stale_hash_is_sent_to_the_present_one_and_a_known_etag_saves_the_body(served):
    path = "/openapi/v3/apis/resource.k8s.io/v1"
    moved = get(served, path, [("hash", "OLD")])
    assert moved.status == 301
    assert dict(moved.headers)["Location"].startswith(f"{path}?hash=")
    tag = dict(get(served, path).headers)["ETag"]
    assert get(served, path, **{"if-none-match": tag}).status == 304


def test_unknown_documents_and_other_paths(served):
    assert get(served, "/openapi/v3/apis/no.such.group/v1").status == 404
    assert get(served, "/openapi/v3/apis/apps/v9").status == 404
    assert get(served, "/apis") is None


def members(message):
    """Return the fields of a message by number."""
    found, position = {}, 0
    while position < len(message):
        number, value, position = read_field(message, position)
        found.setdefault(number, []).append(value)
    return found


def pairs(message, inner):
    """Return a map that is written as (name, value) pairs."""
    return {each[1][0].decode(): each[2][0] for each in map(members, members(message)[inner])}


@pytest.mark.parametrize("sign", ["@", "."])
def test_kubectl_gets_the_second_version_in_protobuf(served, sign):
    answer = get(
        served, "/openapi/v2", accept=f"application/com.github.proto-openapi.spec.v2{sign}v1.0+protobuf"
    )
    assert answer.content_type == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    as_json = get(served, "/openapi/v2")
    assert dict(answer.headers)["ETag"] == dict(as_json.headers)["ETag"]
    expected, document = json.loads(as_json.body), members(answer.body)
    assert document[1] == [b"2.0"]
    assert list(pairs(document[8][0], 2)) == list(expected["paths"])
    definitions = pairs(document[9][0], 1)
    assert list(definitions) == list(expected["definitions"])
    pod = members(definitions["io.k8s.api.core.v1.Pod"])
    assert list(pairs(pod[25][0], 1)) == list(expected["definitions"]["io.k8s.api.core.v1.Pod"]["properties"])
    schema = pairs(members(definitions[f"{CRD}.JSONSchemaProps"])[25][0], 1)
    assert {"oneOf", "allOf", "default", "nullable", "$ref"} <= set(schema)  # names, not keywords
    extensions = {each[1][0]: members(each[2][0])[2][0] for each in map(members, pod[31])}
    kinds = json.loads(extensions[b"x-kubernetes-group-version-kind"])
    assert kinds == [{"group": "", "kind": "Pod", "version": "v1"}]


def test_every_form_of_a_parameter_and_a_schema_has_its_field():
    schema = {
        "type": "object", "minimum": 1.5, "maxLength": 300, "readOnly": True, "uniqueItems": False,
        "additionalProperties": True, "enum": ["a", 1], "unknown": 1, "allOf": [{"$ref": "#/definitions/x"}],
    }  # fmt: skip
    body = {"in": "body", "name": "body", "schema": schema, "x-own": {"a": None}}
    parameters = [body, {"in": "path", "name": "n", "type": "string"}, {"$ref": "#/parameters/p"}]
    written = members(
        encode_document({"paths": {"/x": {"parameters": parameters}}, "parameters": {"p": body}})
    )
    listed = [members(each) for each in members(pairs(written[8][0], 2)["/x"])[9]]
    body_message = members(members(listed[0][1][0])[1][0])
    found = members(body_message[5][0])
    assert found == {
        22: [b"\x0a\x06object"], 9: [0x3FF8000000000000], 11: [300], 27: [1], 21: [b"\x10\x01"],
        20: [b'\x12\x04"a"\n', b"\x12\x021\n"], 24: [b"\x0a\x0f#/definitions/x"],
    }  # fmt: skip
    assert members(body_message[6][0])[2] == [b'\x12\x0b{"a":null}\n']
    path = members(members(members(listed[1][1][0])[2][0])[4][0])
    assert path == {2: [b"path"], 4: [b"n"], 5: [b"string"]}
    assert members(listed[2][2][0]) == {1: [b"#/parameters/p"]}
    assert members(pairs(written[10][0], 1)["p"])[1] == members(listed[0][1][0])[1]


def test_other_media_types_of_the_second_version_are_406(served):
    assert get(served, "/openapi/v2", accept="text/html").status == 406
    assert get(served, "/openapi/v2", accept="text/html, */*").content_type == "application/json"
    with pytest.raises(ApiError) as caught:
        get(served, "/openapi/v3/api/v1", accept="application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
    assert caught.value.code == 406


def test_patches_tell_that_fields_are_validated_and_dry_runs_work(served):
    item = served.document("apis/resource.k8s.io/v1")["paths"][
        "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
    ]
    names = {parameter["name"] for parameter in item["patch"]["parameters"] if parameter["in"] == "query"}
    assert {"fieldValidation", "dryRun", "fieldManager", "force"} <= names
    assert item["patch"]["x-kubernetes-group-version-kind"]["kind"] == "ResourceClaim"


@pytest.mark.parametrize("name", ["api/v1", "apis/apps/v1", "apis/resource.k8s.io/v1"])
def test_every_patch_of_a_kind_knows_field_validation(served, name):
    document = served.document(name)
    kinds = set()
    for item in document["paths"].values():
        patch = item.get("patch")
        if patch is None or patch["x-kubernetes-action"] == "connect":
            continue
        kinds.add(patch["x-kubernetes-group-version-kind"]["kind"])
        assert "fieldValidation" in {parameter["name"] for parameter in patch["parameters"]}
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict) and operation.get("x-kubernetes-action") == "connect":
                assert operation["x-kubernetes-group-version-kind"]["kind"] not in kinds


def test_schemas_tell_how_lists_merge(served):
    schemas = served.document("apis/resource.k8s.io/v1")["components"]["schemas"]
    reserved = schemas["io.k8s.api.resource.v1.ResourceClaimStatus"]["properties"]["reservedFor"]
    assert reserved["x-kubernetes-list-map-keys"] == ["uid"]
    assert (reserved["x-kubernetes-list-type"], reserved["x-kubernetes-patch-merge-key"]) == ("map", "uid")
    requests = schemas["io.k8s.api.resource.v1.DeviceClaim"]["properties"]["requests"]
    assert requests["x-kubernetes-list-type"] == "atomic"
    kinds = schemas["io.k8s.api.resource.v1.ResourceClaim"]["x-kubernetes-group-version-kind"]
    assert kinds == [{"group": "resource.k8s.io", "kind": "ResourceClaim", "version": "v1"}]


def test_the_second_version_says_the_same_in_its_own_way(served):
    document = json.loads(get(served, "/openapi/v2").body)
    assert document["swagger"] == "2.0"
    assert set(references(document)) <= set(document["definitions"])
    assert document["definitions"]["io.k8s.apimachinery.pkg.api.resource.Quantity"]["type"] == "string"
    create = document["paths"]["/apis/resource.k8s.io/v1/deviceclasses"]["post"]
    assert create["parameters"][0]["schema"]["$ref"] == "#/definitions/io.k8s.api.resource.v1.DeviceClass"
    options = document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]
    assert len(options["x-kubernetes-group-version-kind"]) > 10


def test_custom_kinds_appear_change_and_vanish():
    discovery, schemas = Discovery(), {"size": {"type": "integer"}}
    served = OpenApi(discovery, lambda kind, version: {"type": "object", "properties": dict(schemas)})
    discovery.use_custom_kinds([WIDGET])

    def entry():
        return json.loads(get(served, "/openapi/v3").body)["paths"].get("apis/example.com/v1")

    first = entry()["serverRelativeURL"]
    document = json.loads(get(served, "/openapi/v3/apis/example.com/v1").body)
    widget = document["components"]["schemas"]["com.example.v1.Widget"]
    assert set(widget["properties"]) == {"apiVersion", "kind", "metadata", "size"}
    assert set(references(document)) <= set(document["components"]["schemas"])
    assert "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}" in document["paths"]
    schemas["colour"] = {"type": "string"}
    discovery.use_custom_kinds([WIDGET])
    assert entry()["serverRelativeURL"] != first
    discovery.use_custom_kinds([])
    assert entry() is None


def shape(schema):
    found = {}
    for name, prop in schema.get("properties", {}).items():
        target = prop.get("$ref") or next((part.get("$ref") for part in prop.get("allOf", [])), None)
        found[name] = target or ":".join(filter(None, [prop.get("type"), prop.get("format")]))
    kinds = schema.get("x-kubernetes-group-version-kind")
    return {"properties": found, "required": sorted(schema.get("required", [])), "kinds": kinds}


def test_documents_agree_with_the_recorded_ones(served):
    recorded = {
        s["story"]: s
        for s in map(json.loads, shared("vectors/api/recorded/visible.jsonl").read_text().splitlines())
    }
    corpus = [
        json.loads(line) for line in shared("vectors/api/corpus/visible.jsonl").read_text().splitlines()
    ]
    compared = 0
    for story in corpus:
        if story["theme"] != "openapi":
            continue
        for step, answer in zip(story["steps"], recorded[story["story"]]["answers"], strict=True):
            view = step.get("view", {})
            document = served.document(step["path"].removeprefix("/openapi/v3/"))
            if document is None:
                continue
            if view.get("name") == "openapi_schema":
                assert shape(document["components"]["schemas"][view["schema"]]) == answer["body"], view[
                    "schema"
                ]
            elif view.get("name") == "openapi_paths":
                paths = {
                    path: sorted(METHODS & set(item))
                    for path, item in document["paths"].items()
                    if view["contains"] in path
                }
                assert paths == answer["body"]
            compared += 1
    assert compared >= 20


def test_words_of_fixed_lists_are_told(served):
    schemas = served.document("apis/resource.k8s.io/v1")["components"]["schemas"]
    taint = schemas["io.k8s.api.resource.v1.DeviceTaint"]["properties"]["effect"]
    assert taint["enum"] == ["NoExecute", "NoSchedule", "None"]
    skipped = schemas["io.k8s.api.resource.v1.ResourceSliceSpec"]["properties"]["skipNodeOperations"]
    assert skipped["items"]["enum"] == ["*", "NodePrepareResources", "NodeUnprepareResources"]


def test_every_fixed_list_belongs_to_a_field():
    for (file, struct, name), words in enumerations().items():
        versions = {version for group_version in GROUP_VERSIONS.values() for version in group_version}
        fields = set()
        for version in versions:
            try:
                fields |= set(struct_of(file, version, struct).fields)
            except SchemaError:
                continue
        assert name in fields, f"{file}.{struct}.{name}"
        assert len(words) == len(set(words)) > 1
