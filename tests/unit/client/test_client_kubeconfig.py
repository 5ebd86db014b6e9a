"""Kubeconfig files: contexts, merging, credentials, and errors that say what to do next."""

import base64
import sys

import pytest
import yaml

from dray.client import Client, KubeconfigError, load_endpoint, load_in_cluster, load_kubeconfig
from dray.client.credentials import ExecCredentials

SERVER = "https://127.0.0.1:8080"


def config(user=None, cluster=None, **changes):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "mine"}},
            {"name": "broken", "context": {"cluster": "nowhere"}},
        ],
        "current-context": "x",
        **changes,
    }


def write(folder, user=None, cluster=None, **changes):
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config(user, cluster, **changes)))
    return path


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KUBECONFIG", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def authorization(endpoint):
    return endpoint.credentials.secret.authorization


def test_the_current_context_is_used(tmp_path):
    endpoint = load_kubeconfig(write(tmp_path, user={"token": "secret"}))
    assert endpoint.server == SERVER
    assert authorization(endpoint) == "Bearer secret"
    assert endpoint.namespace == "mine"
    assert endpoint.user == "u"


def test_credentials_are_not_sent_without_tls(tmp_path):
    endpoint = load_kubeconfig(
        write(tmp_path, user={"token": "secret"}, cluster={"server": "http://10.0.0.1"})
    )
    assert authorization(endpoint) == ""


def test_basic_credentials(tmp_path):
    endpoint = load_kubeconfig(write(tmp_path, user={"username": "a", "password": "b"}))
    assert authorization(endpoint) == "Basic " + base64.b64encode(b"a:b").decode()


def test_a_token_file_is_relative_to_the_kubeconfig_and_goes_before_the_token(tmp_path):
    (tmp_path / "token").write_text("first\n")
    endpoint = load_kubeconfig(write(tmp_path, user={"tokenFile": "token", "token": "old"}))
    assert authorization(endpoint) == "Bearer first"


# --- several files ------------------------------------------------------------


