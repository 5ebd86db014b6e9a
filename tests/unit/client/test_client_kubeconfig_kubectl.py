"""Merging of kubeconfig files, compared with the real kubectl."""

import base64
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from dray.client import KubeconfigError
from dray.client.kubeconfig import _pem, merged_config

pytestmark = pytest.mark.kubernetes

_PEERS = Path(os.environ.get("DRAY_PEERS", Path.home() / ".cache/dray/peers/v1.37.1"))
KUBECTL = str(_PEERS / "kubectl") if (_PEERS / "kubectl").exists() else shutil.which("kubectl")


def kubectl_view(paths):
    """Return the merged config as kubectl sees it, or None when it refuses."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "KUBECONFIG": ":".join(map(str, paths)),
    }
    command = [KUBECTL, "config", "view", "--flatten", "--raw", "-o", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def our_view(paths):
    """Return the same of ours: plain values, files inlined."""
    config = merged_config([path for path in paths if path.exists()])
    view = {"current-context": config.current_context}
    for kind, entries in (
        ("clusters", config.clusters),
        ("users", config.users),
        ("contexts", config.contexts),
    ):
        view[kind] = {}
        for name, (value, origin) in entries.items():
            plain = {key: item for key, item in msgspec.to_builtins(value).items() if item}
            for field in ("certificate-authority", "client-certificate", "client-key"):
                if hasattr(value, field.replace("-", "_")) and (
                    pem := _pem(value, field.replace("-", "_"), origin.parent)
                ):
                    plain.pop(field, None)
                    plain[f"{field}-data"] = base64.b64encode(pem).decode()
            view[kind][name] = plain
    return view


def as_maps(view):
    found = {"current-context": view["current-context"]}
    for kind, single in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
        found[kind] = {
            entry["name"]: {key: item for key, item in entry[single].items() if item}
            for entry in view[kind] or []
        }
    return found


def random_file(chance, folder):
    folder.mkdir()
    (folder / "ca.pem").write_text(f"CA of {folder.name}")
    (folder / "token").write_text("t")
    maybe = lambda **values: {k.replace("_", "-"): v for k, v in values.items() if chance.random() < 0.5}  # noqa: E731
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{folder.name}", **maybe(
                tls_server_name=folder.name, certificate_authority="ca.pem", proxy_url=f"http://{folder.name}",
                insecure_skip_tls_verify=True)}}
            for name in chance.sample("abc", chance.randint(0, 3))
        ],
        "users": [
            {"name": name, "user": maybe(
                token=folder.name, username="u", password=folder.name, as_groups=[folder.name], as_uid="1",
                client_certificate="ca.pem", client_key="ca.pem", as_user_extra={"k": [folder.name]})
                | ({"as": "x"} if chance.random() < 0.5 else {})
                | ({"tokenFile": "token"} if chance.random() < 0.5 else {})}
            for name in chance.sample("abc", chance.randint(0, 3))
        ],
        "contexts": [
            {"name": name, "context": {"cluster": chance.choice("abc"), "user": chance.choice("abc"),
                                       **maybe(namespace=folder.name)}}
            for name in chance.sample("xyz", chance.randint(0, 3))
        ],
        "current-context": chance.choice(["", "x", "y"]),
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    return folder / "config"


@pytest.mark.parametrize("seed", range(12))
def test_files_are_merged_as_kubectl_merges_them(seed, tmp_path):
    if KUBECTL is None:
        pytest.skip("no kubectl")
    chance = random.Random(seed)
    paths = [random_file(chance, tmp_path / f"f{number}") for number in range(chance.randint(1, 4))]
    paths.insert(chance.randint(0, len(paths)), tmp_path / "absent")
    theirs = kubectl_view(paths)
    assert theirs is not None
    assert our_view(paths) == as_maps(theirs)


@pytest.mark.parametrize(
    "text",
    [
        'contexts: ["x"]',
        "clusters: 5",
        "users: [{name: a, user: x}]",
        "users: [{name: a, user: {token: 5}}]",
        "clusters: [{name: a}, {name: a}]",
        "current-context: [x]",
        "clusters: [{name: a, cluster: {insecure-skip-tls-verify: maybe}}]",
        "a: [",
    ],
)
def test_files_that_kubectl_refuses_are_refused(text, tmp_path):
    if KUBECTL is None:
        pytest.skip("no kubectl")
    path = tmp_path / "config"
    path.write_text(f"apiVersion: v1\nkind: Config\n{text}\n")
    assert kubectl_view([path]) is None
    with pytest.raises(KubeconfigError):
        merged_config([path])
