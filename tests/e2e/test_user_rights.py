"""Tools that only read, used with a user's rights on a real `dray server`: a table of commands and rights.

What a user may not list is left out and said once on stderr; what they asked for and may not see is an error
that says 403; bad credentials are called 401. Nobody is asked whether the server is running.
"""

import asyncio
import json
import os
import re
import select
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest
from server_process import serving

from dray.cli.main import main
from dray.client import Client
from dray.client.resources import CLAIMS, CLUSTER_ROLE_BINDINGS, NAMESPACES, PODS, Resource
from dray.sim.hardware import hardware_snapshot, parse_hardware

ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
RBAC = "rbac.authorization.k8s.io"
# user -> (role, whether it holds everywhere); each has a token of the same name
RIGHTS = {
    "viewer": ("view", False),
    "editor": ("edit", False),
    "person": ("dray:user", False),
    "watcher": ("view", True),
    "nobody": ("", False),
    "admin": ("cluster-admin", True),
}
GROUPS = {"person": "dray:users"}  # as on a shared machine: they may also see devices and nodes
IN_NAMESPACE = ("viewer", "editor", "person")
COMMANDS = {
    "get devices": "get devices",
    "get claims": "get claims",
    "get pools": "get pools",
    "get nodes": "get nodes",
    "map": "map",
    "top": "top --once",
    "explain pod": "explain pod mine -n team",
    "explain claim": "explain claim mine -n team",
    "whatif": "whatif FILE",
    "whatif drain": "whatif --drain dgx-h100-1",
    "doctor": "doctor --cluster",
    "snapshot": "snapshot NEW",
}


def claim(name):
    exactly = {"deviceClassName": "gpu.nvidia.com"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def pod(name, claim_name):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "c", "image": "x"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_name}],
        },
    }


