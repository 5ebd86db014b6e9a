"""Request bodies: bytes to an object of the expected kind, with kube-apiserver's complaints.

Three things can be wrong with a body, and clients tell them apart: it cannot be
read at all or is another kind (400), it has values of wrong types (400), or it
has fields nobody knows, which `fieldValidation` turns into nothing, a warning, or
a refusal.
"""

from __future__ import annotations

from typing import Any

from dray.api import codec
from dray.api.json_types import JsonObject
from dray.api.kinds import split_api_version
from dray.api.media_types import YAML_TYPE
from dray.api.parsing import ParseError, parse_json, parse_yaml
from dray.api.reading import DecodeError, read
from dray.api.schema import Type
from dray.server.requests import errors, protobuf_bodies
from dray.server.requests.calls import Call
from dray.server.requests.content_negotiation import body_type, unsupported
from dray.server.requests.known_kinds import is_group_version, is_registered, not_registered, wrong_kind


def parse_body(schema: Type | None, body: bytes, content_type: str, kind: str = "") -> Any:
    """Parse a body as JSON or YAML, raw parts of the schema as they came; raises 415 and 400.

    `kind` is named in the error; deletions name none.
    """
    media_type = body_type(content_type)
    if media_type == protobuf_bodies.MEDIA_TYPE:
        if schema is None:
            raise unsupported(protobuf_bodies.MEDIA_TYPE)
        try:
            return protobuf_bodies.decode_object(schema, body)
        except protobuf_bodies.ProtobufError as problem:
            raise errors.bad_request(f"proto: {problem}") from None
    is_yaml = media_type == YAML_TYPE
    try:
        if schema is not None:
            return codec.parse_body(schema, body, yaml=is_yaml)
        return parse_yaml(body) if is_yaml else parse_json(body)
    except ParseError as problem:
        text = str(problem) if is_yaml else f"couldn't get version/kind; json parse error: {problem}"
        raise _unrecognized(text, body, kind) from None


def _unrecognized(text: str, body: bytes, kind: str) -> errors.ApiError:
    if not kind:
        return errors.bad_request(text)
    begin = body[:_SHOWN_BYTES]
    shown = begin.decode("utf-8", "replace") if begin[:1] == b"{" else begin.hex() or "<empty>"
    more = " ..." if len(body) > _SHOWN_BYTES else ""
    return errors.bad_request(
        f"the object provided is unrecognized (must be of type {kind}): {text} ({shown}{more})"
    )


_SHOWN_BYTES = 30  # of a body that cannot be read


def read_object(
    call: Call, schema: Type, value: Any, *, kind: str, api_version: str, validation: str
) -> JsonObject:
    """Return the canonical object of a parsed body; warns or refuses as `validation` says."""
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise _unrecognized(not_an_object(value), call.request.body, kind)
    check_kind(value, kind, api_version, call.request.body)
    _, version = split_api_version(api_version)
    try:
        obj, complaints = read(schema, value, keep_empty=call.keeps_empties)
    except DecodeError as problem:
        raise errors.bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}'
        ) from problem
    report_complaints(
        call, complaints, validation, f'{kind} in version "{version}" cannot be handled as a {kind}: '
    )
    obj["kind"], obj["apiVersion"] = kind, api_version
    if not isinstance(obj.get("metadata"), dict):
        obj["metadata"] = {}
    return obj


def not_an_object(value: Any) -> str:
    """Return what the reference says of a body that is not an object."""
    return (
        f"couldn't get version/kind; json parse error: json: cannot unmarshal {json_name(value)} into Go value "
        'of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
    )


def check_kind(value: dict[str, Any], kind: str, api_version: str, body: bytes = b"") -> None:
    """Refuse a body of another kind or version; what it does not say is taken as expected."""
    said_kind, said_version = said_kind_of(value)
    said_kind, said_version = said_kind or kind, said_version or api_version
    if (said_kind, said_version) == (kind, api_version):
        return
    if not is_group_version(said_version):
        raise _unrecognized(f"unexpected GroupVersion string: {said_version}", body, kind)
    prefix = f'{said_kind} in version "{split_api_version(said_version)[1]}" cannot be handled as a {kind}: '
    if not is_registered(said_version, said_kind):
        raise errors.bad_request(prefix + not_registered(said_version, said_kind))
    if said_kind != kind:
        group, _ = split_api_version(api_version)
        raise errors.bad_request(prefix + wrong_kind(said_version, said_kind, group, kind))
    raise other_version(said_version, api_version)


def other_version(said: str, expected: str) -> errors.ApiError:
    """Return 400 for a body in another version than the path."""
    return errors.bad_request(
        f"the API version in the data ({said}) does not match the expected API version ({expected})"
    )


def said_kind_of(value: dict[str, Any]) -> tuple[str, str]:
    """Return kind and apiVersion of a body, empty where it does not say; raises 400 for what is not text."""
    said = []
    for name in ("kind", "apiVersion"):
        found = member(value, name)
        if found is not None and not isinstance(found, str):
            raise errors.bad_request(
                f"couldn't get version/kind; json parse error: json: cannot unmarshal {json_name(found)} into Go struct "
                f"field .{name} of type string"
            )
        said.append(found or "")
    return said[0], said[1]


def member(value: dict[str, Any], name: str) -> Any:
    """Return a member as Go's JSON finds it for kind and apiVersion: letter case does not matter."""
    if name in value:
        return value[name]
    return next((item for key, item in value.items() if key.lower() == name.lower()), None)


def report_complaints(call: Call, complaints: list[str], validation: str, prefix: str = "") -> None:
    """Warn about unknown fields, refuse them, or stay silent."""
    if not complaints or validation == "Ignore":
        return
    if validation == "Strict":
        raise errors.bad_request(f"{prefix}strict decoding error: " + ", ".join(complaints))
    for complaint in complaints:
        call.warn(complaint)


def json_name(value: Any) -> str:
    """Return the name that kube-apiserver's messages give to the type of a JSON value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"
