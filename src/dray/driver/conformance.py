"""A conformance kit: plays the node against a running driver and says what it does wrong.

It works on any DRA driver, whatever language it is written in: only its sockets,
its slices and its CDI files are looked at. The kit registers the driver as kubelet
would, waits for its slices, makes a claim for a device it found there (playing the
scheduler, too), and has it prepared, prepared again, unprepared, unprepared again.
If the kit may start the driver itself, it also kills it in between, without warning.

Each check is a method that returns nothing when all is well and raises `Failed`
with what it saw. They run in order, because a driver has a life; a failure does not
end the run unless nothing after it could work.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgspec

from dray.api.cdi import CdiError, CdiSpec, parse_qualified_name
from dray.api.meta import ObjectMeta
from dray.api.parsing import ParseError, load_json
from dray.api.resource import (
    AllocationResult,
    Device,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceRequest,
    DeviceRequestAllocationResult,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceSlice,
)
from dray.api.rpc import DRA_SERVICES, DRA_V1, HEALTH_SERVICES, HEALTH_V1, PLUGIN_TYPE
from dray.api.rpc.generated import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from dray.client import Client, ClientError, NotFound
from dray.client.resources import CLAIMS, SLICES
from dray.devices import is_complete, newest_generation, slices_by_pool

REQUEST = "checked"
_CALL_SECONDS = 45.0


class Failed(Exception):
    """What the driver did wrong; `is_fatal` means that the rest cannot be checked."""

    def __init__(self, message: str, *, is_fatal: bool = False) -> None:
        super().__init__(message)
        self.is_fatal = is_fatal


class Skipped(Exception):
    """Why a check does not apply."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check, and what came of it."""

    check: str
    verdict: str  # ok, failed, skipped
    detail: str = ""


