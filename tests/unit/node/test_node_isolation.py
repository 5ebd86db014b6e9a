"""Jobs of people, started by an agent that is root: identity, login environment, own /dev, own cgroups. Real processes."""

import asyncio
import json
import os
import pwd
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from unix_users import root_only, unix_users

from dray.api.cdi import CdiError, ContainerEdits, DeviceNode
from dray.api.podspec import RunPod
from dray.node.runtime import ContainerId, StartError
from dray.node.runtime.contract import Launch
from dray.node.runtime.credentials import Credentials
from dray.node.runtime.isolation import engine_nodes, isolation_record, wants_isolation
from dray.node.runtime.limits import Limits, agent_group
from dray.node.runtime.process import ProcessRuntime

pytestmark = pytest.mark.root


class Jobs:
    """A runtime and the ends that it told."""

    def __init__(self, root):
        root.chmod(0o711)
        self.root = root
        self.ends = asyncio.Queue()
        self.count = 0
        self.runtime = ProcessRuntime(root, lambda *told: self.ends.put_nowait(told))

    def launch(self, account, script, *, nodes=(), annotations=None, resources=None, workdir=""):
        self.count += 1
        context = {"runAsUser": account.pw_uid, "runAsGroup": account.pw_gid}
        box = {"name": "main", "image": "x", "resources": resources or {}, "workingDir": workdir}
        metadata = {
            "name": "p",
            "namespace": "user-x",
            "uid": f"u{self.count}",
            "annotations": annotations or {},
        }
        pod = msgspec.convert(
            {"metadata": metadata, "spec": {"containers": [box], "securityContext": context}}, RunPod
        )
        return Launch(
            ContainerId(f"u{self.count}", "main", 0),
            pod,
            pod.spec.containers[0],
            ["sh", "-c", script],
            (),
            (),
            ContainerEdits(device_nodes=list(nodes)),
            self.root / "logs" / f"{self.count}.log",
        )

    async def run(self, account, script, **options):
        """Run a script to its end and return its exit code and what it wrote."""
        launch = self.launch(account, script, **options)
        await self.runtime.start(launch)
        ended, code, _ = await asyncio.wait_for(self.ends.get(), 30)
        assert ended == launch.id
        lines = launch.log_path.read_text().splitlines()
        return code, [line.split(" ", 3)[3] for line in lines]


@pytest.fixture(scope="module")
def ann():
    with unix_users("ann") as users:
        yield users[0]


@pytest.fixture
async def jobs(tmp_path):
    made = Jobs(tmp_path)
    yield made
    await made.runtime.close()


@root_only
async def test_a_job_is_the_person_with_home_and_without_the_agents_limits(jobs, ann):
    script = "id -u; id -g; echo $HOME $USER $LOGNAME; pwd; ulimit -c; ulimit -Sn; umask; touch ~/made"
    code, told = await jobs.run(ann, script, workdir=ann.pw_dir, annotations={"dray.dev/umask": "027"})
    name, home = ann.pw_name, ann.pw_dir
    assert code == 0
    assert told[:2] == [str(ann.pw_uid), str(ann.pw_gid)]
    assert told[2:5] == [f"{home} {name} {name}", home, "0"]
    assert int(told[5]) <= 65536
    made = Path(home, "made").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode)) == (ann.pw_uid, 0o640)


@root_only
async def test_what_the_agent_keeps_of_a_job_cannot_be_read_by_anybody_else(jobs, ann):
    launch = jobs.launch(ann, "sleep 60")
    await jobs.runtime.start(launch)
    kept = [path for path in jobs.root.rglob("*") if path.is_file()]
    assert len(kept) >= 4
    assert [path for path in kept if path.stat().st_mode & 0o077 or path.stat().st_uid != 0] == []
    code, told = await jobs.run(ann, f"ls {jobs.root}/containers 2>&1; cat {launch.log_path} 2>&1")
    assert code != 0
    assert all("Permission denied" in line for line in told), told
    await jobs.runtime.stop(launch.id, 0)


