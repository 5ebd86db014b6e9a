"""Why a text is not an IP address or a prefix, in the words of Go's net/netip.

Python's `ipaddress` decides what an address is; it and netip accept the same texts. Selectors show their users
why a text was refused, and those words are part of what upstream answers, so the reasons are found here, in
netip's order: the first thing that is wrong from the left is the one that is named.
"""

from __future__ import annotations

import ipaddress

from dray.api.quoting import quote_go

_HEX = frozenset("0123456789abcdefABCDEF")
_BYTES = 16  # of an IPv6 address


def address_problem(text: str) -> str:
    """Return netip's message for a text that is not an IP address."""
    reason, rest = _reason(text)
    place = f" (at {quote_go(rest)})" if rest else ""
    return f"ParseAddr({quote_go(text)}): {reason}{place}"


def prefix_problem(text: str, *, has_address: bool) -> str:
    """Return netip's message for a text that is not a prefix; `has_address`: what stands before the slash is one."""
    address, slash, bits = text.rpartition("/")
    if not slash:
        reason = "no '/'"
    elif not has_address:
        reason = address_problem(address)
    elif "%" in address:
        reason = "IPv6 zones cannot be present in a prefix"
    elif not (bits.isascii() and bits.isdigit()) or (len(bits) > 1 and bits[0] == "0") or len(bits) > 18:
        reason = f"bad bits after slash: {quote_go(bits)}"
    else:
        reason = "prefix length out of range"
    return f"netip.ParsePrefix({quote_go(text)}): {reason}"


def _reason(text: str) -> tuple[str, str]:
    """Return what is wrong, and the rest of the text from there on ("": it is not shown)."""
    for character in text:
        if character == ".":
            return _ipv4_reason(text)
        if character == ":":
            return _ipv6_reason(text)
        if character == "%":
            return "missing IPv6 address", ""
    return "unable to parse IP", ""


def _ipv4_reason(text: str) -> tuple[str, str]:
    field = ""
    n_dots = 0
    for place, character in enumerate(text):
        if "0" <= character <= "9":
            if field == "0":
                return "IPv4 field has octet with leading zero", ""
            field += character
            if int(field) > 255:
                return "IPv4 field has value >255", ""
        elif character != ".":
            return "unexpected character", text[place:]
        elif place in (0, len(text) - 1) or text[place - 1] == ".":
            return "IPv4 field must have at least one digit", text[place:]
        elif n_dots == 3:
            return "IPv4 address too long", ""
        else:
            n_dots += 1
            field = ""
    return "IPv4 address too short", ""


def _ipv6_reason(text: str) -> tuple[str, str]:
    rest, percent, zone = text.partition("%")
    if percent and not zone:
        return "zone must be a non-empty string", ""
    has_gap = rest.startswith("::")
    if has_gap:
        rest = rest[2:]
    size = 0
    while size < _BYTES:
        n_digits = next((n for n, character in enumerate(rest) if character not in _HEX), len(rest))
        if n_digits > 4:
            return "each group must have 4 or less digits", rest
        if not n_digits:
            return "each colon-separated field must have at least one digit", rest
        if rest[n_digits : n_digits + 1] == ".":
            return _embedded_reason(rest, size, has_gap=has_gap)
        size += 2
        rest = rest[n_digits:]
        if not rest:
            break
        if rest[0] != ":":
            return "unexpected character, want colon", rest
        if len(rest) == 1:
            return "colon must be followed by more characters", rest
        rest = rest[1:]
        if rest[0] == ":":
            if has_gap:
                return "multiple :: in address", rest
            has_gap = True
            rest = rest[1:]
            if not rest:
                break
    if rest:
        return "trailing garbage after address", rest
    if size < _BYTES:
        return "address string too short", ""
    return "the :: must expand to at least one field of zeros", ""


def _embedded_reason(rest: str, size: int, *, has_gap: bool) -> tuple[str, str]:
    """Return what is wrong with an IPv4 address at the end, after so many bytes."""
    if not has_gap and size != _BYTES - 4:
        return "embedded IPv4 address must replace the final 2 fields of the address", rest
    if size + 4 > _BYTES:
        return "too many hex fields to fit an embedded IPv4 at the end of the address", rest
    if _is_ipv4(rest):
        return "the :: must expand to at least one field of zeros", ""
    return _ipv4_reason(rest)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
