"""Admission webhooks: real HTTPS servers on the loopback interface, asked by a server in memory."""

import asyncio
import base64
import contextlib
import json
import ssl
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from server_cluster import MERGE, running_cluster
from test_server_heartbeat import Heartbeat

from dray.certificates import make_self_signed_certificate
from dray.server.admission import ANSWER_BYTES, webhook_calls

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"


@contextlib.asynccontextmanager
async def webhook(folder, answer):
    """An HTTPS server that answers reviews; yields its clientConfig and the requests it saw."""
    pair = make_self_signed_certificate("webhook", ["127.0.0.1"], datetime.now(UTC))
    (folder / "hook.pem").write_bytes(pair.certificate_pem + pair.key_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "hook.pem")
    seen: list[dict[str, Any]] = []

    async def handle(request):
        review = json.loads(await request.read())
        seen.append(review["request"])
        found = answer(review["request"])
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, web.StreamResponse):
            return found
        response = {"uid": review["request"]["uid"], "allowed": True, **found}
        return web.json_response({**review, "request": None, "response": response})

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    bundle = base64.b64encode(pair.certificate_pem).decode()
    try:
        yield {"url": f"https://127.0.0.1:{runner.addresses[0][1]}/", "caBundle": bundle}, seen
    finally:
        await runner.cleanup()


def configuration(
    config: dict[str, Any], name: str = "one", resources: tuple[str, ...] = ("configmaps",), **hook: Any
) -> dict[str, Any]:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": list(resources)}
    written = {
        "name": f"{name}.hooks.test",
        "clientConfig": config,
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **hook,
    }
    return {"metadata": {"name": name}, "webhooks": [written]}


def config_map(name: str = "m", **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


async def configure(client, *written, mutating=False):
    kind = "mutatingwebhookconfigurations" if mutating else "validatingwebhookconfigurations"
    for each in written:
        made = await client.call("POST", f"{GROUP}/{kind}", each)
        assert made.code == 201, made.json["message"]


async def test_a_validating_webhook_refuses_in_its_own_words(tmp_path):
    def answer(request):
        return {
            "allowed": False,
            "status": {"code": 418, "message": "no maps today"},
            "warnings": ["careful"],
        }

    async with webhook(tmp_path, answer) as (config, seen), running_cluster() as client:
        await configure(client, configuration(config))
        refused = await client.call("POST", MAPS, config_map(a="1"))
        assert refused.code == 418
        assert (
            refused.json["message"] == 'admission webhook "one.hooks.test" denied the request: no maps today'
        )
        assert any("careful" in warning for warning in refused.warnings)
        (request,) = seen
        assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
        assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        assert (request["operation"], request["name"], request["namespace"]) == ("CREATE", "m", "default")
        assert request["userInfo"]["username"] == "admin"
        assert request["object"]["data"] == {"a": "1"}
        assert request["oldObject"] is None
        assert (await client.call("GET", f"{MAPS}/m")).code == 404


async def test_updates_and_deletions_show_the_old_object(tmp_path):
    async with webhook(tmp_path, lambda request: {}) as (config, seen), running_cluster() as client:
        assert (await client.call("POST", MAPS, config_map(a="1"))).code == 201
        await configure(client, configuration(config))
        assert (await client.call("PATCH", f"{MAPS}/m", {"data": {"a": "2"}}, content=MERGE)).code == 200
        assert (await client.call("DELETE", f"{MAPS}/m")).code == 200
        update, deletion = seen
        assert (update["operation"], update["oldObject"]["data"], update["object"]["data"]) == (
            "UPDATE",
            {"a": "1"},
            {"a": "2"},
        )
        assert (deletion["operation"], deletion["object"], deletion["oldObject"]["data"]) == (
            "DELETE",
            None,
            {"a": "2"},
        )


async def test_a_mutating_webhook_changes_the_object(tmp_path):
    def answer(request):
        return patch(
            {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}},
            {"op": "add", "path": "/unknown", "value": 1},
        )

    async with webhook(tmp_path, answer) as (config, _), running_cluster() as client:
        await configure(client, configuration(config), mutating=True)
        made = await client.call("POST", MAPS, config_map(a="1"))
        assert made.code == 201, made.json
        assert made.json["metadata"]["labels"] == {"seen": "yes"}
        assert "unknown" not in made.json


async def test_what_one_webhook_changes_the_next_one_sees_and_the_first_may_look_again(tmp_path):
    def answer(request):
        labels = request["object"]["metadata"].get("labels") or {}
        if request["object"]["data"].get("round"):
            return {}
        if "first" not in labels:
            return patch({"op": "add", "path": "/metadata/labels", "value": {"first": "yes"}})
        return patch({"op": "add", "path": "/data/round", "value": str(len(labels))})

    async with webhook(tmp_path, answer) as (config, seen), running_cluster() as client:
        await configure(
            client,
            configuration(config, "a", reinvocationPolicy="IfNeeded"),
            configuration(config, "b"),
            mutating=True,
        )
        made = await client.call("POST", MAPS, config_map(a="1"))
        assert made.json["data"]["round"] == "1"
        # a labels, b writes data, a is asked again because b changed something after it.
        assert [request["object"]["data"].get("round") for request in seen] == [None, None, "1"]


