"""Callers over the Unix socket: who they are, what they may do, their namespace, their login, the socket itself."""

import asyncio
import contextlib
import json
import os
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from server_cluster import Client as Direct
from server_cluster import running_cluster as cluster_in_memory

from dray.api.user_names import DASHBOARD_PATH, DASHBOARD_SESSION_PATH, user_namespace
from dray.certificates import make_ca
from dray.client import Client, TransportError
from dray.client.endpoint import local_endpoint
from dray.client.resources import DEVICE_CLASSES, NAMESPACES, PODS
from dray.host.accounts import Account
from dray.host.sockets import SocketTakenError, UnixSocket
from dray.local import shared_machine
from dray.server.auth.authentication import Authenticator
from dray.server.auth.browser_sessions import MOST_OF_USER, BrowserSessions
from dray.server.auth.local_users import LocalUsers
from dray.server.auth.login import Login
from dray.server.http import connection_limits, fast_http
from dray.server.http.https_front import Front
from dray.server.http.unix_access import SocketPlaceError, unix_socket
from dray.server.requests import Request, User
from dray.server.requests.errors import ApiError

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
ACCOUNTS = {
    0: Account("root", 0, 0, ((0, "root"),), "/root", "/bin/sh"),
    1001: Account("ann", 1001, 1001, ((44, "video"), (1001, "ann")), "/home/ann", "/bin/sh"),
    1002: Account("system:admin", 1002, 1002, (), "/", "/bin/sh"),
}


def authenticator(**changes):
    users = LocalUsers(frozenset({0}), ACCOUNTS.get, lambda name: None, **changes)
    return Authenticator(lambda: NOW, {"secret": User("bob")}, None, local_users=users)


def who(uid, **headers):
    return authenticator().authenticate(Request("GET", "/", headers=headers, peer_uid=uid))


def test_a_caller_is_the_account_that_the_kernel_names():
    user = who(1001)
    assert (user.name, user.uid) == ("ann", "1001")
    assert user.groups == ("dray:users", "unix:video", "unix:ann", "system:authenticated")


def test_root_is_an_administrator():
    assert "system:masters" in who(0).groups
    assert "dray:users" not in who(0).groups


def test_a_token_goes_before_the_account():
    assert who(1001, authorization="Bearer secret").name == "bob"


@pytest.mark.parametrize(
    ("uid", "why"),
    [
        (4242, "no account"),
        (65534, "unknown users"),
        (1002, "cannot be a user name"),
        (2**32 - 1, "no account"),
    ],
)
def test_callers_who_are_nobody_are_refused(uid, why):
    with pytest.raises(ApiError, match=why) as refused:
        who(uid)
    assert refused.value.code == 401


def test_a_changed_account_counts_after_half_a_minute():
    clock, accounts = [0.0], dict(ACCOUNTS)
    users = LocalUsers(frozenset({0}), accounts.get, lambda name: None, lambda: clock[0])
    assert users.user(1001).name == "ann"
    accounts[1001] = Account("eve", 1001, 1001, (), "/", "/bin/sh")
    assert users.user(1001).name == "ann"
    clock[0] = 31.0
    assert users.user(1001).name == "eve"


@pytest.mark.parametrize(
    "pair",
    [
        ("ann", "Ann"),
        ("a.b", "a-b"),
        ("a_b", "a.b"),
        ("x" * 64, "x" * 65),
        ("Ann.B", "ann-b-0b0665e5"),
        ("", "-"),
    ],
)
def test_different_users_have_different_namespaces(pair):
    first, second = map(user_namespace, pair)
    assert first != second
    for name in (first, second):
        assert len(name) <= 63 and name == name.lower() and not name.endswith("-")


# --- rights ---------------------------------------------------------------------------


async def as_user(cluster, method, path, body=None, uid=1001):
    request = Request(
        method,
        path,
        headers={"content-type": "application/json"},
        body=json.dumps(body).encode() if body is not None else b"",
        peer_uid=uid,
    )
    response = await cluster.server.handle(request)
    content = response.body if isinstance(response.body, bytes) else b"{}"
    return response.status, json.loads(content or b"{}")


