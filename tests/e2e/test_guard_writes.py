"""The guard and a real kube-apiserver: raw writes that race, and what is not the guard's business."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from datetime import UTC, datetime

import aiohttp
import peers
import pytest
from aiohttp import web
from clusters import Cluster
from guards import (
    CALM,
    HASTY,
    PATIENCE,
    GuardProcess,
    Watcher,
    allocation,
    free_lease,
    give,
    guarding,
    in_force,
    is_asked,
    is_early,
    is_free,
    metrics_of,
    out_of_force,
    unguarded,
)

from dray.client import MERGE_PATCH, Conflict, NotFound, ServerFailed
from dray.client.resources import CLAIMS, LEASES
from dray.client.resources import NAMESPACES as _NAMESPACES
from dray.control.guarding import make_identity
from dray.control.guarding.revision_fence import ANNOTATION
from dray.control.guarding.webhook_configuration import CONFIGURATION, CONFIGURATIONS

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def guarded_peer():
    """An API server of our own: a guard that fails closed would be in the way of other tests."""
    with peers.kubernetes(controllers="") as peer:
        yield peer


async def _race(cluster, node, device, number):
    """Give one device to two claims at the same moment; return how many writes succeeded."""
    names = [f"race-{number}-{side}" for side in "ab"]
    wanted = {"name": "r", "deviceClassName": "any"}
    claims = [await cluster.claim(name, wanted) for name in names]
    given = allocation(cluster, device, pool=node)

    async def decided():
        answers = await asyncio.gather(
            *(give(cluster, claim, given) for claim in claims), return_exceptions=True
        )
        # As long as the guard has not heard that the race before this one is over, nobody has started.
        return None if all(is_early(each, names) for each in answers) else answers

    answers = await cluster.until(decided, f"race {number}", PATIENCE)
    for answer in answers:
        assert isinstance(answer, (dict, Conflict)), answer
    for claim, answer in zip(claims, answers, strict=True):
        if isinstance(answer, dict):
            await give(cluster, answer, None)
        await cluster.client.delete(CLAIMS, claim["metadata"]["name"], cluster.namespace)
    return sum(isinstance(answer, dict) for answer in answers)


async def _races(cluster, rounds):
    """Race for ten devices, each in its own sequence, all sequences at once."""
    node = await cluster.node("a")
    await cluster.devices(node, *(f"g{index}" for index in range(10)))
    await is_free(cluster, "g0", node)

    async def sequence(device):
        return [
            await _race(cluster, node, f"g{device}", device * 1000 + turn) for turn in range(rounds // 10)
        ]

    async with Watcher(cluster) as watcher:
        winners = [each for turns in await asyncio.gather(*map(sequence, range(10))) for each in turns]
    return winners, watcher.problems


async def test_of_two_writes_that_give_one_device_exactly_one_lands(guarded_peer):
    async with Cluster(guarded_peer) as cluster, guarding(cluster):
        winners, problems = await _races(cluster, 200)
        assert winners == [1] * 200
        assert problems == []


async def test_without_a_guard_both_land(guarded_peer):
    """The negative control: the same races, and the same watcher sees devices given twice."""
    async with Cluster(guarded_peer) as cluster:
        await unguarded(cluster)
        winners, problems = await _races(cluster, 20)
        assert winners == [2] * 20
        assert len(problems) >= 20


# --- what is judged, and what is not -----------------------------------------------------


@contextlib.asynccontextmanager
async def judged(peer, lease=CALM):
    """A guarded cluster with two devices, of which the guard knows."""
    async with Cluster(peer) as cluster, guarding(cluster, lease=lease) as guard:
        node = await cluster.node("a")
        await cluster.devices(node, "g0", "g1")
        await is_free(cluster, "g0", node)
        yield cluster, node, guard


async def new_claim(cluster, name, **wanted):
    return await cluster.claim(name, {"name": "r", "deviceClassName": "any", **wanted})


async def test_the_refusal_names_the_device_and_its_holder(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, _):
        given = allocation(cluster, "g0", pool=node)
        await give(cluster, await new_claim(cluster, "first"), given)
        with pytest.raises(Conflict) as caught:
            await give(cluster, await new_claim(cluster, "second"), given)
        assert f"device {cluster.driver}/{node}/g0 is held by claim {cluster.namespace}/first" in str(
            caught.value
        )
        assert caught.value.reason == "Conflict"
        [cause] = caught.value.causes
        assert (cause.reason, cause.field) == ("DeviceInUse", f"{cluster.driver}/{node}/g0")


async def test_a_dry_run_books_nothing(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, guard):
        given = allocation(cluster, "g0", pool=node)
        first = await new_claim(cluster, "first")
        verdict = 'dray_guard_reviews_total{verdict="dry_run"}'
        before = (await metrics_of(guard))[verdict]
        await give(cluster, first, given, dryRun="All")
        await give(cluster, await new_claim(cluster, "second"), given)
        with pytest.raises(Conflict):
            await give(cluster, first, given, dryRun="All")
        assert (await metrics_of(guard))[verdict] == before + 2


async def test_administrators_may_look_at_what_others_use(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, _):
        await cluster.client.patch(
            _NAMESPACES,
            cluster.namespace,
            {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
        )
        await give(cluster, await new_claim(cluster, "user"), allocation(cluster, "g0", pool=node))
        for name in ("admin-1", "admin-2"):
            claim = await new_claim(cluster, name, adminAccess=True)
            await give(cluster, claim, allocation(cluster, "g0", pool=node, adminAccess=True))


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
async def test_all_versions_and_patches_are_judged(guarded_peer, version):
    async with judged(guarded_peer) as (cluster, node, _):
        resource = CLAIMS.at(version)
        given = allocation(cluster, "g0", pool=node)
        await give(cluster, await new_claim(cluster, "first"), given)
        await new_claim(cluster, "second")

        async def patch(device):
            body = {"status": {"allocation": allocation(cluster, device, pool=node)}}
            return await cluster.client.patch(
                resource, "second", body, cluster.namespace, kind=MERGE_PATCH, subresource="status"
            )

        with pytest.raises(Conflict):
            await patch("g0")
        await patch("g1")
        with pytest.raises(Conflict):
            await give(cluster, await new_claim(cluster, "third"), allocation(cluster, "g1", pool=node))


async def test_concurrent_patches_without_a_revision_cannot_share_a_device(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, _):
        names = [f"claim-{index}" for index in range(20)]
        for name in names:
            await new_claim(cluster, name)
        body = {"status": {"allocation": allocation(cluster, "g0", pool=node)}}

        def patch(name):
            return cluster.client.patch(CLAIMS, name, body, cluster.namespace, subresource="status")

        answers = await asyncio.gather(*map(patch, names), return_exceptions=True)
        assert sum(isinstance(each, dict) for each in answers) == 1


async def test_releasing_and_reserving_need_no_guard_but_allocating_does(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, guard):
        held = await give(cluster, await new_claim(cluster, "held"), allocation(cluster, "g0", pool=node))
        await guard.kill()
        user = {"resource": "pods", "name": "p", "uid": "1"}
        patch = {"status": {"reservedFor": [user]}}
        await cluster.client.patch(CLAIMS, "held", patch, cluster.namespace, subresource="status")
        patch = {"status": {"reservedFor": None, "allocation": None}}
        held = await cluster.client.patch(CLAIMS, "held", patch, cluster.namespace, subresource="status")
        with pytest.raises(ServerFailed):
            await give(cluster, held, allocation(cluster, "g0", pool=node))


async def test_a_released_device_can_be_given_again_at_once(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, _):
        claims = [await new_claim(cluster, name) for name in ("first", "second")]
        given = allocation(cluster, "g0", pool=node)
        for turn in range(10):
            claim, other = claims[turn % 2], claims[(turn + 1) % 2]

            async def taken(claim=claim, other=other):
                try:
                    return await give(cluster, claim, given)
                except Conflict as error:
                    if f"/{other['metadata']['name']}" not in str(error):
                        raise
                    return None  # the guard has not heard of the release yet

            held = await cluster.until(taken, "the device is free", PATIENCE)
            claims[turn % 2] = await give(cluster, held, None)


# --- one guard after the other --------------------------------------------------------------


@contextlib.asynccontextmanager
async def slow_webhook(cluster, name):
    """Hold back the write to one claim, after the guard has admitted it, until told to let go."""
    was_asked, has_begun, may_go = False, asyncio.Event(), asyncio.Event()

    async def answer(request):
        nonlocal was_asked
        was_asked = True
        review = await request.json()
        if not review["request"]["dryRun"]:
            has_begun.set()
            await may_go.wait()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({**review, "request": None, "response": response})

    identity = make_identity(["127.0.0.1"], datetime.now(UTC))
    listener = socket.create_server(("127.0.0.1", 0))
    pages = web.Application()
    pages.router.add_post("/", answer)
    runner = web.AppRunner(pages)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=identity.tls).start()
    address = {
        "url": f"https://127.0.0.1:{listener.getsockname()[1]}/",
        "caBundle": b64encode(identity.ca).decode(),
    }
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["*/status"],
    }
    webhook = {
        "name": "slow.example.com", "clientConfig": address, "rules": [rule], "sideEffects": "None",
        "timeoutSeconds": 30, "admissionReviewVersions": ["v1"],
        "matchConditions": [{"name": "one", "expression": f"request.name == '{name}'"}],
    }  # fmt: skip
    await cluster.client.create(CONFIGURATIONS, {"metadata": {"name": "slow"}, "webhooks": [webhook]})

    async def asked():
        with contextlib.suppress(Conflict):
            probe = allocation(cluster, "nothing", pool="nowhere")
            await give(cluster, await cluster.get_claim(name), probe, dryRun="All")
        return was_asked

    try:
        await cluster.until(asked, "the API server asks the slow webhook, too", PATIENCE)
        yield has_begun, may_go
    finally:
        await cluster.client.delete(CONFIGURATIONS, "slow")
        may_go.set()
        await runner.cleanup()


async def test_a_write_that_a_dead_guard_admitted_cannot_land_any_more(guarded_peer):
    async with judged(guarded_peer, HASTY) as (cluster, node, guard):
        given = allocation(cluster, "g0", pool=node)
        late, _ = await new_claim(cluster, "late"), await new_claim(cluster, "second")
        async with slow_webhook(cluster, "late") as (has_begun, may_go):
            writing = asyncio.create_task(give(cluster, late, given))
            await asyncio.wait_for(has_begun.wait(), PATIENCE)
            await guard.kill()
            await guard.start()
            await in_force(cluster)
            await give(cluster, await cluster.get_claim("second"), given)
            may_go.set()
            with pytest.raises(Conflict):
                await writing
        assert await cluster.held("late") == []
        assert await cluster.held("second") == ["g0"]
        assert ANNOTATION in (await cluster.get_claim("late"))["metadata"]["annotations"]


async def test_a_write_that_is_stuck_holds_its_device_and_then_makes_room(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, _):
        given = allocation(cluster, "g0", pool=node)
        late, second = await new_claim(cluster, "late"), await new_claim(cluster, "second")
        async with slow_webhook(cluster, "late") as (has_begun, may_go):
            writing = asyncio.create_task(give(cluster, late, given))
            await asyncio.wait_for(has_begun.wait(), PATIENCE)
            with pytest.raises(Conflict):
                await give(cluster, second, given)

            async def given_at_last():
                with contextlib.suppress(Conflict):
                    return await give(cluster, second, given)

            await cluster.until(given_at_last, "the stuck write is fenced", PATIENCE)
            may_go.set()
            with pytest.raises(Conflict):
                await writing
        assert await cluster.held("late") == []


async def test_a_slow_write_that_nobody_contests_lands(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, _):
        late = await new_claim(cluster, "late")
        async with slow_webhook(cluster, "late") as (has_begun, may_go):
            writing = asyncio.create_task(give(cluster, late, allocation(cluster, "g0", pool=node)))
            await asyncio.wait_for(has_begun.wait(), PATIENCE)
            await asyncio.sleep(1.5)  # three times the patience with contested ones
            may_go.set()
            await writing
        assert await cluster.held("late") == ["g0"]


async def test_of_two_guards_one_judges_and_the_other_takes_over(guarded_peer):
    async with judged(guarded_peer, HASTY) as (cluster, node, guard):
        other = GuardProcess(guarded_peer)
        await other.start(is_awaited=False)
        try:
            given = allocation(cluster, "g0", pool=node)
            await other.reported()
            await asyncio.sleep(HASTY + 1)  # longer than the lease: it is renewed
            assert [each["phase"] for each in other.reports] == ["standing_by"]
            first = await give(cluster, await new_claim(cluster, "first"), given)
            await new_claim(cluster, "second")
            await guard.kill()
            await other.ready()
            await in_force(cluster)
            with pytest.raises(Conflict):
                await give(cluster, await cluster.get_claim("second"), given)
            await give(cluster, first, None)
            await is_free(cluster, "g0", node)
            await give(cluster, await cluster.get_claim("second"), given)
        finally:
            await other.kill()


async def test_a_configuration_that_is_deleted_comes_back_and_the_guard_says_so(guarded_peer):
    async with judged(guarded_peer) as (cluster, node, guard):
        await cluster.client.delete(CONFIGURATIONS, CONFIGURATION)

        async def restored():
            with contextlib.suppress(NotFound):
                return await cluster.client.get(CONFIGURATIONS, CONFIGURATION)

        await cluster.until(restored, "the configuration", PATIENCE)
        await guard.begun_anew()
        await in_force(cluster)
        assert (await metrics_of(guard))["dray_guard_reopened_total"] == 1
        assert "was removed or changed" in guard.log.read_text()
        given = allocation(cluster, "g0", pool=node)
        await give(cluster, await new_claim(cluster, "first"), given)
        with pytest.raises(Conflict):
            await give(cluster, await new_claim(cluster, "second"), given)


async def test_a_guard_that_slept_does_not_trust_its_lease(guarded_peer):
    """It wakes up with a request in its hands, while another one judges: it must not admit anything."""
    async with judged(guarded_peer, HASTY) as (cluster, node, guard):
        claim = await new_claim(cluster, "late")
        given = allocation(cluster, "g0", pool=node)
        guard.process.send_signal(signal.SIGSTOP)
        review = {
            "request": {"uid": "1", "object": {**claim, "status": {"allocation": given}}, "oldObject": claim}
        }
        url = f"https://{guard.reports[-1]['address']}/validate"
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(session.post(url, json=review, ssl=False))
            other = GuardProcess(guarded_peer)
            try:
                await other.start()
                await in_force(cluster)
                await give(cluster, await new_claim(cluster, "second"), given)
                guard.process.send_signal(signal.SIGCONT)
                answer = await (await asyncio.wait_for(asking, PATIENCE)).json()
            finally:
                await other.kill()
        assert answer["response"]["allowed"] is False
        assert answer["response"]["status"]["code"] == 503


async def test_a_deleted_lease_does_not_make_two_judges(guarded_peer):
    async with judged(guarded_peer, lease=3) as (cluster, _, guard):
        other = GuardProcess(guarded_peer, lease=3)
        await other.start(is_awaited=False)
        try:
            await other.reported()
            await cluster.client.delete(LEASES, CONFIGURATION, "kube-system")
            seen = []

            async def one_judges():
                seen.append([each.reports[-1]["is_ready"] for each in (guard, other)])
                return sum(seen[-1]) == 1

            # Longer than it takes to lose the lease, to win it, and to wait until nobody else believes in it.
            until = asyncio.get_running_loop().time() + 8
            while asyncio.get_running_loop().time() < until:
                await one_judges()
                await asyncio.sleep(0.05)
            await cluster.until(one_judges, "one of them judges", PATIENCE)
            assert [True, True] not in seen
        finally:
            await other.stop()


async def test_an_allocation_past_the_guard_is_found_out(guarded_peer):
    """Somebody narrows the configuration while the guard cannot put it right, and writes past it."""
    async with judged(guarded_peer) as (cluster, node, guard):
        found = await cluster.client.get(CONFIGURATIONS, CONFIGURATION)
        given = allocation(cluster, "g0", pool=node)
        claim = await new_claim(cluster, "first")
        await new_claim(cluster, "second")
        guard.process.send_signal(signal.SIGSTOP)
        found["webhooks"][0]["matchConditions"] = [{"name": "nothing", "expression": "false"}]
        await cluster.client.update(CONFIGURATIONS, CONFIGURATION, found)
        await out_of_force(cluster)
        await give(cluster, claim, given)
        guard.process.send_signal(signal.SIGCONT)

        async def refused():
            try:
                await give(cluster, await cluster.get_claim("second"), given)
            except (Conflict, ServerFailed) as error:
                return "is held by claim" in str(error)
            raise AssertionError("a device was given twice")

        async def put_right():
            webhooks = (await cluster.client.get(CONFIGURATIONS, CONFIGURATION))["webhooks"]
            return webhooks[0]["matchConditions"][0]["name"] != "nothing"

        await cluster.until(put_right, "the configuration is put right", PATIENCE)
        await is_asked(cluster)
        await cluster.until(refused, "the guard has learned of it", PATIENCE)


async def test_claims_whose_parameters_are_compared_byte_by_byte_can_be_fenced(guarded_peer):
    async with Cluster(guarded_peer) as cluster:
        text = (
            '{"metadata": {"name": "odd", "annotations": {"k": "v"}}, "spec":'
            ' {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}], "config":'
            ' [{"opaque": {"driver": "d.example.com", "parameters": { "b" : 1.0,\n "a" : [ "é", null ] }}}]}}}'
        )
        await cluster.client.create(CLAIMS, text.encode(), cluster.namespace)
        before = await cluster.get_claim("odd")
        async with guarding(cluster):
            after = await cluster.get_claim("odd")
        assert after["metadata"]["annotations"] == {
            "k": "v",
            ANNOTATION: before["metadata"]["resourceVersion"],
        }
        assert after["spec"] == before["spec"]


# --- the command -------------------------------------------------------------------------


async def test_a_guard_that_is_stopped_says_what_stays_and_gives_the_lease_back(guarded_peer):
    async with Cluster(guarded_peer) as cluster:
        guard = GuardProcess(guarded_peer, lease=90)
        try:
            await free_lease(cluster)
            await guard.start()
            guard.process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(guard.process.wait(), PATIENCE) == 0
            assert "`dray guard --unregister` removes it" in guard.log.read_text()
            await guard.start()  # much sooner than the lease would run out
        finally:
            await guard.stop()
            await unguarded(cluster)


def test_the_configuration_can_be_printed_and_removed(guarded_peer):
    dray = [sys.executable, "-m", "dray", "guard", "--kubeconfig", str(guarded_peer.kubeconfig)]
    shown = subprocess.run([*dray, "--print-configuration"], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout)["webhooks"][0]["failurePolicy"] == "Fail"
    gone = subprocess.run(
        [*dray, "--unregister", "--output", "json"], capture_output=True, text=True, check=True
    )
    assert json.loads(gone.stdout) == {"removed": False}
