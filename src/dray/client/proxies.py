"""Which HTTP proxy to use: `proxy-url` of a kubeconfig, or the environment, as kubectl does.

The environment's rules are those of Go programs: HTTPS_PROXY or HTTP_PROXY by the server's
scheme (the upper-case name first), except what NO_PROXY lists; never for the
machine itself. A kubeconfig's proxy-url goes before the environment and knows no exceptions.

Only `http://` proxies are supported. Others are an error that names them: going to the
server directly instead would send credentials where the user did not want them.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from dray.client.endpoint import Proxy, header_value
from dray.client.errors import KubeconfigError


def parse_proxy(text: str, what: str) -> Proxy:
    """Read a proxy's address; raise KubeconfigError that begins with `what`."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise KubeconfigError(f"{what} {text!r} is not an address: {error}") from None
    if parts.scheme != "http":
        raise KubeconfigError(
            f"{what}: proxies of the kind {parts.scheme}:// are not supported, only http://HOST[:PORT]"
        )
    if not parts.hostname:
        raise KubeconfigError(f"{what} {text!r} names no host; write http://HOST[:PORT]")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(header_value(parts.hostname, what), port or 80, authorization)


def environment_proxy(server: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment names for a server; None means: go there directly."""
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    text = environment.get(name) or environment.get(name.lower())
    if not text or (name == "HTTP_PROXY" and environment.get("REQUEST_METHOD")):
        # In a CGI program HTTP_PROXY is what the caller sent as the header `Proxy`.
        return None
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if is_direct(parts.hostname or "", port, exceptions):
        return None
    return parse_proxy(text, f"the environment variable {name}")


def is_direct(host: str, port: int, exceptions: str) -> bool:
    """Return whether a host is reached without the environment's proxy.

    >>> is_direct("127.0.0.1", 443, ""), is_direct("10.1.2.3", 443, "10.0.0.0/8")
    (True, True)
    >>> is_direct("api.example.com", 443, ".example.com"), is_direct("example.com", 443, ".example.com")
    (True, False)
    """
    host = host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in exceptions.split(","))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def _matches(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int
) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and _address(entry) is None:
        if int(number) != port:
            return False
        entry = name
    wanted = _address(entry)
    if wanted is not None:
        return address == wanted
    entry = entry.removeprefix("*") if entry.startswith("*.") else entry
    if entry.startswith("."):
        return host.endswith(entry)
    return host == entry or host.endswith(f".{entry}")