@pytest.fixture
async def cluster():
    async with cluster_in_memory() as client:
        client.cluster.server.authenticator.local_users = LocalUsers(
            frozenset({0}), ACCOUNTS.get, {a.name: a for a in ACCOUNTS.values()}.get
        )
        yield client.cluster


RIGHTS = [
    ("GET", "/api/v1/namespaces/user-ann/pods", 200),
    ("GET", "/apis/resource.k8s.io/v1/namespaces/user-ann/resourceclaims", 200),
    ("GET", "/apis/resource.k8s.io/v1/deviceclasses", 200),
    ("GET", "/apis/resource.k8s.io/v1/resourceslices", 200),
    ("GET", "/api/v1/nodes", 200),
    ("GET", "/api/v1/namespaces/user-ann/events", 200),
    ("GET", "/api/v1/namespaces/kube-system/configmaps", 403),
    ("GET", "/api/v1/namespaces/user-bob/pods", 403),
    ("GET", "/api/v1/namespaces/default/pods", 403),
    ("GET", "/api/v1/pods", 403),
    ("GET", "/api/v1/namespaces/user-bob/pods/x/log", 403),
    ("POST", "/api/v1/namespaces/user-bob/pods/x/exec", 403),
    ("DELETE", "/api/v1/namespaces/user-bob/pods/x", 403),
    ("GET", "/api/v1/secrets", 403),
    ("GET", "/apis/resource.k8s.io/v1/resourceclaims", 403),
    ("DELETE", "/api/v1/namespaces/user-ann", 403),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", 403),
    ("DELETE", "/apis/resource.k8s.io/v1/deviceclasses/x", 403),
]


@pytest.mark.parametrize(("method", "path", "code"), RIGHTS, ids=[f"{m} {p}" for m, p, _ in RIGHTS])
async def test_what_a_user_may_do(cluster, method, path, code):
    status, answer = await as_user(cluster, method, path)
    assert status == code, answer


async def test_a_user_may_list_the_records_by_name_and_nothing_else_there(cluster):
    path = "/api/v1/namespaces/kube-system/configmaps"
    for name, expected in (("dray-history", 200), ("dray-user-limits", 403)):
        request = Request("GET", path, query=(("fieldSelector", f"metadata.name={name}"),), peer_uid=1001)
        assert (await cluster.server.handle(request)).status == expected


async def test_the_namespace_is_made_at_first_use_and_again_after_its_deletion(cluster):
    admin = Direct(cluster)
    assert (await admin.call("GET", "/api/v1/namespaces/user-ann")).code == 404
    await as_user(cluster, "GET", "/api/v1/nodes")
    made = (await admin.call("GET", "/api/v1/namespaces/user-ann")).json
    assert made["metadata"]["annotations"] == {"dray.dev/user-name": "ann"}
    await admin.call("DELETE", "/api/v1/namespaces/user-ann")
    left = (await admin.call("GET", "/api/v1/namespaces/user-ann")).json
    ended = await admin.call(
        "PUT", "/api/v1/namespaces/user-ann/finalize", {**left, "spec": {"finalizers": []}}
    )
    assert ended.code == 200, ended.json
    await as_user(cluster, "GET", "/api/v1/nodes")
    again = (await admin.call("GET", "/api/v1/namespaces/user-ann")).json
    assert again["metadata"]["uid"] != made["metadata"]["uid"]


async def test_root_gets_no_namespace_of_its_own(cluster):
    await as_user(cluster, "GET", "/api/v1/nodes", uid=0)
    assert (await Direct(cluster).call("GET", "/api/v1/namespaces/user-root")).code == 404


# --- login ----------------------------------------------------------------------------


def login(seconds="3600", peer_uid=1001, method="POST", **headers):
    ca = make_ca("test", NOW)
    request = Request(
        method, "/dray/v1/login", query=(("seconds", seconds),), headers=headers, peer_uid=peer_uid
    )
    return Login(ca, "https://127.0.0.1:1").respond(request, User("ann", groups=("dray:users",)), NOW)


