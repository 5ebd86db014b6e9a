"""As whom containers run, and who may read what the agent keeps: decided by function, and seen in real processes."""

import json
import os
import stat

import msgspec
import pytest
from node_builders import container, eventually, pod, pod_path
from test_node_agent import Cluster

from dray.api.podspec import RunPod
from dray.host.private_files import close_tree, make_private_folder, write_private_text
from dray.node.runtime import ContainerId, StartError
from dray.node.runtime.credentials import Credentials, credentials_of, exec_prefix

NOBODY = 65534
AGENT_GROUPS = [4242, 4243]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


def run_pod(own=None, pods=None):
    spec = pod(
        claims=(), containers=[{**container(), "securityContext": own or {}}], securityContext=pods or {}
    )
    spec["metadata"] |= {"namespace": "default", "uid": "u"}
    made = msgspec.convert(spec, RunPod)
    return made, made.spec.containers[0]


ROOT, USER = Credentials(0, 0, frozenset({10})), Credentials(1000, 1000, frozenset({10, 20}))


@pytest.mark.parametrize(
    ("own", "pods", "agent", "expected"),
    [
        ({}, {}, ROOT, Credentials(0, 0)),  # the agent's groups are not the container's
        ({}, {}, USER, USER),
        ({"runAsUser": 7}, {"runAsUser": 8}, ROOT, Credentials(7, 107)),
        ({}, {"runAsUser": 8, "runAsGroup": 9}, ROOT, Credentials(8, 9)),
        ({"runAsGroup": 9}, {}, ROOT, Credentials(0, 9)),
        (
            {"runAsUser": 7},
            {"supplementalGroups": [5, 6], "fsGroup": 11},
            ROOT,
            Credentials(7, 107, frozenset({5, 6, 11})),
        ),
        ({"runAsUser": 0}, {"runAsUser": 8}, ROOT, Credentials(0, 0)),
        ({"allowPrivilegeEscalation": False}, {}, ROOT, Credentials(0, 0, frozenset(), True)),
        ({"runAsUser": 1000}, {"supplementalGroups": [20]}, USER, USER),
        ({"runAsNonRoot": True}, {}, USER, USER),
    ],
)
def test_credentials_come_from_container_then_pod_then_agent(own, pods, agent, expected):
    assert credentials_of(*run_pod(own, pods), agent, lambda uid: uid + 100) == expected


@pytest.mark.parametrize(
    ("own", "pods", "agent", "message"),
    [
        ({"runAsUser": 7}, {}, USER, "only an agent that is root"),
        ({"runAsUser": 0}, {}, USER, "only an agent that is root"),
        ({"runAsGroup": 7}, {}, USER, "only an agent that is root"),
        ({}, {"fsGroup": 5}, USER, r"groups \[5\]"),
        ({"runAsNonRoot": True}, {}, ROOT, "runAsNonRoot"),
        ({}, {"runAsNonRoot": True, "runAsUser": 0}, ROOT, "runAsNonRoot"),
    ],
)
def test_what_the_agent_cannot_do_is_refused_with_a_reason(own, pods, agent, message):
    with pytest.raises(StartError, match=message) as caught:
        credentials_of(*run_pod(own, pods), agent)
    assert caught.value.reason == "CreateContainerConfigError"


def test_the_agents_own_credentials_need_no_script(tmp_path):
    assert exec_prefix(ROOT, ROOT, tmp_path) == ()
    assert "become.py" in exec_prefix(Credentials(7, 7), ROOT, tmp_path)[3]


# --- real processes -------------------------------------------------------------------------------

WHO = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status"


@pytest.fixture
def agent_groups():
    """The agent has supplementary groups, as one that was started from a login shell."""
    before = os.getgroups()
    os.setgroups(AGENT_GROUPS)
    yield
    os.setgroups(before)


async def seen(cluster, command=("sh", "-c", WHO)):
    """Return what a command in the container says of itself."""
    machine = cluster.agent.pods.find("default", "reader")
    result = await cluster.agent.pods.runtime.run_in(
        ContainerId(machine.pod.metadata.uid, "main", 0), command, 30
    )
    return result.output.decode().split()