@dataclass(slots=True)
class Kit:
    """Everything the kit knows about the driver under test."""

    client: Client
    registry_dir: Path
    cdi_dirs: Sequence[Path]
    node_name: str
    driver: str = ""  # empty: whoever registers first
    namespace: str = "default"
    wait_seconds: float = 30.0
    start: Callable[[], Awaitable[None]] | None = None  # start the driver (again)
    kill: Callable[[], Awaitable[None]] | None = None  # kill it without warning
    info: Any = None
    slices: list[ResourceSlice] = field(default_factory=list)
    claim: ResourceClaim | None = None
    device: tuple[str, Device] | None = None  # pool, device
    first_answer: dict[str, Any] = field(default_factory=dict)  # service -> devices

    async def run(self) -> list[Outcome]:
        """Run all checks."""
        outcomes: list[Outcome] = []
        if self.start is not None:
            await self.start()
        for name, check in _CHECKS:
            try:
                await check(self)
                outcomes.append(Outcome(name, "ok"))
            except Skipped as reason:
                outcomes.append(Outcome(name, "skipped", str(reason)))
            except Failed as failure:
                outcomes.append(Outcome(name, "failed", str(failure)))
                if failure.is_fatal:
                    break
            except grpc.RpcError as error:
                outcomes.append(Outcome(name, "failed", f"gRPC {error.code().name}: {error.details()}"))
            except ClientError as error:
                outcomes.append(Outcome(name, "failed", f"API server: {error}"))
        await self._clean_up()
        return outcomes

    async def _clean_up(self) -> None:
        if self.claim is None:
            return
        try:
            await self.client.delete(CLAIMS, self.claim.metadata.name, self.namespace)
        except ClientError:
            pass

    # --- checks -----------------------------------------------------------------

    async def registers(self) -> None:
        """A socket in the registry answers GetInfo and hears of its registration."""
        deadline = asyncio.get_running_loop().time() + self.wait_seconds
        problem = f"no socket appeared in {self.registry_dir}"
        while asyncio.get_running_loop().time() < deadline:
            for socket in sorted(self.registry_dir.glob("*.sock")):
                try:
                    info = await self._introduce(socket)
                except grpc.RpcError as error:
                    problem = f"{socket.name}: {error.code().name}: {error.details()}"
                    continue
                if not self.driver or info.name == self.driver:
                    self.info = info
                    self.driver = info.name
                    return
                problem = f"only {info.name} registered"
            await asyncio.sleep(0.1)
        raise Failed(problem, is_fatal=True)

    async def _introduce(self, socket: Path) -> Any:
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub = registration_v1_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=5)
            if not self.driver or info.name == self.driver:
                status = registration_v1_pb2.RegistrationStatus(plugin_registered=True)
                await stub.NotifyRegistrationStatus(status, timeout=5)
            return info

    async def introduces_itself_properly(self) -> None:
        """Type, endpoint and services make sense."""
        if self.info.type != PLUGIN_TYPE:
            raise Failed(f"type is {self.info.type!r}, not {PLUGIN_TYPE!r}", is_fatal=True)
        if not Path(self.info.endpoint).is_absolute() or not Path(self.info.endpoint).is_socket():
            raise Failed(
                f"endpoint {self.info.endpoint!r} is not the absolute path of a socket", is_fatal=True
            )
        if not self._services():
            raise Failed(
                f"supported_versions {list(self.info.supported_versions)} name no DRA service", is_fatal=True
            )

    async def publishes_complete_pools(self) -> None:
        """Slices appear, and for each pool as many as they announce, with unique device names."""
        deadline = asyncio.get_running_loop().time() + self.wait_seconds
        problem = "no ResourceSlice was published"
        while asyncio.get_running_loop().time() < deadline:
            found = await self.client.list(
                SLICES, view=ResourceSlice, fieldSelector=f"spec.driver={self.driver}"
            )
            mine = [s for s in found.items if s.spec.node_name in (None, self.node_name)]
            problem = _pool_problem(mine) if mine else problem
            if mine and not problem:
                self.slices = mine
                return
            await asyncio.sleep(0.2)
        raise Failed(problem, is_fatal=True)

    async def prepares(self) -> None:
        """An allocated claim is prepared, and the answer fits the allocation."""
        await self._make_claim()
        for service in self._services():
            outcome = await self._prepare(service)
            if outcome.error:
                raise Failed(f"{service}: {outcome.error}", is_fatal=True)
            self._judge_devices(service, outcome.devices)
            self.first_answer[service] = _plain(outcome.devices)

    async def writes_resolvable_cdi_specs(self) -> None:
        """Every CDI name in the answer is defined by exactly one spec file."""
        known = list(self._cdi_names())
        for devices in self.first_answer.values():
            for device in devices:
                for name in device["cdi"]:
                    if known.count(name) != 1:
                        where = ", ".join(str(folder) for folder in self.cdi_dirs)
                        raise Failed(f"CDI device {name} is defined {known.count(name)} times in {where}")

    async def prepares_again_with_the_same_answer(self) -> None:
        """Prepare is idempotent."""
        for service in self._services():
            outcome = await self._prepare(service)
            if outcome.error or _plain(outcome.devices) != self.first_answer.get(service):
                raise Failed(f"{service}: the second answer was {outcome.error or _plain(outcome.devices)}, "
                             f"the first {self.first_answer.get(service)}")  # fmt: skip

    async def survives_kill_9(self) -> None:
        """After a kill the driver registers again and gives the same answer."""
        if self.kill is None or self.start is None:
            raise Skipped("the kit did not start the driver; give --command to check this")
        await self.kill()
        await self.start()
        self.info = None
        await self._register_again()
        for service in self._services():
            outcome = await self._prepare(service)
            if outcome.error or _plain(outcome.devices) != self.first_answer.get(service):
                raise Failed(f"{service}: after a kill the answer was {outcome.error or _plain(outcome.devices)}, "
                             f"before {self.first_answer.get(service)}")  # fmt: skip

    async def _register_again(self) -> None:
        deadline = asyncio.get_running_loop().time() + self.wait_seconds
        while True:
            try:
                await self.registers()
                await self.introduces_itself_properly()
                async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}") as channel:
                    await asyncio.wait_for(channel.channel_ready(), 5)
                return
            except (Failed, TimeoutError) as failure:
                # The sockets of the killed process may still lie there for a moment.
                if asyncio.get_running_loop().time() > deadline:
                    raise Failed(f"the driver did not come back: {failure}", is_fatal=True) from failure
                await asyncio.sleep(0.1)

    async def refuses_a_replaced_claim(self) -> None:
        """A claim of the same name with another UID is refused; an answer per claim spares the others.

        Kubernetes' own helper library fails the whole call instead, so that is accepted too.
        """
        assert self.claim is not None
        for service in self._services():
            wrong = "00000000-0000-4000-8000-000000000000"
            try:
                answer = await self._call(service, "NodePrepareResources", [wrong, self.claim.metadata.uid])
            except grpc.RpcError:
                continue
            missing = {wrong, self.claim.metadata.uid} - set(answer.claims)
            if missing:
                raise Failed(f"{service}: the answer leaves out claims {sorted(missing)}")
            if not answer.claims[wrong].error:
                raise Failed(f"{service}: a claim with a wrong UID was prepared")
            if answer.claims[self.claim.metadata.uid].error:
                raise Failed(
                    f"{service}: one bad claim spoiled another: {answer.claims[self.claim.metadata.uid].error}"
                )

    async def reports_health(self) -> None:
        """A driver that offers health streams a first list of devices that it published."""
        offered = [service for service in HEALTH_SERVICES if service in self.info.supported_versions]
        if not offered:
            raise Skipped("the driver does not report health")
        published = {(s.spec.pool.name, device.name) for s in self.slices for device in s.spec.devices}
        for service in offered:
            messages, services = (
                (health_v1_pb2, health_v1_pb2_grpc)
                if service == HEALTH_V1
                else (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc)
            )
            async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}") as channel:
                stream = services.DRAResourceHealthStub(channel).NodeWatchResources(
                    messages.NodeWatchResourcesRequest()
                )
                try:
                    first = await asyncio.wait_for(stream.read(), self.wait_seconds)
                except TimeoutError as error:
                    raise Failed(f"{service}: no message within {self.wait_seconds:.0f} s") from error
                finally:
                    stream.cancel()
            strange = [
                f"{entry.device.pool_name}/{entry.device.device_name}"
                for entry in first.devices
                if (entry.device.pool_name, entry.device.device_name) not in published
            ]
            if strange:
                raise Failed(f"{service}: health of devices that are not published: {', '.join(strange)}")

    async def unprepares_and_leaves_nothing(self) -> None:
        """Unprepare succeeds, and the claim's CDI names are gone."""
        assert self.claim is not None
        service = self._services()[0]
        answer = await self._call(service, "NodeUnprepareResources", [self.claim.metadata.uid])
        if self.claim.metadata.uid not in answer.claims:
            raise Failed("the answer leaves out the claim")
        if answer.claims[self.claim.metadata.uid].error:
            raise Failed(answer.claims[self.claim.metadata.uid].error)
        left = [name for name in self._cdi_names() if self.claim.metadata.uid in name]
        if left:
            raise Failed(f"CDI devices of the claim are still defined: {', '.join(left)}")

    async def unprepares_again_and_without_the_claim(self) -> None:
        """Unprepare is idempotent, and needs no claim object: it may be gone by then."""
        assert self.claim is not None
        try:
            await self.client.delete(CLAIMS, self.claim.metadata.name, self.namespace)
        except NotFound:
            pass
        for service in self._services():
            answer = await self._call(service, "NodeUnprepareResources", [self.claim.metadata.uid])
            outcome = answer.claims.get(self.claim.metadata.uid)
            if outcome is None or outcome.error:
                raise Failed(f"{service}: {outcome.error if outcome else 'the answer leaves out the claim'}")

    async def keeps_its_slices(self) -> None:
        """None of this changed the pools' generations: nothing happened to the hardware."""
        before = {s.metadata.name: s.spec.pool.generation for s in self.slices}
        found = await self.client.list(SLICES, view=ResourceSlice, fieldSelector=f"spec.driver={self.driver}")
        after = {s.metadata.name: s.spec.pool.generation for s in found.items if s.metadata.name in before}
        if after != before:
            raise Failed(f"slices changed without need: before {before}, after {after}")

    # --- tools ------------------------------------------------------------------

    def _services(self) -> list[str]:
        return [service for service in self.info.supported_versions if service in DRA_SERVICES]

    async def _make_claim(self) -> None:
        candidates = [
            (s.spec.pool.name, device)
            for s in self.slices
            for device in s.spec.devices
            if not device.taints and not device.binding_conditions
        ]
        if not candidates:
            raise Failed(
                "no published device can be allocated (all are tainted, or there is none)", is_fatal=True
            )
        pool, device = self.device = candidates[0]
        share = f"{secrets.token_hex(4)}-0000-4000-8000-{secrets.token_hex(6)}"
        exact = ExactDeviceRequest(
            device_class_name="dray-driver-check", allocation_mode="ExactCount", count=1
        )
        claim = ResourceClaim(
            metadata=ObjectMeta(name=f"dray-driver-check-{secrets.token_hex(3)}", namespace=self.namespace),
            spec=ResourceClaimSpec(
                devices=DeviceClaim(requests=[DeviceRequest(name=REQUEST, exactly=exact)])
            ),
        )
        made = await self.client.create(CLAIMS, claim, self.namespace, view=ResourceClaim)
        result = DeviceRequestAllocationResult(
            request=REQUEST,
            driver=self.driver,
            pool=pool,
            device=device.name,
            share_id=share if device.allow_multiple_allocations else None,
        )
        status = ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=[result])),
            reserved_for=[
                ResourceClaimConsumerReference(resource="pods", name="dray-driver-check", uid=share)
            ],
        )
        body = msgspec.structs.replace(made, status=status)
        self.claim = await self.client.update(
            CLAIMS, made.metadata.name, body, self.namespace, subresource="status", view=ResourceClaim
        )

    async def _prepare(self, service: str) -> Any:
        assert self.claim is not None
        uid = self.claim.metadata.uid
        answer = await self._call(service, "NodePrepareResources", [uid])
        if uid not in answer.claims:
            raise Failed(f"{service}: the answer leaves out the claim")
        return answer.claims[uid]

    async def _call(self, service: str, method: str, uids: Sequence[str]) -> Any:
        assert self.claim is not None
        messages, services = (
            (dra_v1_pb2, dra_v1_pb2_grpc) if service == DRA_V1 else (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)
        )
        claims = [
            messages.Claim(namespace=self.namespace, name=self.claim.metadata.name, uid=uid) for uid in uids
        ]
        async with grpc.aio.insecure_channel(f"unix:{self.info.endpoint}") as channel:
            stub = services.DRAPluginStub(channel)
            request = getattr(messages, f"{method}Request")(claims=claims)
            return await getattr(stub, method)(request, timeout=_CALL_SECONDS)

    def _judge_devices(self, service: str, devices: Sequence[Any]) -> None:
        assert self.device is not None
        pool, device = self.device
        if len(devices) != 1:
            raise Failed(f"{service}: one device was allocated, {len(devices)} were prepared")
        answer = devices[0]
        if (answer.pool_name, answer.device_name) != (pool, device.name):
            raise Failed(
                f"{service}: {pool}/{device.name} was allocated, {answer.pool_name}/{answer.device_name} prepared"
            )
        if any("/" in name for name in answer.request_names) or set(answer.request_names) - {REQUEST}:
            raise Failed(f"{service}: request names {list(answer.request_names)}, expected {[REQUEST]}")
        for name in answer.cdi_device_ids:
            try:
                parse_qualified_name(name)
            except CdiError as error:
                raise Failed(f"{service}: {error}") from error

    def _cdi_names(self) -> Iterator[str]:
        for folder in self.cdi_dirs:
            for path in sorted(folder.glob("*.json")):
                try:
                    spec = load_json(path.read_bytes(), CdiSpec)
                except (OSError, ParseError):
                    continue
                for device in spec.devices:
                    yield f"{spec.kind}={device.name}"


