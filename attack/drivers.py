"""Drivers that answer the node agent with anything but what was asked, beside one good driver that must still be served.

`serve_hostile` runs in a process of its own (gRPC and forks do not go together) and puts one socket for each behaviour into
the registry of a real `dray node`. The node is judged by `Campaign`: it must live, log no
traceback, keep its memory, renew its lease, and start the pod of the good driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from attack.servers import Server
from attack.wire import Request, json_request

NODE = "driven"
GOOD = "good.example.com"
NAMESPACE = "default"
_HUGE = 3_900_000  # bytes; gRPC takes messages of 4 MB by default
_MANY = 60_000

# What a driver says of itself: name -> fields of PluginInfo that differ from a good one.
INFOS: dict[str, dict[str, Any]] = {
    "type": {"type": "CSIPlugin"}, "no-name": {"name": ""}, "huge-name": {"name": "a" * _HUGE}, "odd-name": {"name": "../../etc"}, "line-name": {"name": "a\nb"},
    "null-name": {"name": "a\x00b"}, "no-versions": {"supported_versions": []}, "odd-versions": {"supported_versions": ["v9.DRAPlugin"] * _MANY},
    "empty-version": {"supported_versions": [""]}, "elsewhere": {"endpoint": "/nowhere/x.sock"}, "relative": {"endpoint": "../x.sock"}, "long-endpoint": {"endpoint": "/" + "a" * 5_000},
    "null-endpoint": {"endpoint": "/a\x00b"}, "web-endpoint": {"endpoint": "dns:///127.0.0.1:1"},
}  # fmt: skip
# How a driver prepares claims.
PREPARES = (
    "never", "empty", "wrong-uid", "many-claims", "many-devices", "huge-error", "odd-error", "huge-cdi", "odd-cdi", "line-cdi", "odd-devices", "huge-share", "abort",
    "odd-requests", "too-large",
)  # fmt: skip
HEALTHS = ("health-flood", "health-huge", "health-odd", "health-ends", "health-never")


class _Registration:
    def __init__(self, info: Any, silent: bool = False) -> None:
        self._info, self._silent = info, silent

    async def GetInfo(self, _: Any, __: Any) -> Any:  # noqa: N802
        if self._silent:
            await asyncio.sleep(3_600)
        return self._info

    async def NotifyRegistrationStatus(self, _: Any, __: Any) -> Any:  # noqa: N802
        from dray.api.rpc.generated import registration_v1_pb2

        return registration_v1_pb2.RegistrationStatusResponse()


class _Plugin:
    """Answers prepare as its behaviour says; unprepare likewise."""

    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        from dray.api.rpc.generated import dra_v1_pb2 as messages

        answer = messages.NodePrepareResourcesResponse()
        if self._behaviour == "never":
            await asyncio.sleep(3_600)
        if self._behaviour == "abort":
            import grpc

            await context.abort(grpc.StatusCode.DATA_LOSS, "x" * 4_000)
        if self._behaviour == "many-claims":
            for number in range(_MANY):
                answer.claims[f"uid-{number}"].error = "e"
        for claim in request.claims:
            self._fill(answer.claims["other" if self._behaviour == "wrong-uid" else claim.uid])
        return answer

    def _fill(self, outcome: Any) -> None:
        device = {"pool_name": NODE, "device_name": "d", "request_names": ["r"], "cdi_device_ids": []}
        match self._behaviour:
            case "empty":
                return
            case "many-devices":
                for number in range(_MANY):
                    outcome.devices.add(**{**device, "device_name": f"d{number}"})
                return
            case "huge-error":
                outcome.error = "e" * _HUGE
            case "odd-error":
                outcome.error = "\x00\x1b[31m\n\r" + "é" * 100
            case "huge-cdi":
                device["cdi_device_ids"] = ["a.example/b=" + "c" * _HUGE]
            case "too-large":
                device["cdi_device_ids"] = ["a.example/b=" + "c" * (20 * 1024 * 1024)]
            case "odd-cdi":
                device["cdi_device_ids"] = [
                    "",
                    "x",
                    "a/b",
                    "=",
                    "../../etc/passwd=x",
                    "a.example/b=../../x",
                    "a.example/b=é",
                    "a.example/b=c\x00",
                ]
            case "line-cdi":
                device["cdi_device_ids"] = ["a.example/b=c\nd: e", " "]
            case "odd-devices":
                device |= {"pool_name": "../..", "device_name": "\x00"}
            case "huge-share":
                device["share_id"] = "s" * _HUGE
            case "odd-requests":
                device["request_names"] = ["", "r/../..", "x" * 100_000]
        outcome.devices.add(**device)

    async def NodeUnprepareResources(self, request: Any, _: Any) -> Any:  # noqa: N802
        from dray.api.rpc.generated import dra_v1_pb2 as messages

        if self._behaviour == "never":
            await asyncio.sleep(3_600)
        answer = messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].error = "" if self._behaviour == "good" else "no"
        return answer


class _Health:
    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour

    async def NodeWatchResources(self, _: Any, __: Any) -> AsyncIterator[Any]:  # noqa: N802
        from dray.api.rpc.generated import health_v1_pb2 as messages

        def report(
            pool: str, device: str, health: int, message: str = "", updated: int = 1, timeout: int = 0
        ) -> Any:
            identifier = messages.DeviceIdentifier(pool_name=pool, device_name=device)
            return messages.DeviceHealth(
                device=identifier,
                health=health,
                message=message,
                last_updated_time=updated,
                health_check_timeout_seconds=timeout,
            )

        for number in range(200_000):
            match self._behaviour:
                case "health-flood":
                    yield messages.NodeWatchResourcesResponse(
                        devices=[report(NODE, f"d{number}", number % 3)]
                    )
                    await asyncio.sleep(0 if number % 100 else 0.01)
                case "health-huge":
                    yield messages.NodeWatchResourcesResponse(
                        devices=[report(NODE, f"d{number}x{n}", 2, "m" * 3_000) for n in range(1_000)]
                    )
                    await asyncio.sleep(0.2)
                case "health-odd":
                    yield messages.NodeWatchResourcesResponse(
                        devices=[report("", "", 99, "\x00é", -(2**63), 2**63 - 1), messages.DeviceHealth()]
                    )
                    await asyncio.sleep(0.1)
                case "health-ends":
                    return
                case _:
                    await asyncio.sleep(3_600)


def names() -> list[str]:
    """Return every behaviour whose driver can be given a pod."""
    return [*PREPARES, *HEALTHS]


async def _serve(registry: Path, sockets: Path, seconds: float) -> None:
    import grpc

    from dray.api.rpc.generated import (
        dra_v1_pb2_grpc,
        health_v1_pb2_grpc,
        registration_v1_pb2,
        registration_v1_pb2_grpc,
    )

    limits = [("grpc.max_send_message_length", -1)]
    running = []

    async def start(name: str, info: dict[str, Any], behaviour: str, silent: bool = False) -> None:
        endpoint = sockets / f"{name}.sock"
        fields = {
            "type": "DRAPlugin",
            "name": f"{name}.example.com",
            "endpoint": str(endpoint),
            "supported_versions": ["v1.DRAPlugin", "v1.DRAResourceHealth"],
        }
        for path in (registry / f"{name}.sock", endpoint):
            server = grpc.aio.server(options=limits)
            registration_v1_pb2_grpc.add_RegistrationServicer_to_server(
                _Registration(registration_v1_pb2.PluginInfo(**{**fields, **info}), silent), server
            )
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Plugin(behaviour), server)
            health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(behaviour), server)
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            running.append(server)

    await start("good", {"name": GOOD}, "good")
    for name, info in INFOS.items():
        await start(name, info, "good")
    await start("silent", {}, "good", silent=True)
    for name in names():
        await start(name, {}, name)
    raw = _raw_sockets(registry)
    (registry.parent / "serving").touch()
    await asyncio.sleep(seconds)
    for server in running:
        await server.stop(0)
    for each in raw:
        each.close()


def _raw_sockets(registry: Path) -> list[socket.socket]:
    """Put things into the registry that are no gRPC servers."""
    made = []
    for number in range(50):
        each = socket.socket(socket.AF_UNIX)
        each.bind(str(registry / f"raw{number}.sock"))
        if number % 2:
            each.listen(1)
        made.append(each)
    (registry / "file.sock").write_bytes(b"\x00" * 100)
    (registry / "folder.sock").mkdir()
    with contextlib.suppress(OSError):
        (registry / "loop.sock").symlink_to(registry / "loop.sock")
        (registry / "device.sock").symlink_to("/dev/zero")
        os.mkfifo(registry / "fifo.sock")
        (registry / "é\udcff.sock").touch()
    return made


def serve_hostile(registry: str, sockets: str, seconds: float) -> None:
    """Serve all drivers for so long."""
    asyncio.run(_serve(Path(registry), Path(sockets), seconds))


class Node:
    """A real node agent, with its log in a file."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.root = folder / "n"
        self.log = folder / "node.log"
        self.registry = self.root / "plugins_registry"
        self.registry.mkdir(parents=True)
        kubeconfig = folder / "node.kubeconfig"
        command = [
            sys.executable,
            "-m",
            "dray",
            "kubeconfig",
            "--node",
            NODE,
            "--data",
            str(server.data),
            "--file",
            str(kubeconfig),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dray", "node", "--kubeconfig", str(kubeconfig), "--name", NODE, "--root", str(self.root),
                 "--runtime", "none", "--address", "127.0.0.1", "--cdi-dir", str(folder / "cdi")],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )  # fmt: skip

    def stop(self) -> None:
        """End the agent."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(15)


def pod_requests(behaviour: str, driver: str) -> tuple[Request, Request, str]:
    """Return the requests that make a pod and its claim, and the path of the claim's status."""
    name = f"with-{behaviour}"
    claims = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
    spec = {
        "nodeName": NODE, "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}],
        "resourceClaims": [{"name": "d", "resourceClaimName": name}],
    }  # fmt: skip
    pod = json_request(
        "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": spec}
    )
    requests = [{"name": "r", "exactly": {"deviceClassName": "x"}}]
    claim = json_request(
        "POST", claims, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
    )
    return pod, claim, f"{claims}/{name}/status"


def allocation(driver: str, pod: str, uid: str) -> dict[str, Any]:
    """Return the merge patch that allocates a claim and reserves it for a pod."""
    result = {"request": "r", "driver": driver, "pool": NODE, "device": "d"}
    return {
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
        }
    }