@pytest.mark.root
@root_only
@pytest.mark.parametrize(
    ("own", "pods", "uid", "gid", "groups", "locked"),
    [
        ({}, {}, "0", "0", {"0"}, "0"),
        (
            {"runAsUser": NOBODY, "allowPrivilegeEscalation": False},
            {"supplementalGroups": [5001], "fsGroup": 5002},
            "65534",
            "65534",
            {"65534", "5001", "5002"},
            "1",
        ),
        ({}, {"runAsUser": NOBODY, "runAsGroup": 77}, "65534", "77", {"77"}, "0"),
    ],
)
async def test_the_command_and_exec_run_with_the_same_credentials(
    tmp_path, agent_groups, own, pods, uid, gid, groups, locked
):
    tmp_path.chmod(0o711)
    cluster = Cluster(tmp_path)
    async with cluster.up():
        box = {**container(script=f"{WHO}; echo again >/dev/stdout; sleep 30"), "securityContext": own}
        cluster.api.put(pod_path(), pod(claims=(), containers=[box], securityContext=pods))
        await cluster.phase("Running")
        await eventually(lambda: "again" in cluster.log())
        for told in (cluster.log().split()[:-1], await seen(cluster)):
            assert (told[0], told[1], set(told[2:-2]), told[-1]) == (uid, gid, groups, locked), told


@pytest.mark.root
@root_only
async def test_exec_after_a_restart_of_the_agent_and_exec_probes_keep_the_user(tmp_path, agent_groups):
    cluster = Cluster(tmp_path)
    probe = {"exec": {"command": ["sh", "-c", "test $(id -u) = 65534 && test $(id -G) = 65534"]}}
    box = {
        **container(script="sleep 60", readinessProbe={**probe, "periodSeconds": 1}),
        "securityContext": {"runAsUser": NOBODY},
    }
    async with cluster.up():
        cluster.api.put(pod_path(), pod(claims=(), containers=[box]))
        await cluster.phase("Running")
        await eventually(lambda: cluster.status()["containerStatuses"][0]["ready"], what="the probe succeeds")
    async with cluster.up():
        await eventually(lambda: cluster.agent.pods.find("default", "reader"))
        assert (await seen(cluster))[:3] == ["65534", "65534", "65534"]


@pytest.mark.root
@root_only
async def test_the_environment_of_a_container_reaches_nothing_that_runs_as_root(tmp_path):
    """LD_PRELOAD of a pod that runs as nobody must not be loaded by the shim or the script before it."""
    cluster = Cluster(tmp_path)
    box = {
        **container(
            script="echo $LD_PRELOAD; sleep 30", env=[{"name": "LD_PRELOAD", "value": "/nowhere.so"}]
        ),
        "securityContext": {"runAsUser": NOBODY},
    }
    async with cluster.up():
        cluster.api.put(pod_path(), pod(claims=(), containers=[box]))
        await cluster.phase("Running")
        await eventually(lambda: "/nowhere.so\n" in cluster.log())
        pid = int(next(tmp_path.glob("containers/*/main/0/pid")).read_text())
        with open(f"/proc/{pid}/environ") as file:
            assert "LD_PRELOAD" not in file.read()
        assert os.stat(f"/proc/{pid}").st_uid == 0