async def fill(kubeconfig):
    """Two nodes with devices, two namespaces with a claim and a pod each, and everybody's rights."""
    hardware = hardware_snapshot(parse_hardware(["dgx-h100:2"]))
    async with Client.connect(kubeconfig) as client:
        for obj in hardware.objects:
            group, _, version = obj["apiVersion"].rpartition("/")
            plural = {"Node": "nodes", "ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses"}[
                obj["kind"]
            ]
            await client.create(Resource(group, version, plural, obj["kind"], namespaced=False), obj)
        for namespace in ("team", "other"):
            await client.create(NAMESPACES, {"metadata": {"name": namespace}})
            name = "mine" if namespace == "team" else "theirs"
            await client.create(CLAIMS, claim(name), namespace)
            await client.create(PODS, pod(name, name), namespace)
        for user, (role, is_everywhere) in RIGHTS.items():
            if not role or user == "admin":
                continue
            binding = {
                "metadata": {"name": user},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
            }
            if is_everywhere:
                await client.create(CLUSTER_ROLE_BINDINGS, binding)
            else:
                await client.create(ROLE_BINDINGS, binding, "team")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return a function from a user to their kubeconfig."""
    folder = tmp_path_factory.mktemp("rights")
    flags = ("--data", str(folder / "data"), "--disable-admission-plugins", "ServiceAccount")
    tokens = folder / "all-tokens.csv"
    tokens.write_text(
        "".join(
            f'{user}-token,{user},{user},"{GROUPS.get(user, "")}"\n' for user in RIGHTS if user != "admin"
        )
    )
    ca = folder / "data/pki/ca.crt"
    with serving(folder, *flags, "--token-auth-file", str(tokens)) as served:
        asyncio.run(fill(str(served.kubeconfig)))

        def kubeconfig(user):
            if user == "admin":
                return str(served.kubeconfig)
            path = folder / f"{user}.kubeconfig"
            config = {
                "kind": "Config",
                "clusters": [
                    {"name": "c", "cluster": {"server": served.url, "certificate-authority": str(ca)}}
                ],
                "users": [{"name": "u", "user": {"token": f"{user}-token"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                "current-context": "x",
            }
            path.write_text(json.dumps(config))
            return str(path)

        yield kubeconfig


@pytest.fixture
def outcome(cluster, tmp_path, capsys, monkeypatch):
    """Return a function from user and command to exit code, stdout and stderr."""
    monkeypatch.setenv("DRAY_SOCKET", "")
    document = {**pod("new", "new"), "metadata": {"name": "new", "namespace": "team"}}
    manifest = claim("new")
    manifest["metadata"]["namespace"] = "team"
    (tmp_path / "new.json").write_text(json.dumps({"kind": "List", "items": [manifest, document]}))

    def run(user, command):
        names = {"FILE": str(tmp_path / "new.json"), "NEW": str(tmp_path / "snapshot.json")}
        words = [names.get(word, word) for word in COMMANDS[command].split()]
        code = main([*words, "--kubeconfig", cluster(user)])
        out, err = capsys.readouterr()
        if command == "snapshot" and code == 0:
            out = (tmp_path / "snapshot.json").read_text()
        return code, out, err

    return run


@pytest.mark.parametrize("user", IN_NAMESPACE)
def test_what_a_user_may_not_see_is_not_taken_for_an_absence(outcome, user):
    _, out, err = outcome(user, "doctor")
    assert "no-devices" not in out
    assert "not-permitted" in out
    assert "that you may not read" in err
    assert "no longer published" not in outcome(user, "explain claim")[1]
    if user != "person":
        assert "you may not list devices and nodes" in outcome(user, "explain pod")[1]
        assert "no devices are published" not in outcome(user, "map")[1]
        assert "devices may not be listed" in outcome(user, "top")[1]


def refusals(err):
    """Return the lines that say what is left out."""
    return [line for line in err.splitlines() if "cannot list" in line or "cannot get" in line]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("user", [user for user in RIGHTS if user != "nobody"])
def test_commands_work_with_what_a_user_may_see(outcome, user, command):
    code, out, err = outcome(user, command)
    assert "Traceback" not in err
    assert "is it running" not in err
    said = refusals(err)
    assert len(said) == len(set(said)), said  # each once
    if user == "admin":
        assert said == []
    if user in IN_NAMESPACE:
        assert "theirs" not in out
    if command in ("get claims", "snapshot", "explain pod", "explain claim"):
        assert "mine" in out
    if command in ("get devices", "get pools", "map") and code == 0:
        assert "gpu-0" in out or "h100" in out.lower() or "gpu" in out
    expected = (
        {0, 1} if command in ("whatif", "whatif drain", "doctor", "explain pod", "explain claim") else {0}
    )
    if code not in expected:
        # What was asked for may not be seen at all: an error by its name.
        assert code == 1, (code, err)
        assert re.search(r"error: .*(403|forbidden)", err), err


# What each kind of user is given beside the claims of their namespace.
@pytest.mark.parametrize(
    ("user", "command", "code"),
    [
        ("viewer", "get claims", 0),
        ("editor", "get claims", 0),
        ("person", "get claims", 0),
        ("person", "get devices", 0),
        ("person", "map", 0),
        ("person", "top", 0),
        ("person", "snapshot", 0),
        ("watcher", "get claims", 0),
        ("admin", "get devices", 0),
        ("admin", "get nodes", 0),
    ],
)
def test_what_must_work(outcome, user, command, code):
    found, _, err = outcome(user, command)
    assert found == code, err


@pytest.mark.parametrize("command", COMMANDS)
def test_who_has_no_rights_is_told_so_by_name(outcome, command):
    code, _, err = outcome("nobody", command)
    assert code == 1
    assert "(403)" in err
    assert "is it running" not in err
    assert len(err.splitlines()) <= 16


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_credentials_are_called_401(outcome, command):
    code, _, err = outcome("stranger", command)
    assert code == 1
    assert "(401)" in err
    assert "is it running" not in err
    assert len([line for line in err.splitlines() if line.startswith(("error:", "hint:"))]) == 2


# --- the exporter -----------------------------------------------------------------


def exporter(kubeconfig):
    environment = {**os.environ, "DRAY_SOCKET": "", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "dray", "exporter", "--port", "0", "--kubeconfig", kubeconfig]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(("user", "sees_all"), [("viewer", False), ("person", False), ("admin", True)])
def test_the_exporter_serves_what_its_user_may_see(cluster, user, sees_all):
    process = exporter(cluster(user))
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        line = process.stdout.readline() if ready else ""
        assert "serving http://" in line, process.stderr.read() if process.poll() is not None else line
        text, deadline = "", time.monotonic() + 60
        while "kube_resourceclaim_status_phase{" not in text and time.monotonic() < deadline:
            try:
                with urlopen(line.split()[-1], timeout=30) as answer:
                    text = answer.read().decode()
            except OSError:
                time.sleep(0.1)  # the first list is not complete
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert 'resourceclaim="mine"' in text
    assert ('resourceclaim="theirs"' in text) == sees_all
    assert ("only those of namespace team are known" in err) != sees_all
    assert len(refusals(err)) == len(set(refusals(err)))


@pytest.mark.parametrize(("user", "words"), [("nobody", "403"), ("stranger", "401")])
def test_the_exporter_of_a_user_without_rights_ends_with_the_reason(cluster, user, words):
    process = exporter(cluster(user))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert words in err
    assert "is it running" not in err
