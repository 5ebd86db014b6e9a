"""The guard around the judge: phases, fences, answers, certificates, the command's errors."""

import asyncio
import contextlib
import inspect
import json
import re
import socket
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from small_api import SmallApi

from dray.cli.main import main
from dray.client import Client, LeaderElection, Response
from dray.control.guarding import (
    Guard,
    GuardOptions,
    Phase,
    Target,
    configuration,
    https_pages,
    load_identity,
    make_identity,
    serve,
)
from dray.control.guarding.guard import BadReview
from dray.control.guarding.revision_fence import ANNOTATION, fence, list_waiting, move_on
from dray.control.guarding.webhook_configuration import CONFIGURATION, CONFIGURATIONS

ROOT = Path(__file__).resolve().parents[3]
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"
WANTED = configuration(Target(url="https://127.0.0.1:1"), b"ca", 3)


def options(**more):
    return GuardOptions(WANTED, **{"settle": 0.0, "fence_after": 0.04, **more})


def given(*devices):
    results = [{"request": "r", "driver": "d", "pool": "p", "device": each} for each in devices]
    return {"allocation": {"devices": {"results": results}}} if devices else {}


@pytest.fixture
def api():
    api = SmallApi()
    spec = {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    spec["devices"] = [{"name": "g"}, {"name": "h"}]
    api.put("/apis/resource.k8s.io/v1/resourceslices/s", {"spec": spec})
    return api


def put_claim(api, name, *devices):
    return api.put(f"{CLAIMS}/{name}", {"spec": {"devices": {}}, "status": given(*devices)})


def stored(api, name):
    return api.objects[f"{CLAIMS}/{name}"]


def land(api, name, *devices):
    """Store an allocation as the API server does after the verdict."""
    api._replace(f"{CLAIMS}/{name}", stored(api, name), {"status": given(*devices)}, "status")


def ask(guard, claim, *devices, **more):
    """Show a write to the guard as an API server would; returns the response."""
    request = {"uid": "1", "object": {**claim, "status": given(*devices)}, "oldObject": claim, **more}
    answer = json.loads(guard.review(json.dumps({"kind": "AdmissionReview", "request": request}).encode()))
    assert answer["kind"] == "AdmissionReview"
    return answer["response"]


@contextlib.asynccontextmanager
async def running(api, *, is_awaited=True, may_judge=lambda: True, **more):
    guard = Guard(api.client(), options(**more), may_judge=may_judge)
    task = asyncio.create_task(guard.run())
    try:
        if is_awaited:
            await until(guard.is_judging.is_set, task)
        yield guard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition, task=None):
    async with asyncio.timeout(60):
        while not condition():
            if task is not None and task.done():
                task.result()
            await asyncio.sleep(0.005)


# --- phases --------------------------------------------------------------------------


async def test_a_guard_that_does_not_lead_refuses_with_a_hint_to_come_back(api):
    guard = Guard(api.client(), options())
    response = ask(guard, put_claim(api, "a"), "g")
    assert not response["allowed"]
    assert response["status"]["code"] == 503
    assert response["status"]["details"]["retryAfterSeconds"] == 1
    assert "standing by" in response["status"]["message"]


async def test_it_registers_and_judges(api):
    async with running(api) as guard:
        found = api.objects[CONFIGURATIONS.path(None, CONFIGURATION)]
        assert found["webhooks"] == WANTED["webhooks"]
        a, b = put_claim(api, "a"), put_claim(api, "b")
        assert ask(guard, a, "g") == {"uid": "1", "allowed": True}
        refused = ask(guard, b, "g")["status"]
        assert (refused["code"], refused["reason"]) == (409, "Conflict")
        assert refused["message"] == "device d/p/g is held by claim ns/a"
        assert ask(guard, b, "h")["allowed"]


async def test_a_configuration_that_an_installer_made_is_filled_in_and_keeps_the_installers_marks(api):
    marks = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "dray"},
    }
    path = CONFIGURATIONS.path(None, CONFIGURATION)
    api.put(path, {"metadata": marks})
    async with running(api):
        found = api.objects[path]
        assert found["webhooks"] == WANTED["webhooks"]
        assert found["metadata"]["annotations"] == marks["annotations"]
        assert marks["labels"].items() <= found["metadata"]["labels"].items()