@pytest.mark.root
@root_only
async def test_a_container_of_another_user_can_write_its_volume(tmp_path):
    tmp_path.chmod(0o711)
    cluster = Cluster(tmp_path)
    script = 'echo hello >"$(echo $DRAY_MOUNTS | cut -d\\" -f4)/file" && echo written; sleep 30'
    box = {
        **container(script=script, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        "securityContext": {"runAsUser": NOBODY},
    }
    async with cluster.up():
        cluster.api.put(pod_path(), pod(claims=(), containers=[box], volumes=[{"name": "v", "emptyDir": {}}]))
        await cluster.phase("Running")
        await eventually(lambda: "written" in cluster.log(), 20, what=cluster.log())


@pytest.mark.root
@root_only
async def test_a_pod_that_asks_for_another_user_of_an_agent_without_root_says_why(tmp_path, monkeypatch):
    cluster = Cluster(tmp_path)
    async with cluster.up():
        monkeypatch.setattr(cluster.agent.pods.runtime, "_own", USER)
        box = {**container(), "securityContext": {"runAsUser": 7}}
        cluster.api.put(pod_path(), pod(claims=(), containers=[box]))

        def waiting():
            return (cluster.status().get("containerStatuses") or [{}])[0].get("state", {}).get("waiting", {})

        await eventually(lambda: "only an agent that is root" in waiting().get("message", ""))
        assert waiting()["reason"] == "CreateContainerConfigError"


# --- files ----------------------------------------------------------------------------------------


def opened(folder):
    """Everything below that somebody else has rights on; what drivers made is theirs."""
    return sorted(
        f"{path.relative_to(folder)} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink()
        and path.lstat().st_mode & 0o077
        and path.relative_to(folder).parts[:1] not in (("plugins",), ("cdi",))
        and not (path.is_socket() and path.parent.name == "plugins_registry")
    )


@pytest.fixture
def open_umask():
    """The worst umask: what is private then is private by its mode."""
    before = os.umask(0)
    yield
    os.umask(before)


async def test_nothing_below_the_nodes_folder_is_for_others(tmp_path, open_umask):
    folder = tmp_path / "node"
    cluster = Cluster(folder, serves=True)
    cluster.api.put("/api/v1/namespaces/default/secrets/s", {"data": {"k": "dg=="}, "kind": "Secret"})
    box = container(
        script="umask; echo x; while [ ! -e $GO ]; do sleep 0.02; done",
        env=[{"name": "TOKEN", "value": "secret"}, {"name": "GO", "value": str(tmp_path / "go")}],
        volumeMounts=[{"name": "v", "mountPath": "/v"}],
    )
    async with cluster.up():
        cluster.api.put(
            pod_path(),
            pod(claims=(), containers=[box], volumes=[{"name": "v", "secret": {"secretName": "s"}}]),
        )
        await cluster.phase("Running")
        await eventually(lambda: "x" in cluster.log())
        assert opened(folder) == []
        assert list(folder.glob("containers/*/main/0/env.json"))
        assert list(folder.glob("pods/*/volumes/v/k"))
        assert "0022" in cluster.log()  # the container itself has the usual umask
        (tmp_path / "go").touch()
        await cluster.phase("Succeeded")
        assert opened(folder) == []


async def test_what_an_older_agent_left_open_is_closed(tmp_path):
    folder = tmp_path / "node"
    left = folder / "containers/uid/main/0"
    left.mkdir(parents=True)
    (left / "env.json").write_text(json.dumps({"env": [], "cwd": "/"}))
    volume = folder / "pods/uid/volumes/v"
    volume.mkdir(parents=True)
    (volume / "data").write_text("x")
    volume.chmod(0o777)
    assert opened(folder)
    close_tree(folder, folder / "pods", folder / "images")
    assert opened(folder) == ["pods/uid/volumes/v 777", "pods/uid/volumes/v/data 644"]
    assert close_tree(folder, folder / "pods", folder / "images") == []


def test_a_private_file_is_private_also_where_an_open_one_was(tmp_path, open_umask):
    make_private_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").write_text("old")
    write_private_text(tmp_path / "a" / "b" / "file", "new")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/file")]
    assert modes == [0o700, 0o700, 0o600]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write_private_text(tmp_path / "link", "x")  # the link is replaced, not followed
    assert not (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o600


# --- damaged files of containers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("env.json", "{"),
        ("env.json", "[" * 100_000),
        ("env.json", "[]"),
        ("env.json", '{"env": 5, "cwd": "/"}'),
        ("log", "/etc/cron.d/evil"),
        ("log", "\0"),
    ],
)
async def test_a_container_whose_files_are_damaged_is_ended_and_started_again(tmp_path, name, content):
    cluster = Cluster(tmp_path)
    async with cluster.up():
        cluster.api.put(
            pod_path(), pod(claims=(), restart="Always", containers=[container(script="sleep 60")])
        )
        await cluster.phase("Running")
    (file,) = tmp_path.glob(f"containers/*/main/0/{name}")
    file.write_text(content)
    (tmp_path / "containers" / "stray" / "main").mkdir(parents=True)
    (tmp_path / "containers" / "stray" / "main" / "x").touch()
    async with cluster.up():
        await eventually(lambda: cluster.status()["containerStatuses"][0]["restartCount"] == 1)
        await eventually(lambda: "running" in cluster.status()["containerStatuses"][0]["state"])
