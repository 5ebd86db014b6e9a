"""Calls to addresses that others choose: node agents and admission webhooks.

Whoever writes a node's status or a webhook's configuration chooses where this server
connects to. So an address must be an IP address or a DNS name, and no link-local, multicast
or unspecified one, also after the name is resolved (loopback is allowed: that is where the
nodes of `dray up` are); redirects are refused, cookies and compressed bodies not accepted. What they send is read in small parts, and one that
sends many answers to one request is not read any further: each interim answer (100 Continue) of 25 bytes would cost the
event loop 20 microseconds, ten thousand of them in one turn.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import socket
from functools import partial
from typing import cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\Z"
)
DIAL_SECONDS = 5.0
MOST_WAITING_ANSWERS = 16  # to one request; all but one are interim ones, which nobody needs
_PART = 16 * 1024  # bytes that are parsed before the number of answers is looked at


class AddressError(ValueError):
    """An address that the server does not call."""


class _Redirected(aiohttp.ClientError):
    """Somebody answered with a redirect."""


def checked_session() -> aiohttp.ClientSession:
    """Return a session for calls: no redirects, no cookies, checked addresses."""
    connector = aiohttp.TCPConnector(resolver=_CheckedResolver(), limit=0)
    # The library has no public way to choose the class of its connections.
    factory = partial(_BoundedAnswers, loop=asyncio.get_running_loop())
    connector._factory = cast("partial[ResponseHandler]", factory)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=DIAL_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        middlewares=(_refuse_redirects,),
    )


class _BoundedAnswers(ResponseHandler):
    """A connection that is given up when more answers wait on it than one request has."""

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        for place in range(0, max(len(data), 1), _PART):  # b"" has a meaning, too
            super().data_received(data[place : place + _PART])
            if len(self._buffer) > MOST_WAITING_ANSWERS:
                if self.transport is not None:
                    self.transport.abort()
                self.set_exception(aiohttp.ClientPayloadError("it sends more answers than it was asked for"))
                return


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
