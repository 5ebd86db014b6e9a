"""Who a request is from: certificates, static tokens, service account tokens, nobody."""

from datetime import UTC, datetime, timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from dray.server.auth import pki
from dray.server.auth.authentication import (
    ANONYMOUS,
    Authenticator,
    TokenFileError,
    bearer_token,
    parse_token_file,
)
from dray.server.auth.service_account_tokens import DEFAULT_ISSUER, TokenIssuer, TokenRefused, TokenVerifier
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
KEY = ec.generate_private_key(ec.SECP256R1())


class Objects:
    """A reader on a plain dictionary."""

    def __init__(self):
        self.by_key = {}

    def add(self, resource, namespace, name, uid, **rest):
        metadata = {"name": name, "uid": uid} | ({"namespace": namespace} if namespace else {})
        self.by_key["", resource, namespace, name] = {"metadata": metadata | rest.pop("metadata", {}), **rest}

    def get(self, group, resource, namespace, name):
        return self.by_key.get((group, resource, namespace, name))

    def list(self, group, resource, namespace=None):
        return [o for (g, r, n, _), o in self.by_key.items() if (g, r) == (group, resource)]


@pytest.fixture
def objects():
    made = Objects()
    made.add("serviceaccounts", "drivers", "gpu", "sa-1")
    made.add("nodes", "", "n1", "node-1")
    made.add("pods", "drivers", "p1", "pod-1", spec={"serviceAccountName": "gpu", "nodeName": "n1"})
    made.add("secrets", "drivers", "s1", "secret-1")
    return made


@pytest.fixture
def issuer(objects):
    return TokenIssuer(KEY, objects)


@pytest.fixture
def verifier(objects):
    return TokenVerifier([KEY.public_key()], objects)


def token_for(issuer, **spec):
    return issuer.request("drivers", "gpu", {"spec": spec}, NOW)["status"]["token"]


def request(**headers):
    return Request("GET", "/", headers=headers)


def refused(call, *arguments):
    with pytest.raises(ApiError) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer x", "x"),
        ("bearer x", "x"),
        ("  Bearer x  ", "x"),
        ("Bearer  x", ""),
        ("Bearer", ""),
        ("Basic eDp5", ""),
        ("x", ""),
        ("", ""),
        ("Bearer a b", "a"),
    ],
)
def test_only_a_well_formed_bearer_header_carries_a_token(header, token):
    assert bearer_token(header) == token


def test_no_token_is_anonymous_and_a_wrong_one_is_401():
    authenticator = Authenticator(lambda: NOW, parse_token_file("good,ann,1"))
    assert authenticator.authenticate(request()) == ANONYMOUS
    assert authenticator.authenticate(request(authorization="Basic abc")) == ANONYMOUS
    error = refused(authenticator.authenticate, request(authorization="Bearer bad"))
    assert (error.code, error.reason) == (401, "Unauthorized")
    assert authenticator.authenticate(request(authorization="Bearer good")).groups == (
        "system:authenticated",
    )


def test_a_token_of_arbitrary_bytes_is_401_not_500():
    authenticator = Authenticator(lambda: NOW, parse_token_file("good,ann,1"))
    assert refused(authenticator.authenticate, request(authorization="Bearer \udcff\udc80")).code == 401


def test_without_anonymous_a_request_needs_credentials():
    assert refused(Authenticator(lambda: NOW, anonymous=False).authenticate, request()).code == 401


def test_the_token_file_knows_groups_comments_and_blank_lines():
    users = parse_token_file('# comment\n\na,ann,1,"dev,ops"\nb,bob,2\n')
    assert users["a"].groups == ("dev", "ops")
    assert users["b"].uid == "2"
    with pytest.raises(TokenFileError, match="line 1 has 2 columns"):
        parse_token_file("a,ann")
    with pytest.raises(TokenFileError, match="may be empty"):
        parse_token_file(",ann,1")


def test_a_client_certificate_names_the_user_until_it_expires(tmp_path):
    clock = [NOW]
    authenticator = Authenticator(lambda: clock[0])
    pair = pki.prepare(tmp_path, [], NOW).client_pair("system:node:n1", ["system:nodes"], NOW)
    asked = Request("GET", "/", client_certificate=pair.certificate.public_bytes(Encoding.DER))
    user = authenticator.authenticate(asked)
    assert (user.name, user.groups) == ("system:node:n1", ("system:nodes", "system:authenticated"))
    assert user.extra["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")
    clock[0] = NOW + timedelta(days=400)
    assert refused(authenticator.authenticate, asked).code == 401


def test_a_service_account_token_round_trips(issuer, verifier):
    authenticator = Authenticator(lambda: NOW, service_accounts=verifier)
    user = authenticator.authenticate(request(authorization=f"Bearer {token_for(issuer)}"))
    assert user.name == "system:serviceaccount:drivers:gpu"
    assert user.uid == "sa-1"
    assert set(user.groups) == {
        "system:serviceaccounts",
        "system:serviceaccounts:drivers",
        "system:authenticated",
    }


