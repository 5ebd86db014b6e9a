"""The audit log: what a policy chooses, what an event says, what a file keeps."""

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest
from conditions import until
from server_cluster import CLAIMS, MERGE, claim, running_cluster

from dray.server.audit import DEFAULT_POLICY, AuditFile, PolicyError, audit_file, audit_log, parse_policy
from dray.server.audit.audit_policy import LEVEL_NAMES, RequestFacts
from dray.server.requests.users import User

ANN = User("ann", groups=("dev", "system:authenticated"))
HEAD = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
EVERYTHING = f"{HEAD}rules:\n- level: RequestResponse\n"
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "s"},
    "stringData": {"password": "hunter2"},
}
SECRETS = "/api/v1/namespaces/default/secrets"


class Lines(list):
    """Takes the place of the file."""

    n_written = 0
    n_lost = 0

    def add(self, line):
        self.append(json.loads(line))
        self.n_written += 1

    async def run(self):
        await asyncio.Event().wait()

    def close(self):
        pass


def recorded(policy=EVERYTHING, **settings):
    lines = Lines()
    return lines, running_cluster(audit_file=lines, audit_policy=parse_policy(policy), **settings)


# --- policies ---------------------------------------------------------------------


def judged(rules, **asked):
    policy = parse_policy(HEAD + "rules:\n" + rules)
    found = {"user": ANN, "verb": "get", "is_resource": True, "group": "", "resource": "pods", **asked}
    return LEVEL_NAMES[policy.judge(RequestFacts(**found)).level]


@pytest.mark.parametrize(
    ("rules", "asked", "level"),
    [
        ("- level: Metadata", {}, "Metadata"),
        ("- {level: Request, users: [bob]}", {}, "None"),
        ("- {level: Request, users: [bob]}\n- level: Metadata", {}, "Metadata"),
        ("- {level: Request, userGroups: [dev]}", {}, "Request"),
        ("- {level: Request, verbs: [list]}", {}, "None"),
        ("- {level: Request, namespaces: [a]}", {"namespace": "a"}, "Request"),
        ("- {level: Request, namespaces: [a]}", {"namespace": "b"}, "None"),
        ('- {level: Request, namespaces: [""]}', {"resource": "nodes"}, "Request"),
        ("- {level: Request, namespaces: [a]}", {"is_resource": False, "path": "/version"}, "None"),
        ('- {level: Request, resources: [{group: ""}]}', {}, "Request"),
        ("- {level: Request, resources: [{group: apps}]}", {}, "None"),
        ('- {level: Request, resources: [{group: "", resources: [pods]}]}', {"subresource": "log"}, "None"),
        ('- {level: Request, resources: [{group: "", resources: [pods/log]}]}', {"subresource": "log"}, "Request"),
        ('- {level: Request, resources: [{group: "", resources: ["pods/*"]}]}', {"subresource": "log"}, "Request"),
        ('- {level: Request, resources: [{group: "", resources: ["*/log"]}]}', {"subresource": "log"}, "Request"),
        ('- {level: Request, resources: [{group: "", resources: ["*"]}]}', {"subresource": "log"}, "Request"),
        ('- {level: Request, resources: [{group: "", resources: [pods], resourceNames: [a]}]}', {"name": "a"}, "Request"),
        ('- {level: Request, resources: [{group: "", resources: [pods], resourceNames: [a]}]}', {"name": "b"}, "None"),
        ("- {level: Request, nonResourceURLs: [/healthz*]}", {"is_resource": False, "path": "/healthz/ping"}, "Request"),
        ("- {level: Request, nonResourceURLs: [/healthz]}", {"is_resource": False, "path": "/healthz/ping"}, "None"),
        ('- {level: Request, nonResourceURLs: ["*"]}', {}, "None"),
    ],
)  # fmt: skip
def test_the_first_rule_that_matches_decides(rules, asked, level):
    assert judged(rules, **asked) == level


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line"),
        ("[]", "kind Policy"),
        ("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]", "audit.k8s.io/v1 "),
        (HEAD, "rules"),
        (f"{HEAD}rules: [{{level: All}}]", "rules[0].level: 'All' is not one of None, Metadata, Request"),
        (f"{HEAD}rules: [{{level: None, user: [a]}}]", "unknown field 'user'"),
        (f"{HEAD}rules: [{{level: None, users: a}}]", "rules[0].users: expected a list of texts"),
        (f"{HEAD}rules: [{{level: None, omitStages: [End]}}]", "'End' is not one of RequestReceived"),
        (f"{HEAD}rules: [{{level: None, nonResourceURLs: [healthz]}}]", "must begin with /"),
        (f"{HEAD}rules: [{{level: None, nonResourceURLs: [/a], namespaces: [b]}}]", "not about both"),
        (f"{HEAD}rules: [{{level: None, resources: [{{group: apps/v1}}]}}]", "without its version"),
        (f"{HEAD}rules: [{{level: None, resources: [{{resourceNames: [a]}}]}}]", "needs resources"),
        (f"{HEAD}rules: [{{level: None, omitManagedFields: 3}}]", "expected true or false"),
        ("[" * 5000, "depth"),
    ],
)
def test_a_bad_policy_is_refused_with_its_place(text, message):
    with pytest.raises(PolicyError) as problem:
        parse_policy(text)
    assert message in str(problem.value)