def test_several_files_are_merged_and_the_first_to_name_something_wins(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (two / "token").write_text("of-two")
    first = config(
        contexts=[{"name": "x", "context": {"cluster": "c", "user": "v"}}],
        clusters=[{"name": "c", "cluster": {"server": "https://first"}}],
        users=[{"name": "u", "user": {"token": "of-one"}}],
    )
    second = config(
        cluster={"server": "https://second", "proxy-url": "http://ignored"},
        users=[{"name": "u", "user": {"token": "ignored"}}, {"name": "v", "user": {"tokenFile": "token"}}],
    )
    second["current-context"] = "broken"
    paths = [write(one), write(two)]
    paths[0].write_text(yaml.safe_dump(first))
    paths[1].write_text(yaml.safe_dump(second))
    monkeypatch.setenv("KUBECONFIG", f"{paths[0]}:{tmp_path}/absent::{paths[1]}")
    endpoint = load_endpoint()
    assert (
        endpoint.server == "https://first"
    )  # and the second file's proxy-url of this cluster does not count
    assert endpoint.proxy is None
    assert authorization(endpoint) == "Bearer of-two"  # relative to the second file
    assert endpoint.user == "v"
    monkeypatch.setenv("KUBECONFIG", f"{paths[1]}:{paths[0]}")
    assert load_endpoint(context="x").server == "https://second"
    with pytest.raises(KubeconfigError, match="nowhere"):
        load_endpoint()  # current-context of the first file named


def test_a_given_file_is_not_merged_with_the_environment(tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("KUBECONFIG", str(write(other, cluster={"server": "https://other"})))
    assert load_endpoint(write(tmp_path)).server == SERVER
    assert load_endpoint().server == "https://other"


def test_a_later_file_of_the_environment_that_is_broken_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "broken").write_text("a: [")
    monkeypatch.setenv("KUBECONFIG", f"{write(tmp_path)}:{tmp_path}/broken")
    with pytest.raises(KubeconfigError, match="broken is not YAML"):
        load_endpoint()


# --- what the connection looks like ---------------------------------------------


def test_impersonation_becomes_headers(tmp_path):
    user = {
        "as": "alice",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.com/Scope%": ["a", "b"]},
    }
    endpoint = load_kubeconfig(write(tmp_path, user=user))
    assert endpoint.impersonation == (
        ("Impersonate-User", "alice"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-example.com%2FScope%25", "a"),
        ("Impersonate-Extra-example.com%2FScope%25", "b"),
    )
    assert endpoint.user == "alice"


def test_the_servers_name_and_the_proxy_are_used(tmp_path):
    cluster = {"tls-server-name": "api.internal", "proxy-url": "http://me:pass%40word@proxy:3128"}
    endpoint = load_kubeconfig(write(tmp_path, cluster=cluster))
    assert endpoint.server_name == "api.internal"
    assert (endpoint.proxy.host, endpoint.proxy.port) == ("proxy", 3128)
    assert endpoint.proxy.authorization == "Basic " + base64.b64encode(b"me:pass@word").decode()


def test_an_exec_plugin_is_described_and_not_run_yet(tmp_path):
    plugin = {
        "command": "./bin/plugin",
        "args": ["get"],
        "env": [{"name": "A", "value": "b"}],
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "provideClusterInfo": True,
    }
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"tls-server-name": "api", "extensions": [extension]}
    credentials = load_kubeconfig(write(tmp_path, user={"exec": plugin}, cluster=cluster)).credentials
    assert isinstance(credentials, ExecCredentials)
    assert credentials.command == str(tmp_path / "bin/plugin")
    assert credentials.interactive_mode == "IfAvailable"
    assert credentials.cluster == {"server": SERVER, "tls-server-name": "api", "config": {"audience": "x"}}
    assert credentials.is_due()


def test_fixed_credentials_go_before_a_plugin(tmp_path):
    plugin = {"command": "p", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    assert authorization(load_kubeconfig(write(tmp_path, user={"exec": plugin, "token": "t"}))) == "Bearer t"


# --- what cannot be used ----------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "words"), [("none", "there: x, broken"), ("broken", "no entry 'nowhere' in clusters")]
)
def test_a_missing_entry_is_named_with_those_that_exist(tmp_path, context, words):
    with pytest.raises(KubeconfigError, match=words):
        load_kubeconfig(write(tmp_path), context)


def test_a_missing_file_says_what_to_give(tmp_path):
    with pytest.raises(KubeconfigError, match="--kubeconfig"):
        load_kubeconfig(tmp_path / "nothing")


V1 = "client.authentication.k8s.io/v1"


@pytest.mark.parametrize(
    ("user", "cluster", "changes", "words"),
    [
        ({}, {}, {"contexts": ["x"]}, r"contexts\[0\]"),
        ({}, {}, {"contexts": "x"}, "contexts"),
        ({}, {}, {"clusters": [5]}, r"clusters\[0\]"),
        ({}, {}, {"users": [{"name": "u", "user": "x"}]}, r"users\[0\].user"),
        ({}, {}, {"current-context": ["x"]}, "current-context"),
        ({}, {}, {"current-context": ""}, "has no current-context"),
        ({"token": 12345}, {}, {}, r"user.token"),
        ({"token": "a\nb"}, {}, {}, "cannot be sent"),
        ({"token": "ä"}, {}, {}, "cannot be sent"),
        ({"token": "a", "username": "b", "password": "c"}, {}, {}, "both a token and a password"),
        ({"tokenFile": "absent"}, {}, {}, "cannot read the token file .*absent"),
        ({"tokenFile": "."}, {}, {}, "Is a directory"),
        ({"tokenFile": "binary"}, {}, {}, "binary is not text"),
        ({"tokenFile": "large"}, {}, {}, "larger than"),
        ({"tokenFile": "empty"}, {}, {}, "is empty"),
        ({"as-groups": ["a"]}, {}, {}, "need `as`"),
        ({"as": "a\r\nX: y"}, {}, {}, "cannot be sent"),
        ({"as-user-extra": {"a": "b"}, "as": "x"}, {}, {}, "as-user-extra"),
        ({"auth-provider": {"name": "gcp"}}, {}, {}, "auth-provider 'gcp', which is not supported"),
        ({"auth-provider": {"name": "gcp"}, "exec": {}}, {}, {}, "both exec and auth-provider"),
        ({"client-certificate-data": "eA=="}, {}, {}, "only one of client-certificate and client-key"),
        ({"client-certificate-data": "eA==", "client-key-data": "eA=="}, {}, {}, "certificates cannot be used"),
        ({"client-certificate": "absent", "client-key": "absent"}, {}, {}, "cannot read client-certificate"),
        ({"client-certificate-data": "?"}, {}, {}, "client-certificate-data is not base64"),
        ({"exec": {"command": "x", "interactiveMode": "Never"}}, {}, {}, "exec.apiVersion ''"),
        ({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}, {}, {}, "v1alpha1"),
        ({"exec": {"apiVersion": V1}}, {}, {}, "exec has no command"),
        ({"exec": {"apiVersion": V1, "command": "x"}}, {}, {}, "interactiveMode is ''"),
        ({"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Perhaps"}}, {}, {}, "Perhaps"),
        ({"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Never", "env": [{"value": "y"}]}}, {}, {},
         "exec.env"),
        ({}, {"server": "api.example.com"}, {}, "https://HOST"),
        ({}, {"server": "https://"}, {}, "https://HOST"),
        ({}, {"server": "https://a b"}, {}, "https://HOST"),
        ({}, {"server": "https://h:x"}, {}, "https://HOST"),
        ({}, {"server": ""}, {}, "has no server address"),
        ({}, {"proxy-url": "socks5://h:1"}, {}, "socks5:// are not supported"),
        ({}, {"proxy-url": "https://h:1"}, {}, "https:// are not supported"),
        ({}, {"proxy-url": "http://"}, {}, "names no host"),
        ({}, {"proxy-url": "http://h:port"}, {}, "not an address"),
        ({}, {"certificate-authority-data": base64.b64encode(b"junk").decode()}, {}, "certificates"),
        ({}, {"certificate-authority": "binary"}, {}, "certificates"),
        ({}, {"insecure-skip-tls-verify": "yes"}, {}, "insecure-skip-tls-verify"),
        ({}, {}, {"users": [{"name": "u"}, {"name": "u"}]}, "'u' is in users twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_in_one_line(tmp_path, user, cluster, changes, words):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "large").write_bytes(b"a" * 100_000)
    (tmp_path / "empty").write_bytes(b"\n")
    with pytest.raises(KubeconfigError, match=words) as caught:
        load_kubeconfig(write(tmp_path, user, cluster, **changes))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "kubeconfig") in str(caught.value)


def test_nulls_mean_nothing(tmp_path):
    path = write(
        tmp_path,
        user={"exec": None, "token": None, "as-groups": None},
        cluster={"proxy-url": None, "extensions": None},
        preferences=None,
    )
    assert authorization(load_kubeconfig(path)) == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"42", b"[1]", b"a: [1", bytes(range(256)), b"[" * 40_000, b"\xff\xfe" * 5, b"a: &a [*a]"],
)
def test_files_that_are_not_kubeconfigs_are_an_error(tmp_path, content):
    (tmp_path / "kubeconfig").write_bytes(content)
    with pytest.raises(KubeconfigError):
        load_kubeconfig(tmp_path / "kubeconfig")


