"""Kubernetes protobuf bodies, encoded here by hand from the published field numbers."""

import pytest
from server_cluster import running_cluster

from dray.api.protobuf import read_field
from dray.api.schema import schema_of
from dray.server.requests.protobuf_answers import _scalar, encode_object
from dray.server.requests.protobuf_bodies import (
    MAGIC,
    MEDIA_TYPE,
    ProtobufError,
    decode_object,
    open_envelope,
)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def envelope(api_version: str, kind: str, message: bytes) -> bytes:
    return MAGIC + text(1, text(1, api_version) + text(2, kind)) + text(2, message)


def test_a_pod_is_read_by_its_field_numbers() -> None:
    entry = text(1, "app") + text(2, "x")
    metadata = text(1, "p") + text(11, entry)
    container = text(1, "c") + text(2, "image:1")
    volume = text(1, "v") + text(2, text(2, b""))  # the source is a message inlined in JSON: emptyDir
    spec = text(1, volume) + text(2, container) + number(4, 30) + number(5, -1)
    body = envelope("v1", "Pod", text(1, metadata) + text(2, spec))
    pod = decode_object(schema_of("", "v1", "Pod"), body)
    assert pod["metadata"] == {"name": "p", "labels": {"app": "x"}}
    assert pod["spec"]["containers"] == [{"name": "c", "image": "image:1"}]
    assert pod["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]
    assert (pod["spec"]["terminationGracePeriodSeconds"], pod["spec"]["activeDeadlineSeconds"]) == (30, -1)


@pytest.mark.parametrize(
    "body",
    [b"", b"nope", MAGIC + b"\xff", envelope("v1", "Pod", b"\x0a\x7f"), envelope("v1", "Pod", b"\x0b")],
)
def test_what_is_no_message_is_refused(body) -> None:
    with pytest.raises(ProtobufError):
        decode_object(schema_of("", "v1", "Pod"), body)


async def test_a_namespace_can_be_created_from_protobuf() -> None:
    async with running_cluster() as client:
        body = envelope("v1", "Namespace", text(1, text(1, "made")))
        made = await client.call("POST", "/api/v1/namespaces", body, content=MEDIA_TYPE)
        assert (made.code, made.json["metadata"]["name"]) == (201, "made")
        broken = await client.call("POST", "/api/v1/namespaces", MAGIC + b"\xff", content=MEDIA_TYPE)
        assert broken.code == 400


# --- answers --------------------------------------------------------------------------


OBJECTS = [
    (
        "", "v1", "Pod",
        {
            "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z", "generation": 3},
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}, "ports": [{"containerPort": 80}]}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "secret": {"secretName": "s", "defaultMode": 420}}],
                "tolerations": [{"key": "k", "tolerationSeconds": -1}],
            },
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}]},
        },
    ),
    ("coordination.k8s.io", "v1", "Lease", {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-02T03:04:05.678901Z", "leaseDurationSeconds": 5}}),
    ("", "v1", "Secret", {"metadata": {"name": "s"}, "data": {"k": "dmFsdWU="}}),
    (
        "resource.k8s.io", "v1", "ResourceSlice",
        {
            "metadata": {"name": "r"},
            "spec": {
                "driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "allNodes": True,
                "devices": [{"name": "x", "attributes": {"a": {"int": 5}, "b": {"bool": False}, "c": {"version": "1.0.0"}}, "capacity": {"m": {"value": "1Gi"}}}],
            },
        },
    ),
    ("policy", "v1", "PodDisruptionBudget", {"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "maxUnavailable": 1}}),
    (
        "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy",
        {"metadata": {"name": "a"}, "spec": {"matchConstraints": {"resourceRules": [{"resourceNames": ["n"], "operations": ["*"], "apiGroups": [""], "scope": "*"}]}}},
    ),
]  # fmt: skip


def without_nothing(value: object) -> object:
    """Leave out what the wire does not tell from absence: null, and structs that say nothing."""
    if isinstance(value, dict):
        kept = {name: without_nothing(item) for name, item in value.items() if item is not None}
        return {name: item for name, item in kept.items() if item != {} or name == "emptyDir"}
    if isinstance(value, list):
        return [without_nothing(item) for item in value]
    return value


@pytest.mark.parametrize(
    ("group", "version", "kind", "obj"), OBJECTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_written_is_read_again(group, version, kind, obj) -> None:
    schema = schema_of(group, version, kind)
    api_version = f"{group}/{version}" if group else version
    whole = {"kind": kind, "apiVersion": api_version, **obj}
    assert without_nothing(decode_object(schema, encode_object(schema, whole))) == without_nothing(whole)


def list_items(body: bytes) -> list[bytes]:
    _, _, message = open_envelope(body)
    found, position = [], 0
    while position < len(message):
        field, value, position = read_field(message, position)
        if field == 2:
            found.append(value)
    return found


async def test_a_client_that_accepts_only_protobuf_gets_it() -> None:
    async with running_cluster() as client:
        path = "/apis/resource.k8s.io/v1beta1/deviceclasses"
        schema = schema_of("resource.k8s.io", "v1beta1", "DeviceClass")
        made = await client.call("POST", path, {"metadata": {"name": "c"}}, accept=MEDIA_TYPE)
        assert made.code == 201
        assert decode_object(schema, made.body)["metadata"]["name"] == "c"
        found = await client.call("GET", f"{path}/c", accept=MEDIA_TYPE)
        assert decode_object(schema, found.body)["apiVersion"] == "resource.k8s.io/v1beta1"
        listed = await client.call("GET", path, accept=MEDIA_TYPE)
        assert open_envelope(listed.body)[:2] == ("resource.k8s.io/v1beta1", "DeviceClassList")
        assert len(list_items(listed.body)) == 1
        both = await client.call("GET", f"{path}/c", accept=f"{MEDIA_TYPE},application/json")
        assert both.json["metadata"]["name"] == "c"
        custom = await client.call(
            "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", accept=MEDIA_TYPE
        )
        assert custom.code == 406


async def test_a_watch_in_protobuf_is_a_row_of_frames() -> None:
    async with running_cluster() as client:
        path = "/api/v1/namespaces/default/configmaps"
        await client.call("POST", path, {"metadata": {"name": "m"}, "data": {"a": "b"}})
        response = await client._respond(
            "GET", f"{path}?watch=1&timeoutSeconds=1", None, "", "admin", MEDIA_TYPE
        )
        frame = await anext(aiter(response.body))
        await response.body.aclose()
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        kind, _, end = read_field(frame[4:], 0)[0], *read_field(frame[4:], 0)[1:]
        assert (kind, read_field(frame[4:], 0)[1]) == (1, b"ADDED")
        raw = read_field(read_field(frame[4:], end)[1], 0)[1]
        assert decode_object(schema_of("", "v1", "ConfigMap"), raw)["data"] == {"a": "b"}


@pytest.mark.parametrize(
    ("kind", "nulls", "empty"),
    [
        ("ConfigMap", {"data": {"a": None}, "binaryData": {"b": None}}, {"data": {"a": ""}, "binaryData": {"b": ""}}),
        ("Secret", {"data": {"a": None}}, {"data": {"a": ""}}),
        ("Pod", {"spec": {"containers": [None]}}, {"spec": {"containers": [{}]}}),
        ("Pod", {"metadata": {"finalizers": [None]}}, {"metadata": {"finalizers": [""]}}),
    ],
)  # fmt: skip
def test_a_null_in_a_map_or_a_list_is_written_as_an_empty_value(kind, nulls, empty) -> None:
    schema = schema_of("", "v1", kind)
    whole = {"kind": kind, "apiVersion": "v1"}
    assert encode_object(schema, {**whole, **nulls}) == encode_object(schema, {**whole, **empty})


@pytest.mark.parametrize("kind", ["time", "microtime", "duration"])
def test_a_null_time_in_a_map_is_an_empty_message(kind) -> None:
    assert _scalar(2, kind, None) == b"\x12\x00"
