"""Whatever comes in: reading ends in a canonical object or a clear refusal."""

import json
import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dray.api.codec import DecodeError, ParseError, decode_body, decode_stored, encode, read
from dray.api.defaults import apply_defaults
from dray.api.kinds import KINDS
from dray.api.reading import MAX_COMPLAINTS, WRONG_TYPE, drop_empty, inspect
from dray.api.schema import LIST, MAP, STRUCT, schema_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVED = [(kind, version) for kind in KINDS for version in kind.versions]
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
SCALARS = {
    "string": st.text(max_size=3), "bool": st.booleans(), "int32": st.integers(-3, 3), "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.integers(0, 3), "bytes": st.sampled_from(["", "aGk="]), "quantity": st.sampled_from(["0", "1.5Gi", "0.1u", 3, 0.5]),
    "time": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+01:00", "0001-01-01T00:00:00Z"]),
    "microtime": st.just("2026-01-01T00:00:00.000001+01:00"), "duration": st.just("1h"), "intorstring": st.sampled_from([0, 5, "", "50%"]),
    "raw": anything, "any": anything,
}  # fmt: skip


@st.composite
def values(draw, schema, depth=0):
    """Mostly what the schema allows, sometimes null, empty or something else."""
    if depth and draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from([None, [], {}, ""]))
    if schema.kind == LIST:
        return draw(st.lists(values(schema.element, depth + 1), max_size=2 if depth < 7 else 0))
    if schema.kind == MAP:
        return draw(
            st.dictionaries(st.text("abc", max_size=2), values(schema.element, depth + 1), max_size=2)
        )
    if schema.kind == STRUCT:
        names = draw(
            st.lists(
                st.sampled_from([*schema.fields, "unknown"]), max_size=4 if depth < 7 else 0, unique=True
            )
        )
        return {
            name: draw(values(schema.fields[name].type, depth + 1)) if name in schema.fields else 1
            for name in names
        }
    return draw(SCALARS[schema.kind])


@given(st.data(), st.sampled_from(SERVED))
def test_reading_again_changes_nothing(data, served):
    kind, version = served
    schema = schema_of(kind.group, version, kind.kind)
    value = data.draw(values(schema))
    try:
        obj, _ = read(schema, value)
    except DecodeError:
        return
    assert read(schema, obj) == (obj, [])
    kept, _ = read(schema, value, keep_empty=True)
    drop_empty(schema, kept)
    assert kept == obj, "dropping what is empty later is not the same as not keeping it"
    assert decode_stored(schema, encode(obj)) == obj
    apply_defaults(kind.group, version, kind.kind, obj, NOW)
    assert read(schema, obj) == (obj, []), "defaults left something that is not canonical"


@given(st.data(), st.sampled_from(SERVED))
def test_inspecting_finds_what_reading_finds_and_every_wrong_type(data, served):
    kind, version = served
    schema = schema_of(kind.group, version, kind.kind)
    value = data.draw(values(schema))
    deviations = inspect(schema, value)
    wrong = [deviation for deviation in deviations if deviation.code == WRONG_TYPE]
    try:
        _, complaints = read(schema, value)
    except DecodeError as error:
        assert wrong
        place = str(error).partition("Go struct field ")[2].partition(" of type")[0].partition(".")[2]
        assert not place or any(place in re.sub(r"\[\d+\]", "", deviation.path()) for deviation in wrong)
        return
    assert not wrong
    assert complaints == [f'{found.code} field "{found.path()}"' for found in deviations]
    assert len(complaints) <= MAX_COMPLAINTS


@given(anything, st.sampled_from(SERVED))
def test_any_json_is_an_object_or_a_decode_error(value, served):
    kind, version = served
    try:
        obj, _ = decode_body(schema_of(kind.group, version, kind.kind), json.dumps(value).encode())
    except DecodeError:
        return
    assert isinstance(obj, dict)


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_are_an_object_or_an_error(data, yaml):
    try:
        decode_body(schema_of("resource.k8s.io", "v1", "ResourceClaim"), data, yaml=yaml)
    except (DecodeError, ParseError):
        pass
