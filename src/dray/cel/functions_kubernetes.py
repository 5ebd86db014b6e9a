"""Functions of Kubernetes' CEL libraries: quantities, versions, addresses, URLs, formats."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache

from dray.api.quantity import Quantity, QuantityError, parse_quantity
from dray.api.quoting import quote_go
from dray.api.semver import Semver, SemverError, parse_semver
from dray.cel.addresses import address_problem, prefix_problem
from dray.cel.declarations import FORMAT_NAMES
from dray.cel.errors import Fault, no_such_overload
from dray.cel.formats import validate
from dray.cel.urls import UrlError, parse_url
from dray.cel.values import NOTHING, Cidr, Format, Ip, Optional, QuantitySum, Url

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


# --- quantities and versions -----------------------------------------------------------


def to_quantity(text: str) -> Quantity:
    """Parse a quantity."""
    try:
        return parse_quantity(text)
    except QuantityError as error:
        raise Fault(str(error)) from None


def is_quantity(text: str) -> bool:
    """Return whether a text is a quantity."""
    try:
        parse_quantity(text)
    except QuantityError:
        return False
    return True


def as_integer(quantity: Quantity) -> int:
    """Return a quantity as an int."""
    value = quantity.as_integer()
    if value is None:
        raise Fault("cannot convert value to integer")
    return value


def to_semver(text: str, normalize: bool = False) -> Semver:
    """Parse a version."""
    try:
        return parse_semver(text, normalize=normalize)
    except SemverError as error:
        raise Fault(str(error)) from None


def is_semver(text: str, normalize: bool = False) -> bool:
    """Return whether a text is a version."""
    try:
        parse_semver(text, normalize=normalize)
    except SemverError:
        return False
    return True


# --- addresses --------------------------------------------------------------------------


_LONGEST_ADDRESS = 64  # characters; an IPv6 address with an IPv4 address in it has 45


@lru_cache(maxsize=1024)
def _known_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text)


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address, remembering short texts: loops ask for the same ones. Raises ValueError."""
    return _known_address(text) if len(text) <= _LONGEST_ADDRESS else ipaddress.ip_address(text)


def _parse_address(text: str) -> Address:
    try:
        address = _ip_address(text)
    except ValueError:
        raise Fault(
            f"IP Address {quote_go(text)} parse error during conversion from string: {address_problem(text)}"
        ) from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise Fault(f"IP address {quote_go(text)} with zone value is not allowed")
        if address.ipv4_mapped is not None:
            raise Fault(f"IPv4-mapped IPv6 address {quote_go(text)} is not allowed")
    return address


def is_ip(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        _parse_address(text)
    except Fault:
        return False
    return True


_LINK_LOCAL_MULTICAST = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))
_BROADCAST = ipaddress.ip_address("255.255.255.255")


def is_link_local_multicast(ip: Ip) -> bool:
    """Return whether an address is 224.0.0.x or ff?2::."""
    if isinstance(ip.address, ipaddress.IPv6Address):
        packed = ip.address.packed
        return packed[0] == 0xFF and packed[1] & 0x0F == 0x02
    return ip.address in _LINK_LOCAL_MULTICAST[0]


def is_global_unicast(ip: Ip) -> bool:
    """Return whether an address is none of the special ones (private ones are global here)."""
    address = ip.address
    if address == _BROADCAST or address.is_unspecified or address.is_loopback:
        return False
    return not (address.is_multicast or address.is_link_local)


