"""Kubernetes' protobuf: bytes that Go wrote are understood, and nothing hostile gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.codec import ParseError, read
from dray.api.protobuf import MAGIC, decode_protobuf, encode_protobuf
from dray.api.raw_json import RawJson
from dray.api.schema import schema_of

POD = schema_of("", "v1", "Pod")

# Written by k8s.io/apimachinery v0.37.1's serializer.
GO_POD = bytes.fromhex(
    "6b3873000a090a0276311203506f6412cf010a210a017012001a0022002a0032003800420808a5ebdcca0610005a060a0161"
    "1201621294010a0b0a017612060a040a022f7812530a01631201692a00420f0a0d0a0363707512060a043530306d52280a13"
    "12110a001209080110001a037765621a0022001000180020ffffffffffffffffff01280030006a0072008001008801009001"
    "00a201001a00320042004a0052005800600068008201008a01009a0100b201130a0012001a00220028fbffffffffffffffff"
    "01c201001a130a001a0022002a0032004a005a0072008801001a002200"
)
GO_CLAIM = bytes.fromhex(
    "6b3873000a230a127265736f757263652e6b38732e696f2f7631120d5265736f75726365436c61696d12430a110a01631200"
    "1a0022002a00320038004200122c0a2a0a0c0a017212070a01641a0020021a1a12180a160a017812110a0f7b2262223a2031"
    "2c202261223a327d1a001a002200"
)
GO_LEASE = bytes.fromhex(
    "6b3873000a1f0a16636f6f7264696e6174696f6e2e6b38732e696f2f763112054c6561736512230a110a016c12001a002200"
    "2a00320038004200120e220c08a5ebdcca061088eadcc3021a002200"
)
GO_REVIEW = bytes.fromhex(
    "6b3873000a2e0a17617574686f72697a6174696f6e2e6b38732e696f2f763112135375626a65637441636365737352657669"
    "657712300a100a0012001a0022002a0032003800420012121a01752a0b0a016b12060a01760a017732001a08080012001a00"
    "20001a002200"
)


def test_a_pod_from_go_is_read_with_its_inlined_parts():
    obj, complaints = read(POD, decode_protobuf(POD, GO_POD))
    assert complaints == []
    assert (obj["kind"], obj["apiVersion"]) == ("Pod", "v1")
    assert obj["metadata"] == {"name": "p", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"}}
    spec = obj["spec"]
    assert spec["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}
    assert spec["containers"][0]["livenessProbe"] == {"httpGet": {"port": "web"}, "periodSeconds": -1}
    assert spec["tolerations"] == [{"tolerationSeconds": -5}]


def test_raw_parts_keep_their_bytes():
    claim = schema_of("resource.k8s.io", "v1", "ResourceClaim")
    devices = read(claim, decode_protobuf(claim, GO_CLAIM))[0]["spec"]["devices"]
    assert devices["requests"] == [{"name": "r", "exactly": {"deviceClassName": "d", "count": 2}}]
    assert devices["config"][0]["opaque"]["parameters"] == RawJson(b'{"b": 1, "a":2}')


def test_micro_times_and_lists_in_maps():
    lease = schema_of("coordination.k8s.io", "v1", "Lease")
    assert read(lease, decode_protobuf(lease, GO_LEASE))[0]["spec"] == {
        "renewTime": "2026-01-02T03:04:05.678901Z"
    }
    review = schema_of("authorization.k8s.io", "v1", "SubjectAccessReview")
    assert read(review, decode_protobuf(review, GO_REVIEW))[0]["spec"] == {
        "user": "u",
        "extra": {"k": ["v", "w"]},
    }


@pytest.mark.parametrize(
    ("group", "kind", "data"),
    [("", "Pod", GO_POD), ("resource.k8s.io", "ResourceClaim", GO_CLAIM), ("coordination.k8s.io", "Lease", GO_LEASE),
     ("authorization.k8s.io", "SubjectAccessReview", GO_REVIEW)],
)  # fmt: skip
def test_what_is_written_reads_the_same(group, kind, data):
    schema = schema_of(group, "v1", kind)
    obj, _ = read(schema, decode_protobuf(schema, data))
    assert read(schema, decode_protobuf(schema, encode_protobuf(schema, obj)))[0] == obj


def test_packed_lists_are_read_too():
    resource_slice = schema_of("resource.k8s.io", "v1", "ResourceSlice")
    spec = {"driver": "d", "pool": {"name": "p", "generation": 0, "resourceSliceCount": 0}}
    obj = {
        **read(
            resource_slice,
            {"spec": {**spec, "devices": [{"name": "x", "attributes": {"a": {"ints": [1, 2]}}}]}},
        )[0]
    }
    unpacked = encode_protobuf(resource_slice, obj)
    packed = unpacked.replace(b"\x30\x01\x30\x02", b"\x32\x02\x01\x02")
    assert packed != unpacked
    assert decode_protobuf(resource_slice, packed)["spec"]["devices"][0]["attributes"] == {
        "a": {"ints": [1, 2]}
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        MAGIC + b"\xff",
        MAGIC + b"\x12\x7f",
        MAGIC + b"\x00\x00",
        MAGIC + b"\x13",
        GO_POD[:-20],
        MAGIC + b"\x12" + b"\xff" * 11,
    ],
)
def test_damage_is_a_parse_error(data):
    with pytest.raises(ParseError):
        decode_protobuf(POD, data)


def test_definitions_of_custom_resources_are_refused():
    with pytest.raises(ParseError, match="send JSON"):
        decode_protobuf(schema_of("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), MAGIC)


@given(st.binary(max_size=60), st.integers(0, len(GO_POD)))
def test_any_bytes_are_an_object_or_a_parse_error(noise, at):
    try:
        found = decode_protobuf(POD, GO_POD[:at] + noise + GO_POD[at + len(noise) :])
    except ParseError:
        return
    assert isinstance(found, dict)
