"""Plays the folders of examples/: applies a manifest, does what its story says, compares with expected.yaml.

    cluster: [workstation]      simulated nodes (profiles) that the example needs; its pods are kept to them
    steps:
    - expect:                   all of these, at the same moment, before patience ends
      - {kind: Pod, name: basic, has: {status: {phase: Running}}, devices: [workstation-1/gpu-0], log: text}
      - {kind: Pod, name: worker-*, count: 2}       names and strings are globs; count 0 means: none
    - apply: second.yaml        another file of the folder
    - patch: {kind: Deployment, name: web, body: {spec: {replicas: 3}}}   (subresource: status is possible)
    - delete: {kind: Pod, name: basic}
    - fault: {node: workstation-1, driver: gpu.nvidia.com, device: gpu-0, health: Unhealthy}
    - refused: {apply: file.yaml, because: text}    the server says no
    - run: {program: driver.py, node: workstation-1}   a driver of the folder, on that node, until the end

`has` is a part of the object: each key must match, `null` means absent, and each entry of a list must
match an entry of its own. Examples that use different nodes run side by side.
"""

import asyncio
import contextlib
import fnmatch
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dray.client import AlreadyExists, ApiError, Client, NotFound, Request, Resource
from dray.client import resources as known
from dray.drivers.faults import DeviceFault, FaultFile

FOLDER = Path(__file__).resolve().parents[2] / "examples"
RESOURCES = {each.kind: each for each in vars(known).values() if isinstance(each, Resource)}
LOOK = 0.1
AT_ONCE = 4

Object = dict[str, Any]


class Mismatch(AssertionError):
    """The cluster is not as expected.yaml says."""


@dataclass(slots=True)
class Example:
    """One folder."""

    name: str
    folder: Path
    cluster: list[str]
    steps: list[Object]
    objects: list[Object] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        """Its own, or the one that the manifest brings."""
        for obj in self.objects:
            if obj["kind"] == "Namespace":
                return obj["metadata"]["name"]
        return f"ex-{self.name}"


def example_names() -> list[str]:
    """Return the folders, in order."""
    return sorted(path.parent.name for path in FOLDER.glob("*/expected.yaml"))


def load_example(name: str) -> Example:
    """Read a folder."""
    folder = FOLDER / name
    expected = yaml.safe_load((folder / "expected.yaml").read_text("utf-8"))
    assert set(expected) == {"cluster", "steps"}, f"{name}/expected.yaml has {sorted(expected)}"
    return Example(name, folder, expected["cluster"], expected["steps"], _read(folder / "manifest.yaml"))


def _read(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]


# --- comparing ---------------------------------------------------------------------


def matches(expected: Any, actual: Any) -> bool:
    """Return whether the expected part is in the actual object."""
    if expected is None:
        return actual is None
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            matches(value, actual.get(key)) for key, value in expected.items()
        )
    if isinstance(expected, list):
        rest = list(actual or ())
        for entry in expected:
            found = next((each for each in rest if matches(entry, each)), None)
            if found is None:
                return False
            rest.remove(found)
        return True
    if isinstance(expected, str):
        return isinstance(actual, str) and fnmatch.fnmatchcase(actual, expected)
    return type(expected) is type(actual) and bool(expected == actual)


def keep_to(obj: Object, nodes: list[str]) -> None:
    """Let the pods of an object run only on these nodes, as if the cluster had no others."""
    spec = obj.get("spec") or {}
    if obj["kind"] == "Pod":
        _add_affinity(spec, nodes)
    elif isinstance(spec.get("template"), dict):
        _add_affinity(spec["template"]["spec"], nodes)


def _add_affinity(spec: Object, nodes: list[str]) -> None:
    wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    required = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


# --- playing -----------------------------------------------------------------------