def _plain(devices: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "requests": sorted(device.request_names),
            "pool": device.pool_name,
            "device": device.device_name,
            "cdi": list(device.cdi_device_ids),
        }
        for device in devices
    ]


def _pool_problem(slices: Sequence[ResourceSlice]) -> str:
    for (_, name), members in slices_by_pool(slices).items():
        current = newest_generation(members)
        if not is_complete(current):
            promised = current[0].spec.pool.resource_slice_count
            return f"pool {name}: {promised} slices promised, {len(current)} published"
        names = [device.name for member in current for device in member.spec.devices]
        if len(set(names)) != len(names):
            return f"pool {name}: device names are not unique"
    return ""


_CHECKS: list[tuple[str, Callable[[Kit], Awaitable[None]]]] = [
    ("registers", Kit.registers),
    ("introduces itself properly", Kit.introduces_itself_properly),
    ("publishes complete pools", Kit.publishes_complete_pools),
    ("prepares an allocated claim", Kit.prepares),
    ("writes resolvable CDI specs", Kit.writes_resolvable_cdi_specs),
    ("prepares again with the same answer", Kit.prepares_again_with_the_same_answer),
    ("survives kill -9 between two prepares", Kit.survives_kill_9),
    ("refuses a replaced claim", Kit.refuses_a_replaced_claim),
    ("reports health", Kit.reports_health),
    ("unprepares and leaves nothing", Kit.unprepares_and_leaves_nothing),
    ("unprepares again, also without the claim", Kit.unprepares_again_and_without_the_claim),
    ("keeps its slices", Kit.keeps_its_slices),
]