async def test_objects_are_shown_in_the_version_that_a_webhook_names(tmp_path):
    def answer(request):
        return patch({"op": "replace", "path": "/spec/extendedResourceName", "value": "example.com/b"})

    async with webhook(tmp_path, answer) as (config, seen), running_cluster() as client:
        rule = {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["v1beta2"],
            "operations": ["CREATE"],
            "resources": ["deviceclasses"],
        }
        await configure(client, configuration(config, rules=[rule]), mutating=True)
        made = await client.call(
            "POST",
            "/apis/resource.k8s.io/v1/deviceclasses",
            {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/a"}},
        )
        assert made.json["spec"]["extendedResourceName"] == "example.com/b"
        assert seen[0]["object"]["apiVersion"] == "resource.k8s.io/v1beta2"
        assert seen[0]["requestResource"]["version"] == "v1"
        assert seen[0]["resource"]["version"] == "v1beta2"


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
async def test_the_failure_policy_decides_when_a_webhook_cannot_be_asked(policy, code):
    async with running_cluster() as client:
        await configure(client, configuration({"url": "https://127.0.0.1:1/x"}, failurePolicy=policy))
        answer = await client.call("POST", MAPS, config_map())
        assert answer.code == code
        if code == 500:
            assert (
                'failed calling webhook "one.hooks.test": failed to call webhook: Post "https://127.0.0.1:1/x?timeout=10s"'
                in answer.json["message"]
            )


async def test_a_service_is_not_found(tmp_path):
    async with running_cluster() as client:
        config = {"service": {"namespace": "n", "name": "s", "path": "/x"}}
        await configure(client, configuration(config))
        answer = await client.call("POST", MAPS, config_map())
        assert (answer.code, 'service "s" not found' in answer.json["message"]) == (500, True)


NONSENSE = [
    (lambda request: {"uid": "other"}, "expected response.uid="),
    (lambda request: web.Response(text="nonsense"), "failed to call webhook"),
    (lambda request: web.Response(text="[]"), "webhook response was absent"),
    (lambda request: web.Response(text="[" * 100_000), "failed to call webhook"),
    (lambda request: web.Response(status=503), "status 503"),
    (lambda request: web.Response(status=302, headers={"Location": "/y"}), "redirect"),
    (lambda request: web.Response(body=b" " * (ANSWER_BYTES + 1)), "more than"),
    (lambda request: {"patch": "!!"}, "response.patch but not response.patchType"),
    (lambda request: {"patchType": "JSONPatch"}, "response.patchType but not response.patch"),
    (lambda request: {"patch": "!!", "patchType": "JSONPatch"}, "received undecodable patch"),
    (lambda request: {"patch": "e30=", "patchType": "Merge"}, "unsupported patch type"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "complaint"), NONSENSE)
async def test_an_answer_that_makes_no_sense_is_a_failed_call(tmp_path, answer, complaint):
    async with webhook(tmp_path, answer) as (config, _), running_cluster() as client:
        await configure(client, configuration(config), mutating=True)
        refused = await client.call("POST", MAPS, config_map())
        assert refused.code == 500
        assert complaint in refused.json["message"]


async def test_a_webhook_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_calls, "DEFAULT_SECONDS", 1)

    async def answer(request):
        await asyncio.Event().wait()

    async with webhook(tmp_path, answer) as (config, _), running_cluster() as client:
        await configure(client, configuration(config, timeoutSeconds=1))
        refused = await client.call("POST", MAPS, config_map())
        assert (refused.code, "context deadline exceeded" in refused.json["message"]) == (500, True)


async def test_a_certificate_of_somebody_else_is_refused(tmp_path):
    async with webhook(tmp_path, lambda request: {}) as (config, seen), running_cluster() as client:
        other = make_self_signed_certificate("other", ["127.0.0.1"], datetime.now(UTC))
        config["caBundle"] = base64.b64encode(other.certificate_pem).decode()
        await configure(client, configuration(config))
        assert (await client.call("POST", MAPS, config_map())).code == 500
        assert seen == []


@pytest.mark.parametrize("address", ["169.254.169.254", "0.0.0.0", "[fe80::1]"])
async def test_addresses_that_no_webhook_has_are_not_called(address):
    async with running_cluster() as client:
        await configure(client, configuration({"url": f"https://{address}/"}))
        refused = await client.call("POST", MAPS, config_map())
        assert (refused.code, "not allowed" in refused.json["message"]) == (500, True)


