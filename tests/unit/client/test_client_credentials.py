"""Credentials that expire: files that are replaced, plugins that are asked again, and 401."""

import asyncio
import json
import logging
import os
import sys
from datetime import UTC, datetime, timedelta

import pytest
from conditions import until
from scripted_server import AnsweringServer, ConnectProxy, ok

from dray.client import (
    Client,
    Endpoint,
    HttpTransport,
    Informer,
    KubeconfigError,
    LeaderElection,
    Request,
    TransportError,
)
from dray.client.credentials import ExecCredentials, FileCredentials
from dray.client.endpoint import Proxy, Secret, Trust
from dray.client.errors import Unauthorized
from dray.client.proxies import environment_proxy, is_direct
from dray.client.resources import NODES, PODS

V1 = "client.authentication.k8s.io/v1"
UNAUTHORIZED = ok(b'{"kind":"Status","code":401,"message":"Unauthorized"}', "401 Unauthorized")


def plugin(tmp_path, status, *, before="", **options):
    """A plugin that answers with this status and counts how often it is asked."""
    script = tmp_path / "plugin.py"
    answer = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
    script.write_text(
        "import json, os, pathlib, sys, time\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        f"answer = json.loads({json.dumps(json.dumps(answer))})\n"
        f"{before}\n"
        "print(json.dumps(answer).replace('NUMBER', str(number)))\n"
    )
    return ExecCredentials(sys.executable, [str(script)], {}, V1, **{"interactive_mode": "Never", **options})


def asked(tmp_path):
    return int((tmp_path / "count").read_text())


# --- plugins --------------------------------------------------------------------


async def test_a_plugin_is_asked_once_until_its_credentials_expire(tmp_path):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    status = {"token": "t-NUMBER", "expirationTimestamp": "2026-01-01T01:00:00Z"}
    credentials = plugin(tmp_path, status, now=lambda: now)
    assert credentials.is_due()
    await credentials.renew(was_refused=False)
    assert credentials.secret.authorization == "Bearer t-1"
    assert not credentials.is_due()
    now += timedelta(hours=2)
    assert credentials.is_due()
    await credentials.renew(was_refused=False)
    assert credentials.secret.authorization == "Bearer t-2"


async def test_a_plugin_is_told_what_it_needs_to_know(tmp_path):
    credentials = plugin(
        tmp_path,
        {"token": "x"},
        before="answer['status']['token'] = os.environ['KUBERNETES_EXEC_INFO'] + os.environ['MINE']",
        cluster={"server": "https://api"},
    )
    credentials.environment = {"MINE": "!"}
    await credentials.renew(was_refused=False)
    text = credentials.secret.authorization.removeprefix("Bearer ")
    assert json.loads(text[:-1]) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://api"}},
    }
    assert text.endswith("!")


@pytest.mark.parametrize(
    ("status", "before", "options", "words"),
    [
        ({}, "", {}, "neither a token nor a certificate"),
        (None, "", {}, "neither a token nor a certificate"),
        ({"clientKeyData": "k"}, "", {}, "only one of certificate and key"),
        ({"token": 5}, "", {}, "status.token"),
        ({"token": "a\nb"}, "", {}, "cannot be sent"),
        ({"token": "t", "expirationTimestamp": "soon"}, "", {}, "expirationTimestamp"),
        ({}, "print('hello'); sys.exit()", {}, "did not print an ExecCredential"),
        ({}, "print('[' * 50000); sys.exit()", {}, "did not print an ExecCredential"),
        ({}, "print('x' * 3_000_000); sys.exit()", {}, "more than 1 MiB"),
        ({"token": "t"}, "answer['apiVersion'] = 'v9'", {}, "answered with v9"),
        ({"token": "t"}, "answer['kind'] = 'Pod'", {}, "kind Pod"),
        ({}, "sys.stderr.write('first\\n\\x1b[31mlog in again\\n'); sys.exit(3)", {}, "exit code 3: .*log in again"),
        ({}, "time.sleep(60)", {"limit": 0.5}, "within 0.5 s"),
        ({}, "", {"interactive_mode": "Always"}, "wants a terminal"),
        ({}, "", {"command": "/no/such", "install_hint": "get it\nat example.com"},
         "/no/such' cannot be run: .*get it at example.com"),
        ({}, "", {"command": "a\0b"}, "cannot be run"),
    ],
)  # fmt: skip
async def test_a_plugin_that_gives_nothing_says_why_in_one_line(tmp_path, status, before, options, words):
    credentials = plugin(tmp_path, status, before=before)
    for name, value in options.items():
        setattr(credentials, name, value)
    with pytest.raises(KubeconfigError, match=words) as caught:
        await credentials.renew(was_refused=False)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


