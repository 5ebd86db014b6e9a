"""Who may call the node agent's port: the authorisation matrix, over HTTPS, decided by dray's own API server.

What is expected is what a running kubelet answered (tests/recordings/node/access.jsonl).
"""

import contextlib
import json
import ssl
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest
from node_access_matrix import CALLS, NODE, ROLES, SUBJECTS, binding, role, subject_name
from recordings import recorded
from small_api import SmallApi
from yarl import URL

from dray.client import Client
from dray.client.errors import TransportError
from dray.client.transport import Response
from dray.node.access import (
    ALLOWED_SECONDS,
    DENIED_SECONDS,
    TOKEN_SECONDS,
    Access,
    AccessError,
    Caller,
    ExpiringCache,
    caller_of_certificate,
    subresources_of,
    verb_of,
)
from dray.node.server import NodeServer
from dray.server.assembly import Cluster, Settings
from dray.server.auth import pki
from dray.server.requests.messages import Request as ServerRequest
from dray.server.requests.users import User
from dray.server.store import MemoryStore

NOW = datetime.now(UTC)


# --- the table of kubelet: paths and methods ------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "subresources"),
    [
        ("/pods", ("pods", "proxy")),
        ("/pods/", ("pods", "proxy")),
        ("/runningpods/", ("pods", "proxy")),
        ("/allocatedPods/x/y", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
        ("/healthz/ping", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/metrics", ("metrics",)),
        ("/metrics/cadvisor", ("metrics",)),
        ("/stats/summary", ("stats",)),
        ("/logs/x", ("log",)),
        ("/checkpoint/a/b/c", ("checkpoint",)),
        ("/statusz", ("statusz",)),
        ("/flagz", ("configz",)),
        ("/containerLogs/a/b/c", ("proxy",)),
        ("/exec/a/b/c", ("proxy",)),
        ("/podsx", ("proxy",)),
        ("/metricsx", ("proxy",)),
        ("/", ("proxy",)),
    ],
)
def test_every_path_is_a_subresource_of_the_node(path, subresources):
    assert subresources_of(path) == subresources


def test_every_method_is_a_verb():
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")
    assert [verb_of(m) for m in methods] == ["get", "create", "update", "patch", "delete", "", "", ""]


def test_a_certificate_names_its_user_and_groups():
    subject = ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "ann"),))
    assert caller_of_certificate({"subject": subject}) == Caller("ann", ("a", "b", "system:authenticated"))
    assert caller_of_certificate({"subject": subject[:2]}) is None
    assert caller_of_certificate({}) is None
    assert caller_of_certificate(None) is None


# --- the matrix: subject x method x path, on a real port ------------------------------------------