# --- in a pod -------------------------------------------------------------------


def test_in_cluster_needs_its_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match="not in a pod"):
        load_in_cluster(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [({}, "cluster's CA"), ({"ca.crt": b"junk", "token": b"t"}, "certificates"),
     ({"ca.crt": None, "token": b"\xff\x00"}, "not text")],
)  # fmt: skip
def test_in_cluster_files_that_cannot_be_used_are_named(tmp_path, monkeypatch, files, words, server_pair):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if content is not None else server_pair.certificate)
    with pytest.raises(KubeconfigError, match=words):
        load_in_cluster(tmp_path)


def test_in_cluster_the_service_account_is_used(tmp_path, monkeypatch, server_pair):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "ca.crt").write_bytes(server_pair.certificate)
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("ns")
    endpoint = load_in_cluster(tmp_path)
    assert (endpoint.server, endpoint.namespace) == ("https://[fd00::1]:6443", "ns")
    assert authorization(endpoint) == "Bearer first"


async def test_connecting_runs_nothing(tmp_path):
    plugin = {"command": sys.executable, "apiVersion": V1, "interactiveMode": "Never", "args": ["-c", "1/0"]}
    client = Client.connect(write(tmp_path, user={"exec": plugin}))
    with pytest.raises(KubeconfigError, match="exit code 1"):
        await client.call("GET", "/version")
    await client.close()
