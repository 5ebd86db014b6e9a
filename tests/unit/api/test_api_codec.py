"""Bodies to objects, objects to bytes, and views of both."""

import copy
import gc
import json
import pickle
import weakref

import pytest

from dray.api.codec import (
    DecodeError,
    ParseError,
    compact_raw,
    decode,
    decode_body,
    decode_list,
    decode_stored,
    encode,
    open_raw,
    read,
    to_view,
)
from dray.api.parsing import parse_json
from dray.api.raw_json import RawJson
from dray.api.reading import drop_empty
from dray.api.resource import ResourceClaim, ResourceSlice
from dray.api.schema import schema_of

CLAIM = schema_of("resource.k8s.io", "v1", "ResourceClaim")
SLICE = schema_of("resource.k8s.io", "v1", "ResourceSlice")
POD = schema_of("", "v1", "Pod")
LEASE = schema_of("coordination.k8s.io", "v1", "Lease")


def body_of(obj):
    return json.dumps(obj).encode()


def claim_with(exactly, **spec):
    return {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}], **spec}}}


def test_unknown_and_duplicate_fields_are_reported_by_path_and_dropped():
    body = b"""{"metadata": {"name": "a", "name": "b", "colour": 1},
               "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceclassname": "x"}}]}, "colour": 2}}"""
    obj, complaints = decode_body(CLAIM, body)
    assert complaints == [
        'duplicate field "metadata.name"',
        'unknown field "metadata.colour"',
        'unknown field "spec.devices.requests[0].exactly.deviceclassname"',
        'unknown field "spec.colour"',
    ]
    assert obj["metadata"] == {"name": "b"}
    assert obj["spec"]["devices"]["requests"] == [{"name": "r", "exactly": {"deviceClassName": ""}}]


def test_fields_of_map_values_are_named_with_their_key():
    obj = {"spec": {"devices": [{"name": "d", "attributes": {"model": {"text": "x"}}}]}}
    assert read(SLICE, obj)[1] == ['unknown field "spec.devices[0].attributes.model.text"']


def test_null_is_absent_and_empty_is_left_out():
    obj, _ = decode_body(
        CLAIM, b'{"metadata": {"labels": {}, "annotations": null}, "spec": {"devices": {"requests": null}}}'
    )
    assert obj == {"metadata": {}, "spec": {"devices": {"requests": None}}, "status": {}}
    for body in (b"null", b"{}"):
        assert decode_body(CLAIM, body)[0] == obj


def test_null_items_become_zero_values():
    obj, _ = decode_body(
        CLAIM, b'{"spec": {"devices": {"requests": [null]}}, "metadata": {"labels": {"a": null}}}'
    )
    assert obj["spec"]["devices"]["requests"] == [{"name": ""}]
    assert obj["metadata"]["labels"] == {"a": ""}


def test_zero_and_absent_differ_behind_a_pointer():
    request = decode_body(CLAIM, body_of(claim_with({"adminAccess": False, "count": 0})))[0]["spec"][
        "devices"
    ]["requests"][0]
    assert request["exactly"] == {"adminAccess": False, "deviceClassName": ""}


@pytest.mark.parametrize(
    ("exactly", "complaint"),
    [
        ({"count": "1"}, "string into Go struct field ExactDeviceRequest.spec.devices.requests.exactly.count of type int64"),
        ({"count": 2.0}, "number 2.0 into Go struct field"),
        ({"count": 2**63}, "number 9223372036854775808 into Go struct field"),
        ({"count": True}, "bool into Go struct field"),
        ({"selectors": {}}, "object into Go struct field ExactDeviceRequest.spec.devices.requests.exactly.selectors of type"),
        ({"capacity": {"requests": {"a": "lots"}}}, "quantities must match"),
        ({"capacity": {"requests": {"a": True}}}, "quantities must match"),
    ],
)  # fmt: skip
def test_wrong_types_are_refused_in_gos_words(exactly, complaint):
    with pytest.raises(DecodeError, match=complaint):
        decode_body(CLAIM, body_of(claim_with(exactly)))


def test_the_top_must_be_an_object_with_a_kind_that_is_text():
    with pytest.raises(DecodeError, match=r"array into Go value of type v1\.ResourceClaim"):
        decode_body(CLAIM, b"[]")
    with pytest.raises(DecodeError, match=r"number into Go struct field TypeMeta\.kind of type string"):
        decode_body(CLAIM, b'{"kind": 1}')