async def test_claims_without_allocation_are_fenced_before_the_first_verdict(api):
    put_claim(api, "held", "g")
    before = put_claim(api, "waiting")
    async with running(api) as guard:
        assert ANNOTATION in stored(api, "waiting")["metadata"]["annotations"]
        assert "annotations" not in stored(api, "held")["metadata"]
        assert "read it again" in ask(guard, before, "h")["status"]["message"]
        assert "ns/held" in ask(guard, stored(api, "waiting"), "g")["status"]["message"]
        assert ask(guard, stored(api, "waiting"), "h")["allowed"]


async def test_without_certainty_of_the_lease_nothing_is_admitted(api):
    is_certain = True
    async with running(api, may_judge=lambda: is_certain) as guard:
        claim = put_claim(api, "a")
        is_certain = False
        assert "lease" in ask(guard, claim, "g")["status"]["message"]
        is_certain = True
        assert ask(guard, claim, "g")["allowed"]


async def test_a_configuration_that_goes_away_stops_the_judging_until_it_is_back(api):
    async with running(api, settle=0.1) as guard:
        claim = put_claim(api, "a")
        path = CONFIGURATIONS.path(None, CONFIGURATION)
        api._delete(path, api.objects[path], {})
        await until(lambda: guard.phase is not Phase.JUDGING)
        assert ask(guard, claim, "g")["status"]["code"] == 503
        await until(guard.is_judging.is_set)
        assert guard.statistics.reopened == 1
        assert path in api.objects
        # Somebody may have written past the guard meanwhile: what was under way is fenced.
        assert ANNOTATION in stored(api, "a")["metadata"]["annotations"]


async def test_a_configuration_that_sends_less_is_put_right(api):
    async with running(api) as guard:
        path = CONFIGURATIONS.path(None, CONFIGURATION)
        changed = json.loads(json.dumps(api.objects[path]))
        changed["webhooks"][0]["failurePolicy"] = "Ignore"
        api._replace(path, api.objects[path], changed, "")
        await until(lambda: api.objects[path]["webhooks"][0]["failurePolicy"] == "Fail")
        await until(guard.is_judging.is_set)
        assert guard.statistics.reopened == 1


@pytest.mark.usefixtures("virtual_time")
async def test_a_guard_that_does_not_register_waits_for_somebody_who_does(api):
    async with running(api, is_awaited=False, registers=False) as guard:
        await until(lambda: guard.phase is Phase.REGISTERING)
        await asyncio.sleep(0.1)
        assert guard.phase is Phase.REGISTERING
        elsewhere = configuration(Target(namespace="n", service="s"), b"other", 7)
        api.put(CONFIGURATIONS.path(None, CONFIGURATION), elsewhere)
        await until(guard.is_judging.is_set)


@pytest.mark.usefixtures("virtual_time")
async def test_a_server_that_is_away_while_starting_is_waited_for(api):
    api.is_away = True
    async with running(api, is_awaited=False) as guard:
        await asyncio.sleep(0.05)
        assert guard.phase is Phase.FILLING
        api.is_away = False
        await until(guard.is_judging.is_set)