def test_a_login_is_a_certificate_of_the_caller_for_a_short_time():
    import base64

    import yaml

    answer = json.loads(login().body)
    config = yaml.safe_load(answer["kubeconfig"])
    assert config["contexts"][0]["context"]["namespace"] == "user-ann"
    pem = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate.not_valid_after_utc == NOW + timedelta(hours=1)
    assert certificate.subject.rfc4514_string() == "CN=ann,O=dray:users"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"peer_uid": None}, 403),
        ({"authorization": "Bearer x"}, 403),
        ({"method": "GET"}, 405),
        ({"seconds": "1"}, 400),
        ({"seconds": "86401"}, 400),
        ({"seconds": "٣٣٣٣"}, 400),
        ({"seconds": "9" * 5000}, 400),
    ],
)
def test_logins_that_are_refused(options, code):
    with pytest.raises(ApiError) as refused:
        login(**options)
    assert refused.value.code == code


# --- sessions of browsers -------------------------------------------------------------


async def post(cluster, path, *, peer_uid=None, token="", method="POST"):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = await cluster.server.handle(Request(method, path, headers=headers, peer_uid=peer_uid))
    return answer.status, json.loads(answer.body)


async def link_code(cluster, uid=1001):
    status, answer = await post(cluster, DASHBOARD_PATH, peer_uid=uid)
    assert status == 201, answer
    return answer["url"].partition("#code=")[2]


async def test_a_link_is_a_session_of_the_caller_once(cluster):
    code = await link_code(cluster)
    status, session = await post(cluster, DASHBOARD_SESSION_PATH, token=code)
    assert (status, session["user"], session["namespace"]) == (201, "ann", "user-ann")
    pods = f"/api/v1/namespaces/{session['namespace']}/pods"
    assert (await post(cluster, pods, token=session["token"], method="GET"))[0] == 200
    assert (await post(cluster, "/api/v1/pods", token=session["token"], method="GET"))[0] == 403
    # The code is used up, and was never good for anything else; a token makes no further session and no link.
    assert (await post(cluster, DASHBOARD_SESSION_PATH, token=code))[0] == 401
    assert (await post(cluster, pods, token=await link_code(cluster), method="GET"))[0] == 401
    assert (await post(cluster, DASHBOARD_SESSION_PATH, token=session["token"]))[0] == 401
    assert (await post(cluster, DASHBOARD_PATH, token=session["token"]))[0] == 403


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        (DASHBOARD_PATH, {}, 403),  # anonymous, not over the socket
        (DASHBOARD_PATH, {"peer_uid": 1001, "method": "GET"}, 403),
        (DASHBOARD_SESSION_PATH, {}, 403),
        (DASHBOARD_SESSION_PATH, {"peer_uid": 1001}, 403),
        (DASHBOARD_SESSION_PATH, {"token": "wrong"}, 401),
        (DASHBOARD_SESSION_PATH, {"token": "\udcff"}, 401),
    ],
)
async def test_sessions_that_are_refused(cluster, path, options, status):
    assert (await post(cluster, path, **options))[0] == status


def test_codes_and_tokens_end_and_are_bounded():
    sessions, ann = BrowserSessions(), User("ann", groups=("dray:users",))

    def begin(now):
        answer = sessions.respond(Request("POST", DASHBOARD_PATH, peer_uid=1001), ann, "", now)
        return json.loads(answer.body)["url"].partition("#code=")[2]

    def exchange(code, now):
        answer = sessions.respond(Request("POST", DASHBOARD_SESSION_PATH), ann, code, now)
        return json.loads(answer.body)["token"]

    code = begin(NOW)
    assert sessions.user(code, DASHBOARD_SESSION_PATH, NOW + timedelta(seconds=119)) == ann
    assert sessions.user(code, DASHBOARD_SESSION_PATH, NOW + timedelta(seconds=120)) is None
    token = exchange(begin(NOW), NOW)
    assert sessions.user(token, "/api", NOW + timedelta(hours=11)) == ann
    assert sessions.user(token, "/api", NOW + timedelta(hours=12)) is None
    with pytest.raises(ApiError):
        exchange(code, NOW + timedelta(minutes=3))
    tokens = [exchange(begin(NOW), NOW) for _ in range(MOST_OF_USER)]
    assert sessions.user(token, "/api", NOW) is None  # the oldest went
    assert all(sessions.user(each, "/api", NOW) == ann for each in tokens)


