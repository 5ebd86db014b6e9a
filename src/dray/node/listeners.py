"""Which process listens on a port: what may be forwarded to, for pods that share the network of their node.

Here a pod's containers see the node's network, so "port 8080 of the pod" could be anybody's. Only a port on which a
process of the pod itself listens counts as the pod's: the kernel says which socket listens (`/proc/PID/net/tcp`), and
which process has it open (`/proc/PID/fd`). A process is the pod's when it is a descendant of one of its containers'
first processes, or in the session of one. A program that leaves both (a daemon) is not found, and its port not forwarded.

As with Kubernetes, only listeners on the loopback interface or on all interfaces can be reached.

Tests: tests/unit/node/test_node_port_forward.py.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dray.host.namespaces import OWN_NETWORK, in_network_namespace, is_same_namespace

_PROC = Path("/proc")
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a process of a pod listens on, and how to reach it."""

    host: str
    namespace: Path  # the process's network

    def open_socket(self) -> socket.socket:
        """Return a socket, not connected, in the network of the process; raises OSError."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        if is_same_namespace(self.namespace, OWN_NETWORK):
            return socket.socket(family, socket.SOCK_STREAM)
        return in_network_namespace(self.namespace, lambda: socket.socket(family, socket.SOCK_STREAM))


def find_listener(first_processes: Iterable[int], port: int) -> Listener | None:
    """Return who listens on a port among the processes of a pod's containers, IPv4 first."""
    for pid in sorted(_family(set(first_processes))):
        hosts = _listening(pid, port)
        if not hosts:
            continue
        with contextlib.suppress(OSError):  # the process has ended
            for entry in os.scandir(_PROC / str(pid) / "fd"):
                host = hosts.get(_target(entry.path))
                if host is not None:
                    return Listener(host, _PROC / str(pid) / "ns" / "net")
    return None


def _family(first: set[int]) -> set[int]:
    """Return processes with all their descendants and those of their sessions."""
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of the program, in parentheses, may have blanks and parentheses itself.
            fields = (_PROC / entry.name / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            if int(fields[3]) in first:
                found.add(int(entry.name))
    waiting = [*first]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += (child for child in children.get(pid, ()) if child not in found)
    return found


def _listening(pid: int, port: int) -> dict[str, str]:
    """Return the sockets that listen on a port in the network of a process, and at which address each can be reached."""
    hosts: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == _LISTENING and int(number, 16) == port:
                    host = _reachable_at(address)
                    if host:
                        hosts[f"socket:[{fields[9]}]"] = host
    return hosts


def _reachable_at(text: str) -> str:
    """Return the loopback address that reaches a listener, as the kernel writes its address; nothing if none does."""
    # Words of four bytes, each as a number of this machine: little-endian on all that dray runs on.
    packed = b"".join(bytes.fromhex(text[place : place + 8])[::-1] for place in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address) if address.is_loopback else ""


def _target(link: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(link)
    return ""