def test_quantities_come_out_canonical_and_exact():
    body = b'{"spec": {"devices": [{"name": "d", "capacity": {"a": {"value": 0.1234567891234}, "b": {"value": " 1.5Gi "}, "c": {}}}]}}'
    capacity = decode_body(SLICE, body)[0]["spec"]["devices"][0]["capacity"]
    assert capacity == {"a": {"value": "123456790n"}, "b": {"value": "1536Mi"}, "c": {"value": "0"}}


def test_times_come_out_in_utc():
    taint = {"key": "k", "effect": "None", "timeAdded": "2026-01-01T02:00:00.75+02:00"}
    obj, _ = read(SLICE, {"spec": {"devices": [{"name": "d", "taints": [taint]}]}})
    assert obj["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    with pytest.raises(DecodeError, match="parsing time"):
        read(SLICE, {"spec": {"devices": [{"taints": [{"timeAdded": "2026-02-30T00:00:00Z"}]}]}})


def test_micro_times_need_exactly_six_decimals():
    obj, _ = read(LEASE, {"spec": {"renewTime": "2026-01-01T00:00:00.000000+01:00"}})
    assert obj["spec"]["renewTime"] == "2025-12-31T23:00:00.000000Z"
    for text in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123Z", "now"):
        with pytest.raises(DecodeError, match="parsing time"):
            read(LEASE, {"spec": {"renewTime": text}})


def test_pods_show_their_empty_structs():
    obj, complaints = read(
        POD,
        {
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]},
        },
    )
    assert complaints == []
    assert obj["spec"]["containers"][0]["resources"] == {}
    assert obj["status"] == {}
    with pytest.raises(DecodeError):
        read(POD, {"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": 1.5}}}]}})


def test_secret_data_must_be_base64():
    secret = schema_of("", "v1", "Secret")
    assert read(secret, {"data": {"a": "aGk="}})[0]["data"] == {"a": "aGk="}
    with pytest.raises(DecodeError):
        read(secret, {"data": {"a": "not base64!"}})


# --- raw JSON -----------------------------------------------------------------

OPAQUE = b'{"metadata": {"name": "a"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}], "config": [{}, {"opaque": {"driver": "d", "parameters": {"b": 1.0,  "a": "<x>"}}}]}}}'


def parameters_of(obj):
    return obj["spec"]["devices"]["config"][1]["opaque"]["parameters"]


def test_raw_parts_keep_their_bytes_through_the_store():
    obj, _ = decode_body(CLAIM, OPAQUE)
    assert parameters_of(obj) == RawJson(b'{"b": 1.0,  "a": "<x>"}')
    stored = encode(obj)
    assert b'{"b": 1.0,  "a": "<x>"}' in stored
    assert decode_stored(CLAIM, stored) == obj
    assert read(CLAIM, obj) == (obj, [])


def test_raw_parts_have_three_forms():
    obj, _ = decode_body(CLAIM, OPAQUE)
    assert parameters_of(compact_raw(obj)).raw == b'{"b":1.0,"a":"\\u003cx\\u003e"}'
    assert parameters_of(open_raw(obj)) == {"b": 1.0, "a": "<x>"}
    rebuilt, _ = read(CLAIM, open_raw(obj))
    assert parameters_of(rebuilt).raw == b'{"a":"\\u003cx\\u003e","b":1}'
    assert parameters_of(obj).raw == b'{"b": 1.0,  "a": "<x>"}'


def test_yaml_parameters_are_written_as_json():
    body = b"spec: {devices: {config: [{}, {opaque: {driver: d, parameters: {b: yes, a: 1.50}}}]}}"
    obj, _ = decode_body(CLAIM, body, yaml=True)
    assert parameters_of(obj).raw == b'{"a":1.5,"b":true}'


def test_a_raw_field_may_hold_anything_or_nothing():
    for text, raw in ((b"null", None), (b"[1]", RawJson(b"[1]")), (b'"x"', RawJson(b'"x"'))):
        body = b'{"spec": {"devices": {"config": [{"opaque": {"parameters": ' + text + b"}}]}}}"
        opaque = decode_body(CLAIM, body)[0]["spec"]["devices"]["config"][0]["opaque"]
        assert opaque == {"driver": "", "parameters": raw}


def test_raw_json_is_an_immutable_leaf():
    raw = RawJson(b'{"a": 1}')
    assert copy.deepcopy({"x": raw})["x"] is raw
    assert copy.copy(raw) is raw
    assert pickle.loads(pickle.dumps(raw)) == raw
    assert raw != RawJson(b'{"a":1}')
    with pytest.raises(AttributeError):
        raw.raw = b""
    with pytest.raises(ValueError, match="truncated"):
        _ = RawJson(b"{").value
    assert RawJson(b"{").compacted().raw == b"{"