# --- files ----------------------------------------------------------------------


async def test_a_token_file_that_changes_is_read_again(tmp_path):
    time, path = 0.0, tmp_path / "token"
    path.write_text("first")
    credentials = FileCredentials(token=path, clock=lambda: time)
    assert not credentials.is_due()
    time = 10.0
    assert credentials.is_due()
    (tmp_path / "next").write_text("second")
    os.replace(tmp_path / "next", path)
    await credentials.renew(was_refused=False)
    assert credentials.secret.authorization == "Bearer second"
    path.unlink()  # being replaced
    time = 20.0
    await credentials.renew(was_refused=False)
    assert credentials.secret.authorization == "Bearer second"


# --- 401 ------------------------------------------------------------------------


def token_checker(good):
    """An answer to requests: 200 with the good token, else 401."""
    return lambda head: ok(b"{}") if f"Authorization: Bearer {good()}\r\n" in head else UNAUTHORIZED


async def test_after_a_401_the_plugin_is_asked_again_and_the_request_repeated(tmp_path):
    credentials = plugin(tmp_path, {"token": "t-NUMBER"})
    async with AnsweringServer(token_checker(lambda: "t-2")) as server:
        transport = HttpTransport(Endpoint(server.url, credentials=credentials))
        response = await transport.send(Request("POST", "/x", b"{}"))
        assert response.status == 200
        assert (await transport.send(Request("GET", "/x"))).status == 200
        assert asked(tmp_path) == 2
        await transport.close()


