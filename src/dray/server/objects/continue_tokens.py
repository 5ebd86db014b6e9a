"""Continue tokens: where the next page of a list begins.

A token is base64 of a small JSON object: its own version, the revision that the list shows, and
the key behind which the next page begins. It comes back from clients, so whatever stands in it is
checked before it is used, and refused in kube-apiserver's words.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, TypeVar

from dray.api.parsing import load_json
from dray.server.requests import errors, json_name

TOKEN_VERSION = "meta.k8s.io/v1"
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9_-]")


def token_of(revision: int, prefix: str, last_key: str) -> str:
    """Return the token of the page behind a key."""
    start = last_key.removeprefix(prefix) + "\0"
    token = json.dumps({"v": TOKEN_VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def read_token(token: str) -> tuple[int, str]:
    """Return the revision and the last key that was shown; raises ApiError 400."""
    try:
        revision, start = _token_parts(token)
    except ValueError as problem:
        raise errors.bad_request(f"invalid continue token: continue key is not valid: {problem}") from None
    if revision == 0:
        raise errors.bad_request(
            "invalid continue token: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
        )
    # The NUL makes the token's key the first one *behind* the last key that was shown.
    return revision, start.rstrip("\0")


def _token_parts(token: str) -> tuple[int, str]:
    """Return revision and key of a token; ValueError says what is wrong in kube-apiserver's words."""
    text = token.rstrip("=")
    if (bad := _NOT_BASE64.search(text)) or len(text) % 4 == 1:
        raise ValueError(f"illegal base64 data at input byte {bad.start() if bad else len(text) - 1}")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    try:
        content = load_json(raw)
    except ValueError:
        raise ValueError(_not_json(raw)) from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        kind = json_name(content)
        raise ValueError(f"json: cannot unmarshal {kind} into Go value of type storage.continueToken")  # noqa: TRY004 - one error for all
    version = _member(content, "v", str, "string")
    revision = _member(content, "rv", int, "int64")
    start = _member(content, "start", str, "string")
    if not -(1 << 63) <= revision < 1 << 63:
        raise ValueError(_unfit(f"number {revision}", "rv", "int64"))
    if version != TOKEN_VERSION:
        raise ValueError(f"server does not recognize this encoded version {version}")
    if not start:
        raise ValueError(f"encoded start key empty (version {TOKEN_VERSION})")
    if ".." in start or start.startswith("/"):
        raise ValueError(f"invalid start key: {start[:256]}")
    return revision, start


_Value = TypeVar("_Value", str, int)


def _member(content: dict[str, Any], name: str, wanted: type[_Value], of_type: str) -> _Value:
    value = content.get(name)
    if value is None:
        return wanted()
    if type(value) is not wanted:
        raise ValueError(_unfit(json_name(value), name, of_type))
    return value


def _unfit(found: str, name: str, of_type: str) -> str:
    return f"json: cannot unmarshal {found} into Go struct field continueToken.{name} of type {of_type}"


def _not_json(raw: bytes) -> str:
    """Return what is said of bytes that are not JSON; only the first one is looked at."""
    rest = raw.lstrip(b" \t\r\n")
    if not rest or rest[:1] in b'{["0123456789-tfn':
        return "unexpected end of JSON input"
    first = rest[:1].decode("latin-1")
    shown = first if first.isprintable() and first.isascii() else f"\\x{ord(first):02x}"
    return f"invalid character '{shown}' looking for beginning of value"