@root_only
async def test_a_folder_that_the_person_may_not_enter_is_refused(jobs, ann, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code, told = await jobs.run(ann, "pwd", workdir=str(closed))
    assert code == 126
    assert "Permission denied" in told[0]


@root_only
async def test_a_mask_that_is_none_fails_the_start(jobs, ann):
    with pytest.raises(StartError, match="three octal digits"):
        await jobs.runtime.start(jobs.launch(ann, "true", annotations={"dray.dev/umask": "99"}))


@pytest.fixture
def device_nodes():
    """Two devices in the real /dev that anybody may open; they are what /dev/null is, under other names."""
    names = [f"/dev/dray-test-{os.getpid()}-{number}" for number in (0, 1)]
    for name in names:
        os.mknod(name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.chmod(name, 0o666)
    yield names
    for name in names:
        os.unlink(name)


@root_only
async def test_a_job_can_open_the_device_that_it_was_given_and_no_other(jobs, ann, device_nodes):
    mine, other = device_nodes
    script = f"""
        echo x >{mine} && echo mine
        echo x >{other} || echo refused
        echo x >/dev/null && echo null
        ls /dev/mem /dev/kmsg /dev/sda 2>/dev/null || echo nothing else
        test -w /dev/shm && echo shm
        mknod /dev/other c 1 3 2>/dev/null || echo no nodes
        echo out >/dev/stdout
    """
    code, told = await jobs.run(ann, script, nodes=[DeviceNode(path=mine)])
    told = [line for line in told if "cannot" not in line and "such file" not in line]
    assert told == ["mine", "refused", "null", "nothing else", "shm", "no nodes", "out"]
    assert Path(other).exists()  # on the host nothing has changed
    assert code == 0


@root_only
async def test_a_device_that_is_closed_on_the_host_can_be_used_through_a_claim_only(jobs, ann, device_nodes):
    mine, _ = device_nodes
    os.chmod(mine, 0o600)
    code, _ = await jobs.run(ann, f"echo x >{mine}", nodes=[DeviceNode(path="/dev/gpu/0", host_path=mine)])
    assert code != 0  # under its own name it is not there
    code, _ = await jobs.run(ann, "echo x >/dev/gpu/0", nodes=[DeviceNode(path="/dev/gpu/0", host_path=mine)])
    assert code == 0


@root_only
async def test_exec_is_in_the_same_dev_also_for_the_next_agent(jobs, ann, device_nodes, tmp_path):
    mine, other = device_nodes
    launch = jobs.launch(ann, "sleep 60", nodes=[DeviceNode(path=mine)])
    await jobs.runtime.start(launch)
    look = [
        "sh",
        "-c",
        f"id -u; ls {mine}; grep -c /pod-u1/main-0 /proc/self/cgroup; ls {other} 2>/dev/null || echo none",
    ]
    groups = len(jobs.runtime._limits.groups("u1", "main-0"))
    assert groups >= 1
    expected = [str(ann.pw_uid), mine, str(groups), "none"]
    for _ in range(2):
        await asyncio.sleep(0)
        found = await _eventually_exec(jobs.runtime, launch.id, look)
        assert found == expected
        await jobs.runtime.close()
        jobs.runtime = ProcessRuntime(tmp_path, lambda *told: jobs.ends.put_nowait(told))
        await jobs.runtime.found()
    await jobs.runtime.stop(launch.id, 0)


async def _eventually_exec(runtime, id, command):
    """The namespace is made a moment after the start."""
    for _ in range(100):
        result = await runtime.run_in(id, command, 20)
        if b"none" in result.output:
            return result.output.decode().split()
        await asyncio.sleep(0.05)
    raise AssertionError(result.output)


@root_only
async def test_what_a_job_leaves_behind_in_another_session_is_ended_with_it(jobs, ann):
    code, told = await jobs.run(ann, "setsid sleep 300 >/dev/null 2>&1 & echo $!")
    assert code == 0
    for _ in range(100):
        if not Path(f"/proc/{told[0]}").exists():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it lives on")


@root_only
async def test_a_job_has_its_own_cgroup_with_its_limits(jobs, ann):
    limits = {"limits": {"memory": "64Mi", "cpu": "500m"}}
    script = "cat /proc/self/cgroup"
    _, told = await jobs.run(ann, script, resources=limits)
    paths = [line.split(":", 2) for line in told]
    place = f"/{agent_group(jobs.root)}/pod-u1/main-0"
    mine = {name for _, names, path in paths if path == place for name in names.split(",")}
    assert {"cpu", "memory", "pids"} <= mine or mine == {""}, told
    code, _ = await jobs.run(
        ann, "exec head -c 200000000 /dev/zero | tail -c 150000000 >/dev/null", resources=limits
    )
    assert code != 0  # killed for the memory that it took
    await jobs.runtime.forget("u1")
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{agent_group(jobs.root)}/pod-u1"))


@root_only
@pytest.mark.skipif(
    Path("/tmp") in Path(sys.prefix).parents,
    reason="dray is installed below /tmp, which such a job does not see",
)
async def test_a_private_tmp_is_the_jobs_own_and_goes_with_it(jobs, ann):
    mark = f"dray-{os.getpid()}"
    Path("/tmp", mark).write_text("x")
    wanted = {"dray.dev/private-tmp": "true"}
    script = f"ls /tmp/{mark} 2>/dev/null; stat -c %a /tmp; echo mine >/tmp/{mark}-job; cat /tmp/{mark}-job"
    try:
        code, told = await jobs.run(ann, script, annotations=wanted)
        assert (code, told) == (0, ["1777", "mine"])
        assert not Path("/tmp", f"{mark}-job").exists()
        code, told = await jobs.run(ann, f"ls /tmp/{mark}")
        assert code == 0  # who does not ask for it has the machine's
    finally:
        Path("/tmp", mark).unlink()
    await jobs.runtime.forget("u1")
    assert not list((jobs.root / "containers").glob("u1*"))


async def test_a_private_tmp_that_cannot_be_made_is_refused(jobs):
    me = pwd.getpwuid(os.geteuid())
    with pytest.raises(StartError, match="a private /tmp needs"):
        await jobs.runtime.start(jobs.launch(me, "true", annotations={"dray.dev/private-tmp": "true"}))


async def test_a_line_of_the_agent_is_in_the_log_of_a_running_job_only(jobs):
    me = pwd.getpwuid(os.geteuid())
    launch = jobs.launch(me, "read line; echo over")
    launch_2 = jobs.launch(me, "sleep 60")
    await jobs.runtime.start(launch)
    await asyncio.wait_for(jobs.ends.get(), 30)
    await jobs.runtime.start(launch_2)
    for uid in ("u1", "u2", "u3"):
        jobs.runtime.write_log(uid, "dray: soon")
    await jobs.runtime.stop(launch_2.id, 0)
    assert "dray: soon" not in launch.log_path.read_text()
    assert " stderr F dray: soon\n" in launch_2.log_path.read_text()


# --- decisions --------------------------------------------------------------------------


def test_who_gets_a_dev_of_its_own():
    root, person = Credentials(0, 0), Credentials(7, 7)
    assert not wants_isolation(root, root)
    assert not wants_isolation(person, person)
    assert wants_isolation(person, root) == (os.geteuid() == 0)


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/../etc/x", "/dev", "gpu0"])
def test_a_node_outside_dev_is_refused(path):
    with pytest.raises(CdiError, match="not below /dev"):
        isolation_record(Path("/x"), [DeviceNode(path=path, host_path="/dev/null")], Credentials(7, 7))


@pytest.mark.parametrize("version", [1, 2])
def test_limits_are_written_as_the_version_of_cgroups_wants(tmp_path, version):
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    else:
        for name in ("cpu", "memory", "pids"):
            (tmp_path / name).mkdir()
    made = Limits(tmp_path).make("u", "main-0", {"cpu": "1500m", "memory": "1Gi"})
    written = {
        str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()
    }
    folder = "dray/pod-u/main-0"
    if version == 2:
        assert made == [tmp_path / folder]
        assert written[f"{folder}/memory.max"] == str(1 << 30)
        assert written[f"{folder}/cpu.max"] == "150000 100000"
        assert written[f"{folder}/pids.max"] == "32768"
    else:
        assert written[f"memory/{folder}/memory.limit_in_bytes"] == str(1 << 30)
        assert written[f"cpu/{folder}/cpu.cfs_quota_us"] == "150000"
        assert len(made) >= 2


def test_without_cgroups_there_are_none(tmp_path):
    assert Limits(tmp_path).make("u", "main-0", {"memory": "1Gi"}) == []


@root_only
async def test_a_job_sees_the_processes_of_its_user_only(jobs, ann):
    before = Path("/proc/mounts").read_text()
    script = "sleep 60 & test -d /proc/$! && echo mine; test -d /proc/1 && echo theirs; kill $!"
    code, told = await jobs.run(ann, script)
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 8):
        assert told == ["mine", "theirs"]
    else:
        assert (code, told) == (0, ["mine"])
    assert Path("/proc/1").is_dir()
    assert Path("/proc/mounts").read_text() == before, "the machine's /proc is as it was"


@root_only
async def test_an_engine_gets_nodes_that_everybody_may_open_and_no_others(tmp_path):
    for name, mode in (("open", 0o666), ("closed", 0o600)):
        os.mknod(tmp_path / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.chmod(tmp_path / name, mode)
    (tmp_path / "file").write_text("")
    paths = [str(tmp_path / name) for name in ("open", "closed", "file", "absent")]
    (node,) = engine_nodes(paths)
    assert (node.path, node.type, node.major, node.minor) == (paths[0], "c", 1, 3)


@root_only
async def test_a_job_that_asks_is_told_what_cdi_says_of_its_devices(jobs, ann):
    code, told = await jobs.run(ann, "echo $DRAY_DEVICE_EDITS", annotations={"dray.dev/tell-edits": "true"})
    assert (code, json.loads(told[0])) == (0, {})
    code, told = await jobs.run(ann, "echo x$DRAY_DEVICE_EDITS")
    assert (code, told) == (0, ["x"])
