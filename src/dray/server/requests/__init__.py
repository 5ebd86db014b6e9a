"""Requests and answers before anybody acts on them: messages, errors, routes, options, bodies, encodings.

The lowest package of the server: it knows no objects, no store and no rights.
"""

from dray.server.requests import errors
from dray.server.requests.calls import Call, Environment
from dray.server.requests.content_negotiation import Representation, negotiate
from dray.server.requests.errors import (
    ApiError,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_acceptable,
    not_found,
    timed_out,
    too_many_requests,
    unauthorized,
)
from dray.server.requests.json_encoding import copy_json, decode_stored, encode, encode_yaml, reread
from dray.server.requests.known_kinds import is_group_version, not_options, not_registered, package_of
from dray.server.requests.messages import (
    EndingStream,
    Request,
    Response,
    Tunnel,
    json_response,
    text_response,
)
from dray.server.requests.object_reader import Reader
from dray.server.requests.protobuf_answers import encode_event, encode_list, encode_message, encode_object
from dray.server.requests.query_options import (
    EXACT,
    DeleteOptions,
    ListOptions,
    WriteOptions,
    delete_options,
    list_options,
    write_options,
)
from dray.server.requests.query_selectors import (
    FieldSelector,
    LabelSelector,
    field_text,
    matches_fields,
    matches_labels,
    parse_field_selector,
    parse_label_selector,
)
from dray.server.requests.request_bodies import (
    json_name,
    member,
    not_an_object,
    other_version,
    parse_body,
    read_object,
    report_complaints,
    said_kind_of,
)
from dray.server.requests.routing import ResourcePath, Route, find_route, split_path, verb_of
from dray.server.requests.time_slice import TimeSlice
from dray.server.requests.users import User
from dray.server.requests.worker_threads import LARGE, compute

# fmt: off
__all__ = [
    "EXACT",
    "LARGE",
    "ApiError",
    "Call",
    "DeleteOptions",
    "EndingStream",
    "Environment",
    "FieldSelector",
    "LabelSelector",
    "ListOptions",
    "Reader",
    "Representation",
    "Request",
    "ResourcePath",
    "Response",
    "Route",
    "TimeSlice",
    "Tunnel",
    "User",
    "WriteOptions",
    "bad_request",
    "compute",
    "conflict",
    "copy_json",
    "decode_stored",
    "delete_options",
    "encode",
    "encode_event",
    "encode_list",
    "encode_message",
    "encode_object",
    "encode_yaml",
    "errors",
    "field_text",
    "find_route",
    "forbidden",
    "invalid",
    "is_group_version",
    "json_name",
    "json_response",
    "list_options",
    "matches_fields",
    "matches_labels",
    "member",
    "negotiate",
    "not_acceptable",
    "not_an_object",
    "not_found",
    "not_options",
    "not_registered",
    "other_version",
    "package_of",
    "parse_body",
    "parse_field_selector",
    "parse_label_selector",
    "read_object",
    "report_complaints",
    "reread",
    "said_kind_of",
    "split_path",
    "text_response",
    "timed_out",
    "too_many_requests",
    "unauthorized",
    "verb_of",
    "write_options",
]
# fmt: on
