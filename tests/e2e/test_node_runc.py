"""Real containers by runc: devices, mounts, hooks and walls. Needs root and the program runc."""

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from node_builders import NODE, Lamps, add_pod, container, eventually, pod, pod_path
from small_api import SmallApi

from dray.client.resources import PODS
from dray.driver import ContainerEdits, DeviceNode, Hook, Mount, PreparedDevice, Settings, serving_driver
from dray.node import AgentSettings, running_agent

RUNC = shutil.which("runc") or str(Path.home() / ".cache/dray/peers/runc")
pytestmark = [
    pytest.mark.root,
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not Path(RUNC).exists(), reason="the program runc is not on this machine"),
]
# Number 10:229 is fuse: a device that no container has by default.
LAMP = (10, 229)


class RealLamps(Lamps):
    """A lamp is a character device, a folder with its manual, and a hook that leaves a trace."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def prepare(self, claim):
        manual = self.folder / "manual"
        manual.mkdir(exist_ok=True)
        (manual / "text").write_text("turn it on")
        edits = ContainerEdits(
            env=["LAMP=on"],
            device_nodes=[
                DeviceNode(
                    path="/dev/lamp0",
                    type="c",
                    major=LAMP[0],
                    minor=LAMP[1],
                    permissions="rw",
                    file_mode=0o666,
                )
            ],
            mounts=[Mount(host_path=str(manual), container_path="/manual", options=["ro", "bind"])],
            hooks=[
                Hook(
                    hook_name="createRuntime",
                    path="/bin/sh",
                    args=["sh", "-c", f"cat > {self.folder}/hook.json"],
                )
            ],
            additional_gids=[4242],
        )
        return [PreparedDevice.of(device, edits) for device in claim.devices]


@pytest.fixture
async def cluster(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(RUNC).parent}:{os.environ['PATH']}")
    folder = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))

    class Cluster:
        api = SmallApi()
        root = folder
        images = None

        @contextlib.asynccontextmanager
        async def up(self):
            settings = AgentSettings(NODE, folder, "runc", cdi_dirs=[folder / "cdi"], images=self.images)
            driver = Settings(node_name=NODE, kubelet_dir=folder, cdi_dir=folder / "cdi")
            async with (
                running_agent(self.api.client(), settings) as agent,
                serving_driver(RealLamps(folder), self.api.client(), driver),
            ):
                await eventually(agent.plugins.drivers)
                yield agent

        def status(self, name="reader"):
            return self.api.objects.get(pod_path(name), {}).get("status", {})

        def log(self, box="main", name="reader"):
            paths = sorted(folder.glob(f"logs/default_{name}_*/{box}/*.log"))
            return "".join(
                line.split(" ", 3)[3] for path in paths for line in path.read_text().splitlines(keepends=True)
            )

        async def phase(self, phase, name="reader"):
            await eventually(
                lambda: self.status(name).get("phase") == phase, what=f"{phase}: {self.status(name)}"
            )

    yield Cluster()
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_container_has_its_device_and_its_neighbour_cannot_even_make_it(cluster):
    look = "ls /dev; id -G; cat /manual/text; env | grep LAMP; stat -c %t:%T /dev/lamp0; dd if=/dev/lamp0 count=0 && echo opened; "
    steal = f"mknod /dev/mine c {LAMP[0]} {LAMP[1]}; dd if=/dev/mine of=/dev/null count=0; echo end"
    boxes = [
        container("mine", script=look + "echo end", claims=[{"name": "reader-light"}]),
        container("neighbour", script=look + steal),
    ]
    async with cluster.up():
        add_pod(cluster.api, containers=[{**box, "image": "host"} for box in boxes])
        cluster.api.put(
            pod_path("stranger"), pod("stranger", claims=(), containers=[container(script=look + steal)])
        )
        await eventually(lambda: "end" in cluster.log("mine") and "end" in cluster.log("neighbour"))
        await eventually(lambda: "end" in cluster.log("main", "stranger"))
        mine = cluster.log("mine")
        assert "lamp0" in mine
        assert "turn it on" in mine
        assert "LAMP=on" in mine
        assert "4242" in mine
        assert f"{LAMP[0]:x}:{LAMP[1]:x}" in mine
        for text in (cluster.log("neighbour"), cluster.log("main", "stranger")):
            assert "\nlamp0\n" not in text
            assert "LAMP=on" not in text
            assert "turn it on" not in text
            assert "opened" not in text
            assert "Operation not permitted" in text
        hook = json.loads((cluster.root / "hook.json").read_text())
        assert hook["bundle"].startswith(str(cluster.root))


async def test_exit_codes_signals_and_exec_work(cluster):
    async with cluster.up() as agent:
        script = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
        stored = pod("reader", claims=(), containers=[{**container(script=script), "image": "host"}])
        uid = cluster.api.put(pod_path(), stored)["metadata"]["uid"]
        await eventually(lambda: "ready" in cluster.log())
        from dray.node.runtime import ContainerId

        result = await agent.pods.runtime.run_in(
            ContainerId(uid, "main", 0), ["sh", "-c", "echo inside; exit 3"], 10
        )
        assert (result.exit_code, result.output) == (3, b"inside\n")
        codes = []
        on_exit = agent.pods.runtime._on_exit
        agent.pods.runtime._on_exit = lambda which, code, reason: (
            codes.append(code),
            on_exit(which, code, reason),
        )
        await cluster.api.client().delete(PODS, "reader", "default", grace_seconds=10)
        await eventually(lambda: pod_path() not in cluster.api.objects)
        assert codes == [5]
        await eventually(lambda: not list((cluster.root / "runc").glob("*")))


async def test_a_container_survives_the_agent(cluster):
    async with cluster.up():
        script = "echo one; while [ ! -e /go/now ]; do sleep 0.1; done; echo two"
        body = pod(
            "reader",
            claims=(),
            containers=[
                {
                    **container(script=script),
                    "image": "host",
                    "volumeMounts": [{"name": "go", "mountPath": "/go"}],
                }
            ],
        )
        body["spec"]["volumes"] = [
            {"name": "go", "hostPath": {"path": str(cluster.root / "go"), "type": "DirectoryOrCreate"}}
        ]
        cluster.api.put(pod_path(), body)
        await eventually(lambda: "one" in cluster.log())
    async with cluster.up():
        await asyncio.sleep(0.3)
        assert cluster.status()["phase"] == "Running"
        (cluster.root / "go" / "now").touch()
        await cluster.phase("Succeeded")
        assert cluster.log().split() == ["one", "two"]


async def test_an_oci_image_layout_is_unpacked_and_says_what_to_run(cluster):
    cluster.images = cluster.root / "library"
    make_layout(cluster.images / "tools", [{**shell_files(), "gone": b"x"}, {".wh.gone": b""}])
    async with cluster.up():
        cluster.api.put(
            pod_path(), pod(claims=(), containers=[{"name": "main", "image": "registry.example/tools:1"}])
        )
        await cluster.phase("Succeeded")
        assert cluster.log() == "from the image bar\n"
        cluster.api.put(
            pod_path("lost"), pod("lost", claims=(), containers=[{"name": "main", "image": "unknown"}])
        )
        waiting = await eventually(
            lambda: (
                cluster.status("lost")
                .get("containerStatuses", [{}])[0]
                .get("state", {})
                .get("waiting", {})
                .get("message")
            )
        )
        assert "unknown" in waiting


def shell_files():
    """The shell of this machine with its libraries, as files of a layer."""
    listed = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    paths = ["/bin/sh", *(word for word in listed.split() if word.startswith("/"))]
    return {path.lstrip("/"): Path(path).resolve().read_bytes() for path in paths}


def make_layout(folder, layers):
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    packed = []
    for files in layers:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))
        packed.append(put(gzip.compress(buffer.getvalue())))
    config = {
        "config": {
            "Entrypoint": ["/bin/sh"],
            "Cmd": ["-c", "[ -e /gone ] || echo from the image $FOO"],
            "Env": ["FOO=bar"],
        }
    }
    manifest = {"schemaVersion": 2, "config": put(json.dumps(config).encode()), "layers": packed}
    (folder / "index.json").write_text(
        json.dumps({"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode())]})
    )
