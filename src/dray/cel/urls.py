"""Parse URLs as Go's `net/url` does for absolute URLs and paths."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from dray.cel.values import Url

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*:")
_PORT = re.compile(r"(:[0-9]*)?\Z")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER_CHARACTERS = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST_CHARACTERS = re.compile(r"""[A-Za-z0-9\-._~!$&'()*+,;=:\[\]<>"%\x80-\U0010ffff]*""")


class UrlError(ValueError):
    """The text is not a URL."""


def parse_url(text: str) -> Url:
    """Parse an absolute URL or an absolute path; raise UrlError."""
    shown = quote_go(text)
    if any(ord(char) < 0x20 or char == "\x7f" for char in text):
        raise UrlError(f"parse {shown}: net/url: invalid control character in URL")
    if not text:
        raise UrlError(f"parse {shown}: empty url")
    if text == "*":
        return Url("", "", "", "", "*", (), text)
    scheme_match = _SCHEME.match(text)
    scheme, rest = ("", text)
    if scheme_match:
        scheme, rest = scheme_match.group()[:-1].lower(), text[scheme_match.end() :]
    elif text.startswith(":"):
        raise UrlError(f"parse {shown}: missing protocol scheme")
    if not rest.startswith("/") and not scheme:
        raise UrlError(f"parse {shown}: invalid URI for request")
    rest_without_fragment, _, _fragment = rest.partition("#")
    before_query, _, query = rest_without_fragment.partition("?")
    if not before_query.startswith("/"):
        # An opaque URL (`mailto:x`): no host, no path.
        return Url(scheme, "", "", "", "", _parse_query(query), text)
    authority, path = "", before_query
    if before_query.startswith("//") and (scheme or not before_query.startswith("///")):
        authority, slash, path = before_query[2:].partition("/")
        path = slash + path
        # Upstream reads the text twice, and the first time a fragment is nothing special.
        if not slash and "#" in rest.partition("?")[0]:
            authority = rest[2:].partition("?")[0].partition("/")[0]
    host, hostname, port = _parse_authority(authority, shown)
    bad = _BAD_ESCAPE.search(path)
    if bad:
        raise UrlError(f'parse {shown}: invalid URL escape "{path[bad.start() : bad.start() + 3]}"')
    return Url(scheme, host, hostname, port, _escape_path(path), _parse_query(query), text)


def quote_go(text: str) -> str:
    """Quote a text for a message."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'


def _parse_authority(authority: str, shown: str) -> tuple[str, str, str]:
    user, at, host = authority.rpartition("@")
    if at and not _USER_CHARACTERS.fullmatch(user):
        raise UrlError(f"parse {shown}: net/url: invalid userinfo")
    found = _HOST_CHARACTERS.match(host)
    if found and found.end() < len(host):
        bad = quote_go(host[found.end()])
        raise UrlError(f"parse {shown}: invalid character {bad} in host name")
    if host.startswith("["):
        closing = host.rfind("]")
        if closing < 0:
            raise UrlError(f"parse {shown}: missing ']' in host")
        name, tail = host[1:closing], host[closing + 1 :]
    else:
        name, colon, port = host.partition(":")
        tail = colon + port
    if not _PORT.match(tail):
        raise UrlError(f"parse {shown}: invalid port {quote_go(tail)} after host")
    return unquote(host), unquote(name), tail[1:]


def _escape_path(path: str) -> str:
    # A path that is validly escaped stays as it was written.
    if re.fullmatch(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/\[\]%]*", path):
        return path
    return quote(unquote(path), safe="-._~$&+,/:;=@")


def _parse_query(query: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for part in query.split("&"):
        if not part or ";" in part or _BAD_ESCAPE.search(part):
            continue
        name, _, value = part.partition("=")
        found.setdefault(_unescape(name), []).append(_unescape(value))
    return tuple((name, tuple(values)) for name, values in found.items())


def _unescape(text: str) -> str:
    return unquote(text.replace("+", " "))