def test_the_default_records_writes_commands_and_secrets_but_no_heartbeats():
    policy = parse_policy(DEFAULT_POLICY)

    def level(verb, group, resource, subresource=""):
        return LEVEL_NAMES[
            policy.judge(RequestFacts(ANN, verb, True, "", group, resource, subresource)).level
        ]

    assert level("create", "", "pods") == "Metadata"
    assert level("get", "", "pods") == "None"
    assert level("get", "", "pods", "exec") == "Metadata"
    assert level("list", "", "secrets") == "Metadata"
    assert level("update", "coordination.k8s.io", "leases") == "None"
    assert level("patch", "", "nodes", "status") == "None"


def test_the_documentation_shows_the_default_policy():
    text = (Path(__file__).parents[3] / "docs/server.md").read_text()
    assert f"```text\n{DEFAULT_POLICY}```" in text


# --- events -----------------------------------------------------------------------


async def test_an_event_says_who_did_what_to_which_object():
    lines, cluster = recorded(f"{HEAD}rules:\n- level: Metadata\n")
    async with cluster as client:
        created = await client.call("POST", CLAIMS, {**claim(), "metadata": {"generateName": "c-"}})
        refused = await client.call("GET", f"{CLAIMS}?limit=3", token="guest")
        unknown = await client.call("GET", CLAIMS, token="stranger")
    assert (created.code, refused.code, unknown.code) == (201, 403, 401)
    create, get, nobody = lines
    name, uid = created.json["metadata"]["name"], created.json["metadata"]["uid"]
    assert create["objectRef"] == {
        "resource": "resourceclaims",
        "namespace": "default",
        "name": name,
        "uid": uid,
        "resourceVersion": created.json["metadata"]["resourceVersion"],
        "apiGroup": "resource.k8s.io",
        "apiVersion": "v1",
    }
    assert create["user"] == {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
    assert (create["kind"], create["apiVersion"], create["level"]) == ("Event", "audit.k8s.io/v1", "Metadata")
    assert (create["stage"], create["verb"], create["userAgent"]) == (
        "ResponseComplete",
        "create",
        "tester/1",
    )
    assert create["responseStatus"] == {"metadata": {}, "code": 201}
    assert create["annotations"] == {"authorization.k8s.io/decision": "allow"}
    assert "requestObject" not in create and "responseObject" not in create
    assert get["requestURI"].endswith("/resourceclaims?limit=3")
    assert get["verb"] == "list"
    assert (get["responseStatus"]["code"], get["responseStatus"]["reason"]) == (403, "Forbidden")
    assert get["annotations"] == {"authorization.k8s.io/decision": "forbid"}
    assert (nobody["responseStatus"]["code"], nobody["user"]) == (401, {"username": ""})


async def test_bodies_are_recorded_from_their_levels_on():
    lines, cluster = recorded(
        f"{HEAD}omitManagedFields: true\nrules:\n- {{level: Request, verbs: [create]}}\n- level: RequestResponse\n"
    )
    async with cluster as client:
        await client.call("POST", CLAIMS, claim("a"))
        await client.call("PATCH", f"{CLAIMS}/a", {"metadata": {"labels": {"x": "y"}}}, content=MERGE)
    create, patch = lines
    assert create["requestObject"]["spec"] == claim("a")["spec"]
    assert "responseObject" not in create
    assert patch["requestObject"] == {"metadata": {"labels": {"x": "y"}}}
    assert patch["responseObject"]["metadata"]["labels"] == {"x": "y"}
    assert "managedFields" not in patch["responseObject"]["metadata"]


async def test_secrets_are_never_written_whatever_the_policy_says():
    lines, cluster = recorded()
    async with cluster as client:
        assert (await client.call("POST", SECRETS, SECRET)).code == 201
        assert "hunter2" in json.dumps(SECRET)
        await client.call("GET", f"{SECRETS}/s")
        await client.call("GET", SECRETS)
        await client.call("PATCH", f"{SECRETS}/s", {"stringData": {"password": "hunter3"}}, content=MERGE)
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": "hunter4"},
        }
        await client.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    text = json.dumps(lines)
    assert len(lines) == 5
    assert "hunter" not in text
    assert "aHVudGVy" not in text  # base64 of the same
    assert lines[0]["annotations"]["dray.dev/omitted"] == "requestObject,responseObject"