async def test_many_refused_requests_ask_the_plugin_once(tmp_path):
    credentials = plugin(tmp_path, {"token": "t-NUMBER"})
    async with AnsweringServer(token_checker(lambda: "t-2")) as server:
        transport = HttpTransport(Endpoint(server.url, credentials=credentials))
        answers = await asyncio.gather(*(transport.send(Request("GET", "/x")) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert asked(tmp_path) == 2
        await transport.close()


async def test_a_rotated_token_file_is_used_at_once_after_a_401(tmp_path):
    (tmp_path / "token").write_text("old")
    async with AnsweringServer(token_checker(lambda: "new")) as server:
        transport = HttpTransport(Endpoint(server.url, credentials=FileCredentials(token=tmp_path / "token")))
        (tmp_path / "token").write_text("new")
        assert (await transport.send(Request("GET", "/x", stream=True))).status == 200
        await transport.close()


async def test_a_constant_401_is_one_warning_with_what_to_do_and_an_end(tmp_path, caplog):
    good = "other"
    credentials = FileCredentials(Secret("Bearer mine"))
    caplog.set_level(logging.INFO, "dray.client")
    async with AnsweringServer(token_checker(lambda: good)) as server:
        endpoint = Endpoint(server.url, credentials=credentials, user="alice", origin="kubeconfig /x")
        client = Client(HttpTransport(endpoint))
        for resource in (NODES, PODS, NODES):
            with pytest.raises(Unauthorized):
                await client.list(resource)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        text = caplog.text
        assert (
            "'alice'" in text
            and "kubeconfig /x" in text
            and "expired" in text
            and "GET /api/v1/nodes" in text
        )
        assert "mine" not in text
        good = "mine"
        await client.call("GET", "/x")
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        await client.close()


async def test_an_informer_waits_for_credentials_and_says_so(tmp_path, caplog):
    (tmp_path / "token").write_text("old")
    is_renewed = False

    def answer(head):
        if "Bearer new" not in head:
            return UNAUTHORIZED
        if "watch=1" in head:
            return None
        return ok(b'{"metadata":{"resourceVersion":"5"},"items":[]}')

    from dray.api.core import Node

    async with AnsweringServer(answer) as server:
        credentials = FileCredentials(token=tmp_path / "token")
        client = Client(HttpTransport(Endpoint(server.url, credentials=credentials, user="alice")))
        informer = Informer(client, NODES, Node)
        running = asyncio.create_task(informer.run())
        async with asyncio.timeout(30):
            await until(lambda: caplog.records)
            assert not informer.has_synced and not running.done()
            is_renewed = bool((tmp_path / "token").write_text("new"))
            await informer.wait_synced()
        running.cancel()
        await client.close()
    assert is_renewed
    assert "alice" in caplog.text


async def test_a_failing_plugin_is_reported_once_and_fails_the_request(tmp_path, caplog):
    credentials = plugin(tmp_path, {}, before="sys.exit(1)")
    transport = HttpTransport(Endpoint("http://127.0.0.1:1", credentials=credentials, origin="kubeconfig /x"))
    for _ in range(2):
        with pytest.raises(KubeconfigError, match="kubeconfig /x: exec plugin"):
            await transport.send(Request("GET", "/x"))
    assert len(caplog.records) == 1
    await transport.close()


FORBIDDEN = json.dumps(
    {"kind": "Status", "code": 403, "reason": "Forbidden",
     "message": 'nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope'}
).encode()  # fmt: skip


async def test_permissions_that_are_taken_away_are_one_warning_and_do_not_end_the_informer(caplog):
    from dray.api.core import Node

    refused = 0

    def answer(head):
        nonlocal refused
        if "watch=1" not in head:
            return ok(b'{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"n","uid":"u"}}]}')
        if sum("watch=1" in each for each in server.heads) == 1:
            return ok(b"")  # a watch that the server ends
        refused += 1
        return ok(FORBIDDEN, "403 Forbidden")

    async with AnsweringServer(answer) as server:
        client = Client(HttpTransport(server.url))
        informer = Informer(client, NODES, Node)
        running = asyncio.create_task(informer.run())
        await until(lambda: refused >= 2, 30)
        assert "n" in informer.items, "what was known stays"
        running.cancel()
        await client.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert 'User "alice" cannot list resource "nodes"' in warnings[0]


async def test_a_candidate_that_may_not_take_the_lease_says_so(caplog):
    async with AnsweringServer(lambda _head: ok(FORBIDDEN, "403 Forbidden")) as server:
        client = Client(HttpTransport(server.url))
        election = LeaderElection(client, "x", "me", retry_period=0.01)
        running = asyncio.create_task(election.run(lambda: asyncio.sleep(0)))
        await until(lambda: len(server.heads) >= 3, 30)
        running.cancel()
        await client.close()
    assert sum("cannot be taken" in record.getMessage() for record in caplog.records) == 1


# --- the connection ---------------------------------------------------------------


async def test_impersonation_travels_with_every_request():
    async with AnsweringServer(lambda _head: ok(b"{}")) as server:
        headers = (("Impersonate-User", "alice"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
        transport = HttpTransport(Endpoint(server.url, impersonation=headers))
        await transport.send(Request("GET", "/x"))
        await transport.close()
    for name, value in headers:
        assert f"{name}: {value}\r\n" in server.heads[0]


async def test_the_certificate_is_checked_for_the_tls_server_name(tmp_path, server_pair):
    async with AnsweringServer(lambda _head: ok(b"{}"), server_pair, tmp_path) as server:
        trust = Trust(server_pair.certificate)
        transport = HttpTransport(Endpoint(server.url, trust, server_name="api.internal"))
        assert (await transport.send(Request("GET", "/x"))).status == 200
        await transport.close()
        plain = HttpTransport(Endpoint(server.url, trust))
        with pytest.raises(TransportError, match="certificate"):
            await plain.send(Request("GET", "/x"))
        insecure = HttpTransport(Endpoint(server.url, Trust(is_insecure=True)))
        assert (await insecure.send(Request("GET", "/x"))).status == 200
        await insecure.close()


async def test_a_renewed_client_certificate_is_presented_on_new_connections(
    tmp_path, server_pair, client_pairs
):
    one, two = client_pairs
    (tmp_path / "crt").write_bytes(one.certificate)
    (tmp_path / "key").write_bytes(one.key)
    time = 0.0
    credentials = FileCredentials(certificate=tmp_path / "crt", key=tmp_path / "key", clock=lambda: time)
    server = AnsweringServer(lambda _head: ok(b"{}"), server_pair, tmp_path)
    server.ask_for_client_certificates(one.certificate, two.certificate)
    async with server:
        endpoint = Endpoint(server.url, Trust(server_pair.certificate), credentials, "api.internal")
        transport = HttpTransport(endpoint)
        await transport.send(Request("GET", "/x"))
        (tmp_path / "crt").write_bytes(two.certificate)
        (tmp_path / "key").write_bytes(two.key)
        time = 10.0
        await transport.send(Request("GET", "/x"))
        await transport.close()
    assert len(server.peers) == 2
    assert None not in server.peers
    assert server.peers[0] != server.peers[1]


async def test_a_tunnel_is_asked_of_the_proxy(tmp_path, server_pair):
    server = AnsweringServer(lambda _head: ok(b"{}"), server_pair, tmp_path)
    async with server, ConnectProxy() as proxy:
        way = Proxy("127.0.0.1", proxy.port, "Basic eDp5")
        endpoint = Endpoint(server.url, Trust(server_pair.certificate), server_name="api.internal", proxy=way)
        transport = HttpTransport(endpoint)
        assert (await transport.send(Request("GET", "/x"))).status == 200
        await transport.close()
    assert proxy.heads[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic eDp5\r\n" in proxy.heads[0]
    assert "Proxy-Authorization" not in server.heads[0]


@pytest.mark.parametrize(
    ("status", "words"),
    [(b"407 Proxy Authentication Required", "refuses: HTTP/1.1 407"), (b"200 OK\r\nX: " + b"y" * 300_000, "as an HTTP proxy")],
)  # fmt: skip
async def test_a_proxy_that_refuses_is_named(status, words):
    async with ConnectProxy(status) as proxy:
        endpoint = Endpoint(
            "https://10.255.255.1", Trust(is_insecure=True), proxy=Proxy("127.0.0.1", proxy.port)
        )
        with pytest.raises(TransportError, match=words) as caught:
            await HttpTransport(endpoint).send(Request("GET", "/x"))
        assert f"127.0.0.1:{proxy.port}" in str(caught.value)


async def test_without_tls_the_proxy_gets_the_whole_address():
    async with AnsweringServer(lambda _head: ok(b"{}")) as proxy:
        way = Proxy("127.0.0.1", proxy.port, "Basic eDp5")
        transport = HttpTransport(Endpoint("http://api.example.com:8080/base", proxy=way))
        await transport.send(Request("GET", "/x?y=1"))
        await transport.close()
    assert proxy.heads[0].startswith("GET http://api.example.com:8080/base/x?y=1 HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic eDp5" in proxy.heads[0]


@pytest.mark.parametrize(
    ("server", "environment", "expected"),
    [
        ("https://api", {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ("https://api", {"https_proxy": "http://p"}, "http://p:80"),
        ("https://api", {"HTTPS_PROXY": "http://upper", "https_proxy": "http://lower"}, "http://upper:80"),
        ("https://api", {"HTTP_PROXY": "http://p"}, None),
        ("http://api", {"HTTP_PROXY": "http://p"}, "http://p:80"),
        ("http://api", {"HTTP_PROXY": "http://p", "REQUEST_METHOD": "GET"}, None),
        ("https://localhost:1", {"HTTPS_PROXY": "http://p"}, None),
        ("https://127.9.9.9", {"HTTPS_PROXY": "http://p"}, None),
        ("https://[::1]", {"HTTPS_PROXY": "http://p"}, None),
        ("https://api", {"HTTPS_PROXY": "http://p", "NO_PROXY": "x, api"}, None),
        ("https://[fd00::1]", {"HTTPS_PROXY": "http://[fd00::2]:80"}, "http://[fd00::2]:80"),
    ],
)  # fmt: skip
def test_the_environment_names_the_proxy_as_for_kubectl(server, environment, expected):
    found = environment_proxy(server, environment)
    assert (str(found) if found else None) == expected


def test_a_proxy_of_the_environment_that_cannot_be_used_is_named():
    with pytest.raises(KubeconfigError, match="HTTPS_PROXY.*socks5://"):
        environment_proxy("https://api", {"HTTPS_PROXY": "socks5://h:1"})


@pytest.mark.parametrize(
    ("host", "port", "exceptions", "expected"),
    [
        ("api.example.com", 443, "example.com", True),
        ("api.example.com", 443, "*.example.com", True),
        ("example.com", 443, "*.example.com", False),
        ("notexample.com", 443, "example.com", False),
        ("API.Example.COM.", 443, "api.example.com", True),
        ("api", 443, "api:443", True),
        ("api", 6443, "api:443", False),
        ("10.1.2.3", 443, "10.0.0.0/8", True),
        ("11.1.2.3", 443, "10.0.0.0/8,junk/99", False),
        ("10.1.2.3", 443, "10.1.2.3", True),
        ("10.1.2.3", 443, "10.1.2.3:80", False),
        ("fd00::5", 443, "fd00::/8", True),
        ("fd00::5", 443, "fd00::5", True),
        ("anything", 443, "*", True),
        ("anything", 443, ",, ", False),
    ],
)
def test_exceptions_from_the_proxy(host, port, exceptions, expected):
    assert is_direct(host, port, exceptions) is expected