async def test_selectors_and_conditions_decide_whom_a_webhook_concerns(tmp_path):
    async with (
        webhook(tmp_path, lambda request: {"allowed": False}) as (config, seen),
        running_cluster() as client,
    ):
        conditions = [{"name": "big", "expression": "size(object.data) > 1"}]
        await configure(
            client,
            configuration(config, "a", objectSelector={"matchLabels": {"a": "b"}}),
            configuration(config, "b", namespaceSelector={"matchLabels": {"a": "b"}}),
            configuration(config, "c", matchConditions=conditions),
        )
        assert (await client.call("POST", MAPS, config_map(a="1"))).code == 201
        assert seen == []
        refused = await client.call("POST", MAPS, config_map("n", a="1", b="2"))
        assert (
            refused.json["message"]
            == 'admission webhook "c.hooks.test" denied the request without explanation'
        )


async def test_a_dry_run_is_told_to_webhooks_without_side_effects(tmp_path):
    async with webhook(tmp_path, lambda request: {}) as (config, seen), running_cluster() as client:
        await configure(client, configuration(config, sideEffects="NoneOnDryRun"))
        assert (await client.call("POST", f"{MAPS}?dryRun=All", config_map())).code == 201
        assert seen[0]["dryRun"] is True


async def test_connections_and_bindings_are_asked_about(tmp_path):
    def answer(request):
        return {"allowed": False, "status": {"message": f"no {request['kind']['kind']}"}}

    async with webhook(tmp_path, answer) as (config, seen), running_cluster() as client:
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        pods = "/api/v1/namespaces/default/pods"
        assert (await client.call("POST", pods, pod)).code == 201
        await configure(client, configuration(config, resources=("pods/*",)))
        bound = {"metadata": {"name": "p"}, "target": {"name": "n"}}
        refused = await client.call("POST", f"{pods}/p/binding", bound)
        assert refused.json["message"].endswith("no Binding")
        refused = await client.call("GET", f"{pods}/p/exec?command=id&stdout=true")
        assert refused.json["message"].endswith("no PodExecOptions")
        assert (seen[1]["operation"], seen[1]["object"]["command"]) == ("CONNECT", ["id"])


BAD = [
    ({"name": "short"}, "should be a domain with at least three segments"),
    ({"sideEffects": "Some"}, 'sideEffects: Unsupported value: "Some"'),
    ({"timeoutSeconds": 31}, "must be between 1 and 30 seconds"),
    ({"clientConfig": {}}, "exactly one of url or service is required"),
    ({"clientConfig": {"url": "http://x"}}, "'https' is the only allowed URL scheme"),
    ({"clientConfig": {"url": "https://u@x/?a#b"}}, "user information is not permitted"),
    ({"admissionReviewVersions": ["v9"]}, "must include at least one of v1, v1beta1"),
    ({"rules": [{"operations": ["NEVER"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}, 'Unsupported value: "NEVER"'),
    ({"rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["*", "pods"]}]}, "if '*' is present"),
    ({"matchConditions": [{"name": "x", "expression": "1"}]}, "must evaluate to bool but got int"),
    ({"matchConditions": [{"name": "x", "expression": "variables.y"}]}, "undeclared reference to 'variables'"),
    ({"failurePolicy": "Maybe"}, 'Unsupported value: "Maybe"'),
]  # fmt: skip


@pytest.mark.parametrize(("hook", "complaint"), BAD)
async def test_a_bad_configuration_is_refused(hook, complaint):
    async with running_cluster() as client:
        written = (
            configuration({"url": "https://127.0.0.1:1/"}, **hook)
            if "name" not in hook
            else configuration({"url": "https://127.0.0.1:1/"})
        )
        written["webhooks"][0] |= hook
        refused = await client.call("POST", f"{GROUP}/validatingwebhookconfigurations", written)
        assert refused.code == 422
        assert complaint in refused.json["message"]


async def test_a_long_answer_of_a_webhook_does_not_hold_the_loop(tmp_path):
    body = b"{" + b",".join(b'"%d":1' % number for number in range(400_000)) + b"}"
    assert len(body) < ANSWER_BYTES
    async with (
        webhook(tmp_path, lambda request: web.Response(body=body)) as (config, _),
        running_cluster() as client,
    ):
        await configure(client, configuration(config))
        heartbeat = Heartbeat()
        beating = asyncio.create_task(heartbeat.run())
        await asyncio.sleep(0.02)
        answer = await client.call("POST", MAPS, config_map())
        await asyncio.sleep(0.02)  # the tick that was held back, if one was
        beating.cancel()
        assert (answer.code, "webhook response was absent" in answer.json["message"]) == (500, True)
        assert heartbeat.longest_work < 0.25
