"""Kubeconfig files: contexts, credentials, and errors that say what to do next."""

import base64
import stat

import pytest
import yaml

from dray.client import Client, KubeconfigError, load_endpoint, load_in_cluster, load_kubeconfig


def write(folder, user=None, cluster=None, **changes):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:8080", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "mine"}},
            {"name": "broken", "context": {"cluster": "nowhere"}},
        ],
        "current-context": "x",
        **changes,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_current_context_is_used(tmp_path):
    endpoint = load_kubeconfig(write(tmp_path, user={"token": "secret"}))
    assert endpoint.server == "http://127.0.0.1:8080"
    assert endpoint.headers == {"Authorization": "Bearer secret"}
    assert endpoint.namespace == "mine"


def test_a_token_file_is_relative_to_the_kubeconfig_and_read_again(tmp_path):
    (tmp_path / "token").write_text("first\n")
    endpoint = load_kubeconfig(write(tmp_path, user={"tokenFile": "token"}))
    assert endpoint.token == "first"
    assert endpoint.token_file == tmp_path / "token"


async def test_a_renewed_token_is_noticed(tmp_path):
    (tmp_path / "token").write_text("first")
    client = Client.connect(write(tmp_path, user={"tokenFile": "token"}))
    client.transport._renew_token()
    assert "Bearer first" in client.transport._head
    (tmp_path / "token").write_text("second")
    client.transport._token_read = float("-inf")
    client.transport._renew_token()
    assert "Bearer second" in client.transport._head


def test_basic_credentials(tmp_path):
    endpoint = load_kubeconfig(write(tmp_path, user={"username": "a", "password": "b"}))
    assert endpoint.headers == {"Authorization": "Basic " + base64.b64encode(b"a:b").decode()}


def test_an_exec_plugin_gives_a_token(tmp_path):
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho \'{"kind":"ExecCredential","status":{"token":"from-plugin"}}\'\n')
    plugin.chmod(plugin.stat().st_mode | stat.S_IEXEC)
    user = {"exec": {"command": str(plugin), "apiVersion": "client.authentication.k8s.io/v1"}}
    assert load_kubeconfig(write(tmp_path, user=user)).token == "from-plugin"


@pytest.mark.parametrize(
    ("context", "words"), [("none", "there: x, broken"), ("broken", "no entry 'nowhere' in clusters")]
)
def test_a_missing_entry_is_named_with_those_that_exist(tmp_path, context, words):
    with pytest.raises(KubeconfigError, match=words):
        load_kubeconfig(write(tmp_path), context)


def test_a_missing_file_says_what_to_give(tmp_path):
    with pytest.raises(KubeconfigError, match="--kubeconfig"):
        load_kubeconfig(tmp_path / "nothing")


def test_bad_certificates_are_an_error_of_the_kubeconfig(tmp_path):
    cluster = {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": base64.b64encode(b"junk").decode(),
    }
    with pytest.raises(KubeconfigError, match="certificates"):
        load_kubeconfig(write(tmp_path, cluster=cluster))


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path)))
    assert load_endpoint().server == "http://127.0.0.1:8080"


def test_in_cluster_needs_its_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match="not in a pod"):
        load_in_cluster(tmp_path)
