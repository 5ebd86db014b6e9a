"""Parse URLs as Go's `net/url` does for absolute URLs and paths."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote, unquote

from dray.api.quoting import quote_go
from dray.cel.addresses import address_problem
from dray.cel.values import Url

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*:")
_PORT = re.compile(r"(:[0-9]*)?\Z")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER_CHARACTERS = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
_NOTABLE = re.compile(
    r"""[^A-Za-z0-9\-._~!$&'()*+,;=:\[\]<>"\x80-\U0010ffff]"""
)  # of a host: escapes, and what may not be


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
    host, hostname, port = _parse_authority(scheme, authority, shown)
    _check_escapes(path, shown)
    return Url(scheme, host, hostname, port, _escape_path(path), _parse_query(query), text)


def _parse_authority(scheme: str, authority: str, shown: str) -> tuple[str, str, str]:
    """Return host with port, host without brackets, and port; what is wrong is named in net/url's order."""
    user, at, host = authority.rpartition("@")
    opening, closing = host.rfind("["), host.rfind("]")
    if opening > 0:
        raise UrlError(f"parse {shown}: invalid IP-literal")
    if opening == 0:
        if closing < 0:
            raise UrlError(f"parse {shown}: missing ']' in host")
        name, tail = host[1:closing], host[closing + 1 :]
    else:
        # Several colons are no mistake in a URL that is not of the web.
        first = host.find(":") if scheme in ("http", "https") else host.rfind(":")
        name, tail = (host, "") if first < 0 else (host[:first], host[first:])
    if not _PORT.match(tail):
        raise UrlError(f"parse {shown}: invalid port {quote_go(tail)} after host")
    if opening == 0:
        name = _ipv6_host(name, shown)
        host = f"[{name}]{tail}"
    else:
        host, name = _unescape_host(host, shown), _unescape_host(name, shown)
    if at and not _USER_CHARACTERS.fullmatch(user):
        raise UrlError(f"parse {shown}: net/url: invalid userinfo")
    _check_escapes(user, shown)
    return host, name, tail[1:]


def _check_escapes(text: str, shown: str) -> None:
    bad = _BAD_ESCAPE.search(text)
    if bad:
        raise UrlError(f"parse {shown}: invalid URL escape {quote_go(text[bad.start() : bad.start() + 3])}")


def _ipv6_host(text: str, shown: str) -> str:
    """Return what stands in brackets, unescaped: an IPv6 address, with a zone perhaps."""
    place = text.find("%25")
    if place < 0:
        name = _unescape_host(text, shown)
    else:
        name = _unescape_host(text[:place], shown) + _unescape_host(text[place:], shown, is_zone=True)
    before, percent, zone = name.partition("%")
    try:
        address = ipaddress.ip_address(before)
        if percent and (address.version == 4 or not zone):
            raise ValueError
    except ValueError:
        raise UrlError(f"parse {shown}: invalid host: {address_problem(name)}") from None
    if address.version == 4:
        raise UrlError(f"parse {shown}: invalid IP-literal")
    return name


def _unescape_host(text: str, shown: str, *, is_zone: bool = False) -> str:
    """Return a part of a host without escapes, of which few are allowed; raises UrlError."""
    for found in _NOTABLE.finditer(text):
        character = found.group()
        if character != "%":
            raise UrlError(f"parse {shown}: invalid character {quote_go(character)} in host name")
        escape = text[found.start() : found.start() + 3]
        if not _ESCAPE.fullmatch(escape):
            raise UrlError(f"parse {shown}: invalid URL escape {quote_go(escape)}")
        byte = int(escape[1:], 16)
        # Only what is not ASCII may be escaped, and a percent sign; in a zone also what needs no escape.
        plain = is_zone and (byte == 0x20 or (byte < 0x80 and not _NOTABLE.match(chr(byte))))
        if not (byte == 0x25 or plain or (byte >= 0x80 and not is_zone)):
            raise UrlError(f"parse {shown}: invalid URL escape {quote_go(escape)}")
    return unquote(text)


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