def to_cidr(text: str) -> Cidr:
    """Parse an address with a prefix length."""
    problem = "network address parse error during conversion from string: "
    address_text, slash, bits = text.rpartition("/")
    address = None
    try:
        address = _ip_address(address_text)
        sound = bool(slash) and bits.isascii() and bits.isdigit() and (bits == "0" or bits[0] != "0")
        if not sound or len(bits) > 3 or int(bits) > address.max_prefixlen or "%" in address_text:
            raise ValueError
    except ValueError:
        reason = prefix_problem(text, has_address=address is not None)
        raise Fault(f"{problem}{problem}{reason}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise Fault(f"{problem}IPv4-mapped IPv6 address {quote_go(text)} is not allowed")
    return Cidr(address, int(bits))


def is_cidr(text: str) -> bool:
    """Return whether a text is an address with a prefix length."""
    try:
        to_cidr(text)
    except Fault:
        return False
    return True


def contains_ip(cidr: Cidr, ip: Ip) -> bool:
    """Return whether an address lies in a network."""
    if ip.address.version != cidr.address.version:
        return False
    n_host_bits = cidr.address.max_prefixlen - cidr.prefix
    return int(ip.address) >> n_host_bits == int(cidr.address) >> n_host_bits


def _contains_text(cidr: Cidr, text: str) -> bool:
    try:
        address = _parse_address(text)
    except Fault:
        raise no_such_overload() from None
    return contains_ip(cidr, Ip(address))


def contains_cidr(cidr: Cidr, other: Cidr) -> bool:
    """Return whether a network lies in another."""
    return contains_ip(cidr, Ip(other.address)) and cidr.prefix <= other.prefix


def masked(cidr: Cidr) -> Cidr:
    """Return the network without bits beyond the prefix."""
    return Cidr(cidr.network.network_address, cidr.prefix)


# --- URLs ----------------------------------------------------------------------------------


def to_url(text: str) -> Url:
    """Parse a URL."""
    try:
        return parse_url(text)
    except UrlError as error:
        raise Fault(f"URL parse error during conversion from string: {error}") from None


def is_url(text: str) -> bool:
    """Return whether a text is a URL."""
    try:
        parse_url(text)
    except UrlError:
        return False
    return True


def query_of(url: Url) -> dict[object, object]:
    """Return the query of a URL: name → values."""
    return {name: list(values) for name, values in url.query}


# --- formats -------------------------------------------------------------------------------


def named_format(name: str) -> Optional:
    """Return a format by its name."""
    return Optional(Format(name)) if name in FORMAT_NAMES else NOTHING


def validate_format(form: Format, text: str) -> Optional:
    """Return what is wrong with a text, or nothing."""
    problems = validate(form.name, text)
    return Optional(list(problems)) if problems else NOTHING


def _constant_format(name: str) -> Callable[[], Format]:
    return lambda: Format(name)


KUBERNETES: dict[str, Callable[..., object]] = {
    "string_to_quantity": to_quantity,
    "is_quantity_string": is_quantity,
    "quantity_sign": lambda quantity: quantity.sign,
    "quantity_is_integer": lambda quantity: quantity.is_integer(),
    "quantity_get_int": as_integer,
    "quantity_get_float": lambda quantity: quantity.as_approximate_float(),
    "quantity_is_less_than": lambda left, right: left < right,
    "quantity_is_greater_than": lambda left, right: left > right,
    "quantity_compare_to": lambda left, right: (left > right) - (left < right),
    "quantity_add": lambda left, right: QuantitySum.from_quantity(left + right),
    "quantity_add_int": lambda left, number: QuantitySum.from_quantity(left + Quantity.of(number)),
    "quantity_sub": lambda left, right: QuantitySum.from_quantity(left - right),
    "quantity_sub_int": lambda left, number: QuantitySum.from_quantity(left - Quantity.of(number)),
    "string_to_semver": to_semver,
    "string_bool_to_semver": to_semver,
    "is_semver_string": is_semver,
    "is_semver_string_bool": is_semver,
    "semver_is_less_than": lambda left, right: left < right,
    "semver_is_greater_than": lambda left, right: left > right,
    "semver_compare_to": lambda left, right: left.compare(right),
    "semver_major": lambda version: version.major,
    "semver_minor": lambda version: version.minor,
    "semver_patch": lambda version: version.patch,
    "string_to_ip": lambda text: Ip(_parse_address(text)),
    "is_ip": is_ip,
    "ip_is_canonical": lambda text: str(_parse_address(text)) == text,
    "ip_family": lambda ip: ip.address.version,
    "ip_is_unspecified": lambda ip: ip.address.is_unspecified,
    "ip_is_loopback": lambda ip: ip.address.is_loopback,
    "ip_is_link_local_multicast": is_link_local_multicast,
    "ip_is_link_local_unicast": lambda ip: ip.address.is_link_local,
    "ip_is_global_unicast": is_global_unicast,
    "ip_to_string": lambda ip: str(ip.address),
    "string_to_cidr": to_cidr,
    "is_cidr": is_cidr,
    "cidr_contains_ip_string": _contains_text,
    "cidr_contains_ip_ip": contains_ip,
    "cidr_contains_cidr_string": lambda cidr, text: contains_cidr(cidr, to_cidr(text)),
    "cidr_contains_cidr": contains_cidr,
    "cidr_ip": lambda cidr: Ip(cidr.address),
    "cidr_masked": masked,
    "cidr_prefix_length": lambda cidr: cidr.prefix,
    "cidr_to_string": lambda cidr: f"{cidr.address}/{cidr.prefix}",
    "string_to_url": to_url,
    "is_url_string": is_url,
    "url_get_scheme": lambda url: url.scheme,
    "url_get_host": lambda url: url.host,
    "url_get_hostname": lambda url: url.hostname,
    "url_get_port": lambda url: url.port,
    "url_get_escaped_path": lambda url: url.escaped_path,
    "url_get_query": query_of,
    "format-named": named_format,
    "format-validate": validate_format,
    **{f"format.{name}": _constant_format(name) for name in FORMAT_NAMES},
}