class Player:
    """Plays one example on a running system."""

    def __init__(self, example: Example, client: Client, data: Path, patience: float) -> None:
        self.example = example
        self.client = client
        self.data = data
        self.patience = patience
        self.nodes = [f"{profile}-1" for profile in example.cluster]
        self._made: list[Object] = []
        self._programs: list[asyncio.subprocess.Process] = []

    async def play(self) -> None:
        """Apply the manifest and go through the steps; always cleans up."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.example.namespace}}
        try:
            if not any(obj["kind"] == "Namespace" for obj in self.example.objects):
                await self.apply([namespace])
            await self.apply(self.example.objects)
            for number, step in enumerate(self.example.steps, 1):
                ((verb, what),) = step.items()
                try:
                    await getattr(self, f"do_{verb}")(what)
                except Mismatch as error:
                    raise Mismatch(f"{self.example.name}, step {number}: {error}") from None
        finally:
            await self._clean()

    async def apply(self, objects: list[Object]) -> None:
        """Create objects."""
        for obj in objects:
            keep_to(obj, self.nodes)
            resource = RESOURCES[obj["kind"]]
            namespace = obj["metadata"].get("namespace", self.example.namespace)
            await self.client.create(resource, obj, namespace if resource.namespaced else None)
            self._made.append(obj)

    async def do_apply(self, what: str) -> None:
        """Apply another file."""
        await self.apply(_read(self.example.folder / what))

    async def do_refused(self, what: Object) -> None:
        """Apply a file that the server must refuse."""
        try:
            await self.apply(_read(self.example.folder / what["apply"]))
        except ApiError as error:
            if what["because"] not in str(error):
                raise Mismatch(f"refused, but because: {error}") from error
        else:
            raise Mismatch(f"{what['apply']} was not refused")

    async def do_patch(self, what: Object) -> None:
        """Merge-patch an object; with `claimOf`, the status of the claim of a pod."""
        resource = RESOURCES[what["kind"]]
        namespace = self.example.namespace if resource.namespaced else None
        subresource = what.get("subresource", "")
        await self.client.patch(resource, what["name"], what["body"], namespace, subresource=subresource)

    async def do_delete(self, what: Object) -> None:
        """Delete an object."""
        resource = RESOURCES[what["kind"]]
        namespace = self.example.namespace if resource.namespaced else None
        await self.client.delete(resource, what["name"], namespace)

    async def do_fault(self, what: Object) -> None:
        """Break a simulated device; cleaning up heals it."""
        what = dict(what)
        file = self._fault_file(what.pop("node"), what.pop("driver"))
        file.change(what.pop("device"), msgspec.convert(what, DeviceFault))

    async def do_run(self, what: Object) -> None:
        """Start a driver on a node; cleaning up ends it."""
        root = self.data / "nodes" / what["node"]
        command = [str(self.example.folder / what["program"]), "--node-name", what["node"]]
        command += ["--kubelet-dir", str(root), "--cdi-dir", str(root / "cdi")]
        with (self.data / "logs" / f"{self.example.name}.log").open("wb") as log:
            self._programs.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, *command, stdout=log, stderr=log,
                    env={**os.environ, "KUBECONFIG": str(self.data / "admin.kubeconfig")},
                )
            )  # fmt: skip

    def _fault_file(self, node: str, driver: str) -> FaultFile:
        return FaultFile(self.data / "nodes" / node / "faults" / f"{driver}.yaml")

    async def do_expect(self, checks: list[Object]) -> None:
        """Look until every check holds."""
        await self._look(checks, self.patience)

    async def do_glance(self, checks: list[Object]) -> None:
        """Look for a moment only: for what has happened already, or never will."""
        await self._look(checks, 2.0)

    async def _look(self, checks: list[Object], seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            wrong = [complaint for check in checks if (complaint := await self._complaint(check))]
            if not wrong:
                return
            if time.monotonic() > end:
                raise Mismatch("; ".join(wrong))
            await asyncio.sleep(LOOK)

    async def _complaint(self, check: Object) -> str:
        resource = RESOURCES[check["kind"]]
        namespace = self.example.namespace if resource.namespaced else None
        named = [
            each
            for each in (await self.client.list(resource, namespace)).items
            if fnmatch.fnmatchcase(each["metadata"]["name"], check.get("name", "*"))
        ]
        good, complaints = [], []
        for obj in named:
            complaint = await self._difference(check, obj)
            complaints.append(complaint) if complaint else good.append(obj)
        title = f"{check['kind']} {check.get('name', '*')}"
        if "count" in check:
            if len(good) == check["count"]:
                return ""
            return f"{title}: {len(good)} of {len(named)} match, not {check['count']}; {complaints}"
        if good:
            return ""
        return f"{title}: {complaints[0] if complaints else 'not there'}"

    async def _difference(self, check: Object, obj: Object) -> str:
        for part, expected in (check.get("has") or {}).items():
            if not matches(expected, obj.get(part)):
                return f"{part} is {obj.get(part)}, expected {expected}"
        if "devices" in check:
            devices = sorted(await self._devices(obj))
            wanted = check["devices"]
            if isinstance(wanted, int):
                if len(devices) != wanted:
                    return f"holds {devices}, expected {wanted} devices"
            elif len(devices) != len(wanted) or not matches(wanted, devices):
                return f"holds {devices}, expected {wanted}"
        if "log" in check:
            log = await self._log(obj, check.get("container"))
            texts = [check["log"]] if isinstance(check["log"], str) else check["log"]
            missing = [text for text in texts if text not in log]
            if missing:
                return f"its log lacks {missing}: {log!r}"
        return ""

    async def _devices(self, obj: Object) -> list[str]:
        """Return `pool/device` of everything a pod or claim holds."""
        if obj.get("kind") == "ResourceClaim" or "reservedFor" in obj.get("status", {}):
            claims = [obj]
        else:
            names = [entry.get("resourceClaimName") for entry in obj["spec"].get("resourceClaims", ())]
            status = obj.get("status", {})
            names += [entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses", ())]
            names.append(status.get("extendedResourceClaimStatus", {}).get("resourceClaimName"))
            claims = []
            for name in filter(None, names):
                with contextlib.suppress(NotFound):
                    claims.append(await self.client.get(known.CLAIMS, name, self.example.namespace))
        return [
            f"{result['pool']}/{result['device']}"
            for claim in claims
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        ]

    async def _log(self, obj: Object, container: str | None) -> str:
        path = known.PODS.path(self.example.namespace, obj["metadata"]["name"], "log")
        response = await self.client.transport.send(
            Request("GET", f"{path}?container={container}" if container else path)
        )
        return response.body.decode("utf-8", "replace")

    # --- cleaning up ---------------------------------------------------------------

    async def _clean(self) -> None:
        for node in self.nodes:
            for path in (self.data / "nodes" / node / "faults").glob("*.yaml"):
                path.unlink()
        for obj in reversed(self._made):
            resource = RESOURCES[obj["kind"]]
            namespace = obj["metadata"].get("namespace", self.example.namespace)
            with contextlib.suppress(NotFound):
                await self.client.delete(
                    resource,
                    obj["metadata"]["name"],
                    namespace if resource.namespaced else None,
                    propagation="Background",
                )
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            try:
                await self.client.get(known.NAMESPACES, self.example.namespace)
            except NotFound:
                break
            await asyncio.sleep(LOOK)
        else:
            raise Mismatch(f"{self.example.name}: the namespace {self.example.namespace} does not go away")
        for program in self._programs:  # last: pods need their driver to end
            program.terminate()
            await program.wait()


async def play_all(examples: list[Example], kubeconfig: Path, data: Path, patience: float) -> dict[str, str]:
    """Play examples, those on different nodes side by side; returns what went wrong, by name."""
    locks = {profile: asyncio.Lock() for example in examples for profile in example.cluster}
    slots = asyncio.Semaphore(AT_ONCE)
    failures: dict[str, str] = {}

    async def play(example: Example) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for profile in sorted(example.cluster):  # in one order: nobody waits in a circle
                await stack.enter_async_context(locks[profile])
            await stack.enter_async_context(slots)
            try:
                await Player(example, client, data, patience).play()
            except (Mismatch, ApiError, AlreadyExists, KeyError) as error:
                failures[example.name] = f"{type(error).__name__}: {error}"

    async with Client.connect(kubeconfig) as client:
        await asyncio.gather(*(play(example) for example in examples))
    return failures