async def test_a_guard_that_leads_again_begins_with_an_empty_book_and_fences(api):
    guard = Guard(api.client(), options())
    for turn in range(2):
        task = asyncio.create_task(guard.run())
        await until(guard.is_judging.is_set, task)
        claim = put_claim(api, f"claim-{turn}")
        assert ask(guard, claim, "g")["allowed"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert guard.phase is Phase.STANDING_BY
        assert not ask(guard, claim, "g")["allowed"]
    assert ANNOTATION in stored(api, "claim-0")["metadata"]["annotations"]
    assert "annotations" not in stored(api, "claim-1")["metadata"]


# --- writes in flight --------------------------------------------------------------------


async def test_a_write_that_landed_leaves_the_flights(api):
    async with running(api) as guard:
        a = put_claim(api, "a")
        assert ask(guard, a, "g")["allowed"]
        assert len(list(guard.judge.flights())) == 1
        land(api, "a", "g")
        await until(lambda: not list(guard.judge.flights()))
        assert guard.statistics.unguarded == 0


@pytest.mark.usefixtures("virtual_time")
async def test_a_stuck_write_is_fenced_when_another_wants_the_device(api):
    async with running(api) as guard:
        a, b = put_claim(api, "a"), put_claim(api, "b")
        assert ask(guard, a, "g")["allowed"]
        await asyncio.sleep(0.1)
        assert "annotations" not in stored(api, "a")["metadata"]  # nobody asked for the device yet
        assert not ask(guard, b, "g")["allowed"]
        await until(lambda: not list(guard.judge.flights()))
        assert ANNOTATION in stored(api, "a")["metadata"]["annotations"]
        assert ask(guard, b, "g")["allowed"]


async def test_a_write_to_a_claim_that_never_was_makes_room(api):
    async with running(api) as guard:
        ghost = {"metadata": {"name": "ghost", "namespace": "ns", "uid": "x", "resourceVersion": "999"}}
        b = put_claim(api, "b")
        assert ask(guard, ghost, "g")["allowed"]
        assert not ask(guard, b, "g")["allowed"]
        await until(lambda: ask(guard, b, "g")["allowed"])


async def test_an_allocation_past_the_guard_is_counted(api):
    async with running(api) as guard:
        put_claim(api, "a")
        land(api, "a", "g")
        await until(lambda: guard.statistics.unguarded == 1)
        assert not ask(guard, put_claim(api, "b"), "g")["allowed"]


async def test_dry_runs_are_counted_and_not_entered(api):
    async with running(api) as guard:
        a, b = put_claim(api, "a"), put_claim(api, "b")
        assert ask(guard, a, "g", dryRun=True)["allowed"]
        assert ask(guard, b, "g")["allowed"]
        assert (guard.statistics.dry_runs, guard.statistics.admitted) == (1, 1)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'{"request": {"uid": "1"}}', b'{"request": {"uid": "1", "object": {}}}']
)
async def test_what_is_no_review_of_a_claim_is_told_so(api, body):
    async with running(api) as guard:
        with pytest.raises(BadReview):
            guard.review(body)


# --- fencing ------------------------------------------------------------------------------


async def test_a_fence_moves_a_claim_once_and_keeps_all_that_it_has(api):
    spec = {"devices": {"config": [{"opaque": {"driver": "d", "parameters": {"b": 1.0, "a": [1]}}}]}}
    meta = {
        "labels": {"x": "y"},
        "annotations": {"k": "v"},
        "finalizers": ["f"],
        "ownerReferences": [{"uid": "o"}],
    }
    made = api.put(f"{CLAIMS}/a", {"metadata": dict(meta), "spec": spec, "status": given("g")})
    uid, base = made["metadata"]["uid"], int(made["metadata"]["resourceVersion"])
    client = api.client()
    assert await fence(client, "ns/a", uid, base)
    moved = stored(api, "a")
    assert int(moved["metadata"]["resourceVersion"]) > base
    assert moved["metadata"]["annotations"] == {"k": "v", ANNOTATION: str(base)}
    assert {key: moved["metadata"][key] for key in ("labels", "finalizers", "ownerReferences")} == {
        key: meta[key] for key in ("labels", "finalizers", "ownerReferences")
    }
    assert (moved["spec"], moved["status"]) == (spec, given("g"))
    assert await fence(client, "ns/a", uid, base)
    assert stored(api, "a") == moved
    assert not await fence(client, "ns/a", "another uid", base)
    assert not await fence(client, "ns/none", uid, base)