async def test_large_bodies_are_left_out_and_that_is_said(monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_OBJECT", 400)
    lines, cluster = recorded()
    async with cluster as client:
        assert (await client.call("POST", CLAIMS, claim("a"))).code == 201
    assert lines[0]["requestObject"]["kind"] == "ResourceClaim"
    assert lines[0]["annotations"]["dray.dev/omitted"] == "responseObject"  # with its metadata it is larger


async def test_a_watch_is_recorded_when_it_begins_and_when_it_ends():
    lines, cluster = recorded()
    async with cluster as client:
        await client.watch(f"{CLAIMS}?watch=true&timeoutSeconds=1", events=1, seconds=0.05)
    assert [(line["verb"], line["stage"]) for line in lines] == [
        ("watch", "ResponseStarted"),
        ("watch", "ResponseComplete"),
    ]
    assert lines[0]["auditID"] == lines[1]["auditID"]


async def test_stages_can_be_left_out():
    lines, cluster = recorded(f"{HEAD}rules: [{{level: Metadata, omitStages: [ResponseStarted]}}]")
    async with cluster as client:
        await client.watch(f"{CLAIMS}?watch=true", events=1, seconds=0.05)
    assert [line["stage"] for line in lines] == ["ResponseComplete"]


async def test_a_failure_of_the_server_is_a_panic():
    lines, cluster = recorded()
    async with cluster as client:

        async def broken(call):
            raise ZeroDivisionError

        client.cluster.server.verbs["list"] = broken
        with pytest.raises(ZeroDivisionError):
            await client.call("GET", CLAIMS)
    assert (lines[0]["stage"], lines[0]["responseStatus"]["code"]) == ("Panic", 500)


async def test_the_metrics_count_events():
    _, cluster = recorded()
    async with cluster as client:
        await client.call("GET", CLAIMS)
        text = (await client.call("GET", "/metrics")).body.decode()
    assert "apiserver_audit_event_total 1\n" in text
    assert 'apiserver_audit_error_total{plugin="log"} 0\n' in text


# --- the file ---------------------------------------------------------------------


def test_a_file_is_private_and_bounded_and_nothing_is_lost_before_its_turn(tmp_path):
    path = tmp_path / "audit.log"
    file = AuditFile(path, max_bytes=100, backups=2)
    lines = [b"%02d%s\n" % (number, b"x" * 27) for number in range(14)]  # 30 bytes each, three in a file
    for line in lines:
        file.add(line)
    file.close()
    file.close()
    found = sorted(entry.name for entry in tmp_path.iterdir())
    assert found == ["audit.log", "audit.log.1", "audit.log.2"]
    assert path.stat().st_mode & 0o777 == 0o600
    kept = b"".join((tmp_path / name).read_bytes() for name in reversed(found))
    assert kept == b"".join(lines[6:])
    assert (file.n_written, file.n_lost) == (14, 0)


def test_a_line_longer_than_a_file_gets_one_of_its_own(tmp_path):
    file = AuditFile(tmp_path / "audit.log", max_bytes=10, backups=1)
    for line in (b"short\n", b"x" * 50 + b"\n"):
        file.add(line)
    file.close()
    assert (tmp_path / "audit.log").read_bytes() == b"x" * 50 + b"\n"
    assert (tmp_path / "audit.log.1").read_bytes() == b"short\n"


def test_an_existing_file_is_continued(tmp_path):
    for text in (b"one\n", b"two\n"):
        file = AuditFile(tmp_path / "audit.log", max_bytes=100, backups=1)
        file.add(text)
        file.close()
    assert (tmp_path / "audit.log").read_bytes() == b"one\ntwo\n"


def test_lines_that_the_disk_does_not_take_are_counted_and_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(audit_file, "MAX_PENDING", 20)
    file = AuditFile(tmp_path / "audit.log", max_bytes=100, backups=1)
    with caplog.at_level(logging.WARNING, "dray.server"):
        for _ in range(5):
            file.add(b"123456789\n")
        assert file.n_lost == 3
        assert len(caplog.records) == 1
        file.close()
    assert "3 events were lost" in caplog.text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
async def test_a_full_disk_does_not_stop_the_server(tmp_path, caplog):
    file = AuditFile(tmp_path / "audit.log", max_bytes=100, backups=1)
    file._file.close()
    file._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  # closed by the file
    task = asyncio.create_task(file.run())
    file.add(b"lost\n")
    await until(lambda: file.n_lost, 10)
    file.add(b"kept\n")  # there is room again
    await until(lambda: file.n_written, 10)
    task.cancel()
    file.close()
    assert (tmp_path / "audit.log").read_bytes() == b"kept\n"
    assert "are lost: [Errno 28]" in caplog.text
