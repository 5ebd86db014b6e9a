"""Calls to addresses that others choose: node agents and admission webhooks.

Whoever writes a node's status or a webhook's configuration chooses where this server
connects to. So an address must be an IP address or a DNS name, and no link-local, multicast
or unspecified one, also after the name is resolved (loopback is allowed: that is where the
nodes of `dray up` are); redirects are refused, cookies and compressed bodies not accepted.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\Z"
)
DIAL_SECONDS = 5.0


class AddressError(ValueError):
    """An address that the server does not call."""


class _Redirected(aiohttp.ClientError):
    """Somebody answered with a redirect."""


def checked_session() -> aiohttp.ClientSession:
    """Return a session for calls: no redirects, no cookies, checked addresses."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_CheckedResolver(), limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=DIAL_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        middlewares=(_refuse_redirects,),
    )


async def _refuse_redirects(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    # Websockets have no parameter for this, so the rule is here for every call.
    answer = await handler(request)
    if 300 <= answer.status < 400:
        answer.close()
        raise _Redirected(f"it answered with a redirect ({answer.status}), and redirects are not followed")
    return answer


def checked_host(host: str) -> str:
    """Return the host if it is an address or name that the server calls; raise AddressError.

    >>> checked_host("10.0.0.7"), checked_host("worker-1.example.com")
    ('10.0.0.7', 'worker-1.example.com')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A name whose last label is a number would be read as an old form of IPv4 address.
        lower = host.lower()
        if _DNS_NAME.match(lower) is None or lower.rpartition(".")[2].isdigit():
            raise AddressError(f"{host[:253]!r} is neither an IP address nor a DNS name") from None
        return lower
    address = getattr(address, "ipv4_mapped", None) or address
    if "%" in host or not _is_called(address):
        raise AddressError(f"address {host} is not allowed")
    return host


def _is_called(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    is_broadcast = address == ipaddress.IPv4Address("255.255.255.255")
    return not (address.is_link_local or address.is_multicast or address.is_unspecified or is_broadcast)


class _CheckedResolver(AbstractResolver):
    """Resolves names, and refuses addresses that would be refused themselves."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name; raise OSError when one of them is not allowed."""
        found = await self._resolver.resolve(host, port, family)
        for entry in found:
            try:
                checked_host(entry["host"])
            except AddressError as problem:
                raise OSError(errno.EACCES, f"{host}: {problem}") from None
        return found

    async def close(self) -> None:
        """Close the resolver."""
        await self._resolver.close()
