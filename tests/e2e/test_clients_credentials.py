"""Credentials that expire while a process runs, against a real server: plugins, impersonation, rotation."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from server_process import serving

from dray.api.core import Node
from dray.client import Client, Informer, Unauthorized
from dray.client.resources import NODES

V1 = "client.authentication.k8s.io/v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), "--in-memory") as served:
        yield served


def kubeconfig(server, folder: Path, user) -> Path:
    """Return a kubeconfig for the server with another user."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": "me", "user": user}]
    config["contexts"][0]["context"]["user"] = "me"
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def plugin(folder: Path) -> dict:
    """An exec plugin that prints the token in a file, and counts its calls."""
    script = folder / "plugin"
    script.write_text(
        f"#!/bin/sh\necho x >> {folder}/calls\n"
        f'printf \'{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"%s"}}}}\' "$(cat {folder}/token)"\n'
    )
    script.chmod(0o755)
    return {"exec": {"command": "./plugin", "apiVersion": V1, "interactiveMode": "Never"}}


async def test_a_plugins_expired_token_is_replaced_while_an_informer_runs(server, tmp_path, caplog):
    (tmp_path / "token").write_text("expired")
    caplog.set_level(logging.INFO, "dray.client")
    async with Client.connect(kubeconfig(server, tmp_path, plugin(tmp_path))) as client:
        with pytest.raises(Unauthorized):
            await client.list(NODES)
        informer = Informer(client, NODES, Node)
        running = asyncio.create_task(informer.run())
        await asyncio.sleep(0.5)
        assert not informer.has_synced
        (tmp_path / "token").write_text("admintoken")
        async with asyncio.timeout(60):
            await informer.wait_synced()
        running.cancel()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "'me'" in warnings[0] and "kubeconfig" in warnings[0]
    assert any("again" in record.getMessage() for record in caplog.records if record.levelno == logging.INFO)
    assert len((tmp_path / "calls").read_text().split()) < 10


async def test_impersonation_is_what_the_server_sees(server, tmp_path):
    user = {"token": "admintoken", "as": "alice", "as-groups": ["system:authenticated", "dev"]}
    async with Client.connect(kubeconfig(server, tmp_path, user)) as client:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review = await client.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        assert review["status"]["userInfo"]["username"] == "alice"
        assert "dev" in review["status"]["userInfo"]["groups"]


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dray", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_a_command_with_expired_credentials_ends_with_the_cause(server, tmp_path):
    done = run("get", "claims", "--kubeconfig", str(kubeconfig(server, tmp_path, {"token": "expired"})))
    assert done.returncode == 1
    assert done.stderr.startswith("error: the API server does not accept the credentials")
    assert "hint: " in done.stderr
    assert done.stderr.count("\n") == 2


def test_a_daemon_with_expired_credentials_says_so_and_goes_on(server, tmp_path):
    path = kubeconfig(server, tmp_path, {"token": "expired"})
    process = subprocess.Popen(
        [sys.executable, "-m", "dray", "scheduler", "--kubeconfig", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stderr.readline()
        assert "WARNING" in line and "refuses the credentials of user 'me'" in line
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_several_kubeconfigs_are_one(server, tmp_path):
    (tmp_path / "users").write_text(
        json.dumps({"kind": "Config", "users": [{"name": "me", "user": {"token": "admintoken"}}]})
    )
    path = kubeconfig(server, tmp_path, {})
    config = json.loads(path.read_text())
    del config["users"]
    path.write_text(json.dumps(config))
    done = run("get", "nodes", KUBECONFIG=f"{tmp_path}/users:{tmp_path}/absent:{path}")
    assert done.returncode == 0, done.stderr