def test_invalid_utf8_beside_raw_parts_is_replaced():
    body = OPAQUE.replace(b'"name": "a"', b'"name": "\xff"')
    obj, _ = decode_body(CLAIM, body)
    assert obj["metadata"]["name"] == "\ufffd"
    assert parameters_of(obj).raw == b'{"b": 1.0,  "a": "<x>"}'


# --- views --------------------------------------------------------------------


def test_views_forgive_nulls_as_go_does():
    data = b'{"metadata": {"name": "c", "finalizers": null}, "spec": {"devices": {"requests": null}}, "status": {"devices": [{"driver": "d", "conditions": null}]}}'
    claim = decode(ResourceClaim, data)
    assert claim.metadata.finalizers == []
    assert claim.status.devices[0].conditions == []
    assert to_view(ResourceClaim, json.loads(data)) == claim


def test_views_show_raw_parts_as_values():
    obj, _ = decode_body(CLAIM, OPAQUE)
    assert to_view(ResourceClaim, obj).spec.devices.config[1].opaque.parameters == {"b": 1.0, "a": "<x>"}
    assert decode(ResourceClaim, encode(obj)) == to_view(ResourceClaim, obj)


def test_lists_decode_with_their_metadata():
    slices, metadata = decode_list(
        ResourceSlice, b'{"metadata": {"resourceVersion": "7"}, "items": [{"spec": {"driver": "d"}}]}'
    )
    assert metadata == {"resourceVersion": "7"}
    assert slices[0].spec.driver == "d"
    assert slices[0].kind == "ResourceSlice"
    assert decode_list(ResourceSlice, b'{"items": null}') == ([], {})
    nulls = b'{"metadata": null, "items": [{"spec": {"devices": null}}]}'
    assert decode_list(ResourceSlice, nulls) == ([ResourceSlice()], {})


@pytest.mark.parametrize("data", [b"", b"{", b'{"spec": 1}', b'"\xff"', b"[" * 100_000, b"[]"])
def test_what_is_no_view_is_a_decode_error(data):
    with pytest.raises(DecodeError):
        decode(ResourceSlice, data)


def test_strangers_cannot_be_encoded():
    with pytest.raises(TypeError, match="cannot encode object"):
        encode({"a": object()})


def test_broken_text_is_a_parse_error():
    with pytest.raises(ParseError):
        decode_body(CLAIM, b"{")
    with pytest.raises(ParseError):
        decode_body(CLAIM, b"a: [", yaml=True)


def test_numbers_and_repeated_keys_of_a_parsed_body_can_be_shown_and_written():
    value = parse_json(
        b'{"spec": {"driver": "a", "driver": "b", "devices": [{"capacity": {"m": {"value": 1.50}}}]}}'
    )
    assert encode(value) == b'{"spec":{"driver":"b","devices":[{"capacity":{"m":{"value":1.5}}}]}}'
    assert to_view(ResourceSlice, value).spec.devices[0].capacity["m"].value == 1.5


def test_empty_lists_can_be_kept_until_validation_is_done():
    value = {
        "metadata": {"labels": {}},
        "spec": {"devices": [{"name": "d", "attributes": {"a": {"ints": []}}}], "sharedCounters": []},
    }
    obj, _ = read(SLICE, value, keep_empty=True)
    assert obj["spec"]["sharedCounters"] == []
    assert obj["spec"]["devices"][0]["attributes"] == {"a": {"ints": []}}
    drop_empty(SLICE, obj)
    assert obj == read(SLICE, value)[0]
    claim, _ = read(CLAIM, {"spec": {"devices": {"requests": []}}}, keep_empty=True)
    assert claim["spec"]["devices"] == {"requests": []}
    drop_empty(CLAIM, claim)
    assert claim["spec"]["devices"] == {"requests": None}


def test_a_body_that_cannot_be_read_is_gone_with_the_error():
    class Body(dict):
        """A dict that can be asked for by a weak reference."""

    body = Body(spec={"devices": {"requests": [{"name": "r", "exactly": {"count": "x", "capacity": "y"}}]}})
    seen, said = weakref.ref(body), ""
    gc.collect()
    gc.disable()
    try:
        try:
            read(schema_of("resource.k8s.io", "v1", "ResourceClaim"), body)
        except DecodeError as error:
            said = str(error)
        del body
        # A cycle of error, traceback and frame would keep it until the next collection, which may be long after.
        assert seen() is None
    finally:
        gc.enable()
    assert "cannot unmarshal string" in said