# --- the socket -----------------------------------------------------------------------


@pytest.fixture
def path(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setenv("DRAY_SOCKET", str(tmp_path / "api.sock"))
    return tmp_path / "api.sock"


async def test_a_client_works_over_the_socket_and_the_socket_goes_with_the_server(cluster, path):
    cluster.server.authenticator.local_users = LocalUsers(frozenset({os.geteuid()}))
    front = Front(cluster.server, "127.0.0.1", 0, None, unix_socket=unix_socket(path))
    await front.start()
    expected = 0o666 if os.geteuid() == 0 else 0o600
    assert stat.S_IMODE(path.stat().st_mode) == expected
    endpoint = await asyncio.to_thread(shared_machine.find_shared_system)
    assert endpoint is not None and endpoint.namespace == "default"
    async with Client.at(endpoint) as client:
        assert len((await client.list(NAMESPACES)).items) == 4
        assert (await client.list(DEVICE_CLASSES)).items == []
        async for event in client.watch(NAMESPACES, resourceVersion="0"):
            assert event.type == "ADDED"
            break
        with pytest.raises(SocketTakenError):
            unix_socket(path).listen(1)
    await front.stop()
    assert not path.exists()
    assert shared_machine.find_shared_system() is None


async def test_connections_over_the_socket_are_counted_for_each_user(cluster, path, monkeypatch):
    monkeypatch.setattr(connection_limits, "MAX_LOCAL_EACH", 3)
    monkeypatch.setattr(
        fast_http, "peer_uid", lambda transport: 1001
    )  # another user than the one who runs the tests
    front = Front(cluster.server, "127.0.0.1", 0, None, unix_socket=unix_socket(path))
    await front.start()
    try:
        async with asyncio.timeout(30):
            opened = [await asyncio.open_unix_connection(path) for _ in range(5)]
            for reader, _ in opened[:2]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            while len(front.connections) > 3:
                await asyncio.sleep(0.01)
            assert not any(reader.at_eof() for reader, _ in opened[2:])
            for _, writer in opened:
                writer.close()
    finally:
        await front.stop()


async def test_nobody_at_the_socket_is_an_error_that_names_it(path):
    async with Client.at(local_endpoint(str(path), "default")) as client:
        with pytest.raises(TransportError, match=r"cannot connect to .*api\.sock"):
            await client.list(PODS)


def test_a_dead_socket_is_replaced_and_anything_else_is_not(path):
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    opened = UnixSocket(path, 0o600)
    opened.listen(1).close()
    opened.close()
    path.write_text("a file")
    with pytest.raises(SocketTakenError, match="not a socket"):
        UnixSocket(path, 0o600).listen(1)
    assert path.read_text() == "a file"


@pytest.mark.parametrize("name", ["relative/api.sock", "/tmp/../x/api.sock", "/" + "x" * 120])
def test_places_where_no_socket_can_be(name):
    from pathlib import Path

    with pytest.raises(SocketPlaceError):
        unix_socket(Path(name))


def test_a_folder_where_others_can_write_is_refused(path):
    path.parent.chmod(0o777)
    with pytest.raises(SocketPlaceError, match="can be written"):
        unix_socket(path)


def test_a_group_that_does_not_exist_is_refused(path):
    with pytest.raises(SocketPlaceError, match="no group"):
        unix_socket(path, "no-such-group-here")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a socket of another user")
def test_a_socket_that_somebody_else_made_is_not_believed(path):
    import socket

    with socket.socket(socket.AF_UNIX) as false:
        false.bind(str(path))
        false.listen(1)
        assert shared_machine.find_shared_system() is not None
        os.chown(path, 12345, 12345)
        assert shared_machine.find_shared_system() is None
        os.chown(path, 0, 0)
        path.parent.chmod(0o777)
        assert shared_machine.find_shared_system() is None