async def test_a_conflict_alone_is_no_proof_that_a_claim_has_moved(api):
    """Another webhook may answer 409, too: then the claim is where it was, and the fence is not up."""
    made = put_claim(api, "a")
    refusals = 2

    class Refusing:
        async def send(self, request):
            nonlocal refusals
            if request.method == "PUT" and refusals:
                refusals -= 1
                return Response(409, {}, b'{"kind":"Status","code":409,"reason":"Conflict","message":"no"}')
            return await api.send(request)

    [waiting] = await list_waiting(api.client())
    await move_on(Client(Refusing()), waiting)
    assert refusals == 0
    assert int(stored(api, "a")["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


# --- the lease -----------------------------------------------------------------------------


@pytest.mark.usefixtures("virtual_time")
async def test_a_lease_is_certain_only_for_a_while_after_its_last_confirmation(api):
    now = 100.0
    election = LeaderElection(
        api.client(), "l", "me", lease_duration=9, renew_deadline=6, retry_period=0.02, clock=lambda: now
    )
    assert not election.is_certain
    done = asyncio.Event()
    task = asyncio.create_task(election.run(done.wait))
    await until(lambda: election.is_leading)
    assert election.is_new  # nobody had made the lease
    assert election.is_certain
    api.is_away = True
    await asyncio.sleep(0.05)
    now = 105.9
    assert election.is_certain
    now = 106.0
    assert not election.is_certain
    api.is_away = False
    await until(lambda: election.is_certain)
    done.set()
    await task
    assert not election.is_certain
    await election.run(done.wait)
    assert not election.is_new


# --- TLS and pages ---------------------------------------------------------------------------


async def test_the_pages_are_served_with_a_certificate_that_its_ca_vouches_for(api):
    identity = make_identity(["127.0.0.1", "dray-guard.dray-system.svc"], datetime.now(UTC))
    trust = ssl.create_default_context(cadata=identity.ca.decode())
    async with running(api) as guard:
        listener = socket.create_server(("127.0.0.1", 0))
        runner = await serve(guard, listener, identity)
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
            claim = put_claim(api, "a")
            review = {"request": {"uid": "7", "object": {**claim, "status": given("g")}, "oldObject": claim}}
            async with session.post(f"{url}/validate", json=review) as answer:
                assert (await answer.json())["response"] == {"uid": "7", "allowed": True}
            async with session.post(f"{url}/validate", data=b"nonsense") as answer:
                assert answer.status == 400
            async with session.get(f"{url}/readyz") as answer:
                assert (answer.status, await answer.text()) == (200, "judging\n")
            async with session.get(f"{url}/metrics") as answer:
                assert 'dray_guard_reviews_total{verdict="admitted"} 1' in await answer.text()
            guard.phase = Phase.SECURING
            async with session.get(f"{url}/readyz") as answer:
                assert answer.status == 503
                assert "securing" in await answer.text()
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200
        await runner.cleanup()


def test_certificate_files_are_read_again(tmp_path):
    """A file that is replaced shows up in new connections; half a file is an error that changes nothing."""
    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    seen = []
    for name in ("first.example", "second.example"):
        command = (
            f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
        )
        subprocess.run(
            [*command.split(), "-keyout", files[1], "-out", files[0]], check=True, capture_output=True
        )
        if not seen:
            identity = load_identity(*files, files[0])
            assert identity.ca == files[0].read_bytes()
        identity.renew()
        seen.append(_shown(identity.tls))
    assert [name in der for name, der in zip((b"first.example", b"second.example"), seen, strict=True)] == [
        True
    ] * 2
    files[1].write_text("half")
    with pytest.raises(ssl.SSLError):
        identity.renew()
    with pytest.raises(ValueError, match="cannot use certificate"):
        load_identity(*files, None)


def _shown(tls):
    """Shake hands in memory and return the certificate that the server shows."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(down, up)
    server = tls.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.getpeercert(binary_form=True)


def test_every_metric_is_on_the_operations_page():
    names = set(re.findall(r"dray_guard_[a-z_]+", inspect.getsource(https_pages)))
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert names
    assert sorted(name for name in names if f"`{name}`" not in text) == []


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "8443"], "write ADDRESS:PORT"),
        (["--listen", "0.0.0.0:0"], "--url or --service"),
        (["--url", "http://x"], "https://HOST"),
        (["--url", "https://x", "--service", "a/b"], "exclude each other"),
        (["--service", "b"], "NAMESPACE/NAME"),
        (["--no-register"], "needs --cert and --key"),
        (["--cert", "c.pem"], "go together"),
        (["--cert", "/nowhere/c", "--key", "/nowhere/k"], "cannot use certificate"),
        (["--lease", "1"], "from 3 to 3600"),
        (["--kubeconfig", "/nowhere/config"], "/nowhere/config"),
    ],
)
def test_wrong_flags_are_explained(flags, words, capsys):
    try:
        code = main(["guard", *flags])
    except SystemExit as ended:  # a value that its type refuses
        code = ended.code
    assert code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said


def test_the_configuration_fails_closed_and_covers_what_gives_devices(capsys):
    assert main(["guard", "--print-configuration", "--service", "ns/guard", "--lease", "9"]) == 0
    [webhook] = json.loads(capsys.readouterr().out)["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["timeoutSeconds"] == 3
    assert webhook["rules"][0]["resources"] == ["resourceclaims/status"]
    assert webhook["matchPolicy"] == "Equivalent"
    assert webhook["clientConfig"]["caBundle"]