class InProcess:
    """A transport into dray's API server, with the node's own identity."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.requests = []

    async def send(self, request):
        parts = urlsplit(request.target)
        self.requests.append(parts.path)
        headers = {"authorization": "Bearer node", "content-type": request.content_type}
        query = tuple(parse_qsl(parts.query))
        made = ServerRequest(request.method, parts.path, query, headers, request.body or b"")
        answer = await self.cluster.server.handle(made)
        return Response(answer.status, {}, answer.body)

    async def close(self):
        pass


class NoPods:
    """A node without pods: what is allowed gets an empty list, or 404."""

    def machines(self):
        return []

    def find(self, namespace, name):
        return None


@contextlib.asynccontextmanager
async def api_server():
    tokens = {
        "node": User(f"system:node:{NODE}", groups=("system:nodes", "system:authenticated")),
        "admin": User("admin", groups=("system:masters",)),
        "monitor": User("monitor", groups=("system:authenticated",)),
        "guest": User("guest", groups=("system:authenticated",)),
    }
    cluster = Cluster(MemoryStore(), Settings(static_tokens=tokens))
    await cluster.start()
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for name in ROLES:
        for path, made in (
            (f"{rbac}/clusterroles", role(name)),
            (f"{rbac}/clusterrolebindings", binding(name)),
        ):
            headers = {"authorization": "Bearer admin", "content-type": "application/json"}
            answer = await cluster.server.handle(
                ServerRequest("POST", path, (), headers, json.dumps(made).encode())
            )
            assert answer.status == 201, answer.body
    try:
        yield cluster
    finally:
        await cluster.stop()


@contextlib.asynccontextmanager
async def agent_port(folder, transport, *, with_ca=True):
    made = pki.prepare(folder / "pki", ["127.0.0.1"], NOW)
    access = Access(Client(transport), NODE)
    ca = made.ca_file if with_ca else None
    server = NodeServer(
        NoPods(), access, "127.0.0.1", folder / "node", client_ca=ca, metrics=lambda: b"x 1\n"
    )
    await server.start()
    try:
        yield f"https://127.0.0.1:{server.port}", made
    finally:
        await server.stop()


def tls_of(folder, pair=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if pair is not None:
        file = folder / "client.pem"
        file.write_bytes(pair.certificate_pem + pair.key_pem)
        context.load_cert_chain(file)
    return context


# Where the agent answers otherwise than kubelet, and why; the other 133 answers are the same.
UNKNOWN_PATH = 6  # kubelet has no handler there and says 404 to anybody; the agent asks who it is first
CONTROLLERS = "system:kube-controller-manager"  # dray's controllers have one identity, with the garbage collector's rights
ALLOWED = [200, 200, 200, 404, 404, 404, 404, 405]


def expected_statuses(subject, answers):
    """Return what the agent answers to a subject, from what kubelet answered."""
    if subject == CONTROLLERS:
        return [200, 200, 200, 404, 404, 403, 404, 405]
    statuses = list(answers)
    if statuses[3] in (401, 403):
        statuses[UNKNOWN_PATH] = statuses[3]  # as for logs, which need nodes/proxy as well
    return statuses


def recorded_rows():
    rows = {row["subject"]: row for row in recorded("node/access.jsonl")}
    assert list(rows) == [subject_name(*each) for each in SUBJECTS], "run tools/recorders/node_access.py"
    return rows


async def test_the_matrix_of_subjects_methods_and_paths(tmp_path):
    async with api_server() as cluster, agent_port(tmp_path, InProcess(cluster)) as (url, made):
        rows = recorded_rows()
        for user, groups, token in [*SUBJECTS, ("kube-apiserver-kubelet-client", [], "")]:
            subject = subject_name(user, groups, token)
            row = rows.get(subject, {"statuses": ALLOWED, "refusals": []})
            refusals = set()
            expected = expected_statuses(subject, row["statuses"])
            pair = made.client_pair(user, groups, NOW) if user else None
            connector = aiohttp.TCPConnector(ssl=tls_of(tmp_path, pair))
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                for (method, path), status in zip(CALLS, expected, strict=True):
                    async with session.request(method, url + path) as answer:
                        text = await answer.text()
                        assert answer.status == status, (subject, method, path, text)
                        if status in (401, 403):
                            refusals.add(text)
            if not token and subject != CONTROLLERS:  # kubelet was shown tokens of service accounts
                assert sorted(refusals) == row["refusals"], subject


async def test_a_refusal_names_user_verb_and_subresources(tmp_path):
    async with api_server() as cluster, agent_port(tmp_path, InProcess(cluster)) as (url, made):
        connector = aiohttp.TCPConnector(ssl=tls_of(tmp_path, made.client_pair("ann", [], NOW)))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url + "/pods") as answer,
        ):
            text = "Forbidden (user=ann, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
            assert (answer.status, await answer.text()) == (403, text)


async def test_a_path_cannot_be_spelled_as_one_that_is_allowed(tmp_path):
    async with api_server() as cluster, agent_port(tmp_path, InProcess(cluster)) as (url, made):
        connector = aiohttp.TCPConnector(ssl=tls_of(tmp_path, made.client_pair("monitor", [], NOW)))
        async with aiohttp.ClientSession(connector=connector) as session:
            for path in (
                "/metrics%2F..%2Fexec/default/p/c",
                "/metrics/..%2Fexec/default/p/c?command=id",
                "/%65xec/default/p/c?command=id",
                "//exec/default/p/c",
            ):
                async with session.get(URL(url + path, encoded=True)) as answer:
                    text = await answer.text()
                    # Handled as a path of its own (there is none), or refused; never the command.
                    assert answer.status in (403, 404), (path, answer.status, text)
                    assert "pod" not in text, (path, text)


async def test_without_a_client_ca_certificates_count_for_nothing_and_tokens_still_do(tmp_path):
    async with (
        api_server() as cluster,
        agent_port(tmp_path, InProcess(cluster), with_ca=False) as (url, made),
    ):
        pair = made.client_pair("kubernetes-admin", ["system:masters"], NOW)
        connector = aiohttp.TCPConnector(ssl=tls_of(tmp_path, pair))
        async with aiohttp.ClientSession(connector=connector) as session:
            for method, path in CALLS:
                async with session.request(method, url + path) as answer:
                    assert answer.status == 401, (method, path)
            async with session.get(url + "/pods", headers={"Authorization": "Bearer admin"}) as answer:
                assert answer.status == 200


async def test_a_certificate_of_another_ca_is_refused(tmp_path):
    other = pki.prepare(tmp_path / "other", ["127.0.0.1"], NOW)
    async with api_server() as cluster, agent_port(tmp_path, InProcess(cluster)) as (url, _):
        pair = other.client_pair("kubernetes-admin", ["system:masters"], NOW)
        connector = aiohttp.TCPConnector(ssl=tls_of(tmp_path, pair))
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises((aiohttp.ClientError, OSError)):
                async with session.get(url + "/pods") as answer:
                    await answer.read()


# --- caching, and an API server that is away ------------------------------------------------------


class Reviews:
    """An API server that answers reviews, and can go away."""

    def __init__(self):
        self.asked = []
        self.allowed = {"ann"}
        self.is_away = False

    async def send(self, request):
        if self.is_away:
            raise TransportError("the server is away")
        body = json.loads(request.body)
        self.asked.append(body["kind"])
        if body["kind"] == "TokenReview":
            token = body["spec"]["token"]
            status = {"authenticated": token.startswith("good-"), "user": {"username": token[5:]}}
        else:
            status = {"allowed": body["spec"]["user"] in self.allowed}
        return Response(201, {}, json.dumps({**body, "status": status}).encode())

    async def close(self):
        pass


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


async def outcome(access, name="ann", path="/exec/a/b/c", authorization=""):
    certificate = {"subject": ((("commonName", name),),)} if name else None
    try:
        await access.check("GET", path, certificate, authorization)
    except AccessError as refusal:
        return refusal.status, str(refusal)
    return 200, ""


async def test_answers_are_kept_for_kubelets_times():
    api, clock = Reviews(), Clock()
    access = Access(Client(api), NODE, clock)
    for _ in range(3):
        assert (await outcome(access, "ann"))[0] == 200
        assert (await outcome(access, "bob"))[0] == 403
    assert len(api.asked) == 2
    clock.now = DENIED_SECONDS + 1
    api.allowed = {"bob"}
    assert (await outcome(access, "bob"))[0] == 200
    assert (await outcome(access, "ann"))[0] == 200  # still from the cache
    assert len(api.asked) == 3
    clock.now = ALLOWED_SECONDS + 1
    assert (await outcome(access, "ann"))[0] == 403


async def test_a_token_is_reviewed_once_for_two_minutes():
    api, clock = Reviews(), Clock()
    access = Access(Client(api), NODE, clock)
    for _ in range(3):
        assert (await outcome(access, "", authorization="Bearer good-ann"))[0] == 200
        assert (await outcome(access, "", authorization="Bearer bad"))[0] == 401
    assert api.asked.count("TokenReview") == 2
    clock.now = TOKEN_SECONDS + 1
    await outcome(access, "", authorization="Bearer good-ann")
    assert api.asked.count("TokenReview") == 3


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "bearer" + "x" * 20])
async def test_what_is_no_bearer_token_asks_nobody(authorization):
    api = Reviews()
    assert (await outcome(Access(Client(api), NODE), "", authorization=authorization))[0] == 401
    assert api.asked == []


async def test_when_the_api_server_is_away_only_known_callers_are_let_in(caplog):
    api = Reviews()
    access = Access(Client(api), NODE)
    assert (await outcome(access, "ann"))[0] == 200
    api.is_away = True
    assert (await outcome(access, "ann"))[0] == 200
    text = "Authorization error (user=bob, verb=get, resource=nodes, subresource=proxy)"
    assert await outcome(access, "bob") == (500, text)
    assert (await outcome(access, "", authorization="Bearer good-ann"))[0] == 401
    assert "the server is away" in caplog.text
    api.is_away = False
    # What could not be asked was not kept.
    assert (await outcome(access, "bob"))[0] == 403
    assert (await outcome(access, "", authorization="Bearer good-ann"))[0] == 200


async def test_an_api_server_without_reviews_allows_nobody():
    assert (await outcome(Access(SmallApi().client(), NODE)))[0] in (403, 500)


def test_a_cache_is_bounded_and_forgets_what_was_used_least_recently():
    clock = Clock()
    cache = ExpiringCache(2, clock)
    for key in "ab":
        cache.put(key, key, 10.0)
    assert cache.get("a") == "a"
    cache.put("c", "c", 10.0)
    assert (cache.get("a"), cache.get("b"), len(cache)) == ("a", None, 2)
    clock.now = 10.0
    assert (cache.get("a"), len(cache)) == (None, 1)


async def test_many_identities_do_not_grow_the_cache():
    access = Access(Client(Reviews()), NODE)
    for number in range(3000):
        await outcome(access, f"user-{number}")
    await outcome(access, "x" * 20_000)
    assert len(access._decisions) <= 1024
    assert all(key[0].n_characters < 10_000 for key in access._decisions._entries)