def test_a_pod_bound_token_tells_pod_and_node(issuer, verifier):
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p1", "uid": "pod-1"}
    user, audiences = verifier.verify(token_for(issuer, boundObjectRef=reference), (), NOW)
    prefix = "authentication.kubernetes.io/"
    assert audiences == (DEFAULT_ISSUER,)
    assert user.extra[prefix + "pod-name"] == ("p1",)
    assert user.extra[prefix + "node-name"] == ("n1",)
    assert user.extra[prefix + "node-uid"] == ("node-1",)


@pytest.mark.parametrize(
    ("kind", "resource", "namespace", "name"),
    [("Pod", "pods", "drivers", "p1"), ("Node", "nodes", "", "n1"), ("Secret", "secrets", "drivers", "s1")],
)
def test_a_bound_token_dies_with_its_object(objects, issuer, verifier, kind, resource, namespace, name):
    token = token_for(issuer, boundObjectRef={"kind": kind, "apiVersion": "v1", "name": name})
    verifier.verify(token, (), NOW)
    objects.by_key["", resource, namespace, name]["metadata"]["uid"] = "another"
    with pytest.raises(TokenRefused, match="UID"):
        verifier.verify(token, (), NOW)
    del objects.by_key["", resource, namespace, name]
    with pytest.raises(TokenRefused, match="invalidated"):
        verifier.verify(token, (), NOW)


def test_a_token_dies_with_its_account(objects, issuer, verifier):
    token = token_for(issuer)
    objects.by_key["", "serviceaccounts", "drivers", "gpu"]["metadata"]["deletionTimestamp"] = (
        "2026-11-16T11:00:00Z"
    )
    with pytest.raises(TokenRefused, match="has been deleted"):
        verifier.verify(token, (), NOW)
    objects.by_key["", "serviceaccounts", "drivers", "gpu"]["metadata"]["uid"] = "recreated"
    with pytest.raises(TokenRefused, match="does not match claim"):
        verifier.verify(token, (), NOW)
    del objects.by_key["", "serviceaccounts", "drivers", "gpu"]
    with pytest.raises(TokenRefused, match="not found"):
        verifier.verify(token, (), NOW)


def test_expired_early_and_misaddressed_tokens_are_refused(issuer, verifier):
    token = token_for(issuer, expirationSeconds=600, audiences=["vault"])
    with pytest.raises(TokenRefused, match="audiences"):
        verifier.verify(token, (), NOW)
    assert verifier.verify(token, ("vault", "other"), NOW)[1] == ("vault",)
    with pytest.raises(TokenRefused, match="expired"):
        verifier.verify(token, ("vault",), NOW + timedelta(seconds=700))
    with pytest.raises(TokenRefused, match="not valid yet"):
        verifier.verify(token, ("vault",), NOW - timedelta(seconds=90))


def test_forged_tokens_are_refused(issuer, verifier, objects):
    good = token_for(issuer)
    foreign = token_for(TokenIssuer(ec.generate_private_key(ec.SECP256R1()), objects))
    unsigned = jwt.encode({"iss": DEFAULT_ISSUER, "aud": [DEFAULT_ISSUER]}, "", algorithm="none")
    other_issuer = token_for(TokenIssuer(KEY, objects, issuer="https://elsewhere"))
    head, body, signature = good.split(".")
    for forged in (
        foreign,
        unsigned,
        other_issuer,
        f"{head}.{body}.AAAA{signature[4:]}",
        "a.b.c",
        "x",
        good[:-1] + "\x00",
    ):
        with pytest.raises(TokenRefused, match="invalid bearer token"):
            verifier.verify(forged, (), NOW)


def test_token_requests_are_checked(issuer, objects):
    def ask(name="gpu", metadata=None, **spec):
        return refused(issuer.request, "drivers", name, {"metadata": metadata or {}, "spec": spec}, NOW)

    assert ask("nobody").code == 404
    assert ask(expirationSeconds=60).details["causes"][0]["field"] == "spec.expirationSeconds"
    assert ask(expirationSeconds=1 << 33).code == 422
    assert ask(metadata={"name": "other"}).code == 422
    assert ask(metadata={"uid": "other"}).code == 409
    pod = {"kind": "Pod", "apiVersion": "v1", "name": "p1"}
    assert ask(boundObjectRef=pod | {"uid": "old"}).code == 409
    assert ask(boundObjectRef=pod | {"name": "gone"}).code == 404
    assert ask(boundObjectRef=pod | {"kind": "Lease"}).code == 400
    objects.add("serviceaccounts", "drivers", "second", "sa-2")
    assert "different serviceaccount name" in ask("second", boundObjectRef=pod).message
