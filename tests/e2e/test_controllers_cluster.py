"""Controllers of the cluster: taints and eviction, pool status, quota, garbage, namespaces, lost nodes."""

import asyncio
import contextlib
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from clusters import Cluster, claim_spec
from test_controllers_claims import SOON, claim_when, furnished, is_free, made_claim

from dray.client import Client, Forbidden, NotFound
from dray.client import resources as kinds
from dray.control.node_lifecycle import NodeLifecycle, NodeMonitoring
from dray.control.reconcile_loop import Caches, run_controllers


async def gone(cluster, resource, name, namespace=None):
    """Wait until an object is gone."""

    async def check():
        try:
            await cluster.client.get(resource, name, namespace)
        except NotFound:
            return True
        return False

    await cluster.until(check, f"{resource.plural} {name} gone", SOON)


async def exists(cluster, resource, name, namespace=None):
    with contextlib.suppress(NotFound):
        return await cluster.client.get(resource, name, namespace)
    return None


# --- taints -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def rule(cluster, effect="NoExecute", **selector):
    """Taint devices by a rule, for the time of the block."""
    name = f"rule-{cluster.number}"
    taint = {"key": "example.com/broken", "value": "yes", "effect": effect}
    selector = {"driver": cluster.driver, **selector}
    body = {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}
    await cluster.client.create(kinds.TAINT_RULES, body)
    try:
        yield name
    finally:
        await cluster.client.delete(kinds.TAINT_RULES, name)


async def reports(cluster, name, status, reason, *texts):
    """Wait until a rule says so; what it says first may be of a moment ago."""

    async def check():
        found = await cluster.client.get(kinds.TAINT_RULES, name)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return any(
            (each["type"], each["status"], each["reason"]) == ("EvictionInProgress", status, reason)
            and all(text in each["message"] for text in texts)
            for each in conditions
        )

    await cluster.until(check, f"rule {name}: {status} {reason} {texts}", SOON)


def tolerant(cluster, seconds=None):
    """A request that tolerates the taint, for so many seconds."""
    toleration = {"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute"}
    if seconds is not None:
        toleration["tolerationSeconds"] = seconds
    return {"name": "r", "deviceClassName": cluster.gpu, "tolerations": [toleration]}


async def test_a_taint_evicts_who_does_not_tolerate_it_and_nobody_else(controlled):
    async with furnished(controlled, devices=3) as cluster:
        await cluster.template("patient", tolerant(cluster, 600))
        await cluster.template("stoic", tolerant(cluster))
        for name in ("gpu", "patient", "stoic"):
            await cluster.pod(f"{name}-pod", templates=[name])
            await cluster.bound(f"{name}-pod", SOON)
        # With a finalizer the pod stays visible, and so does the reason.
        keep = {"metadata": {"finalizers": ["example.com/keep"]}}
        await cluster.client.patch(kinds.PODS, "gpu-pod", keep, cluster.namespace)
        async with rule(cluster) as name:

            async def evicted():
                pod = await cluster.get_pod("gpu-pod")
                return pod if pod["metadata"].get("deletionTimestamp") else None

            pod = await cluster.until(evicted, "eviction", SOON)
            [reason] = [each for each in pod["status"]["conditions"] if each["type"] == "DisruptionTarget"]
            assert reason["reason"] == "DeletionByDeviceTaintManager"
            await cluster.client.patch(
                kinds.PODS, "gpu-pod", {"metadata": {"finalizers": None}}, cluster.namespace
            )
            await gone(cluster, kinds.PODS, "gpu-pod", cluster.namespace)
            for other in ("patient-pod", "stoic-pod"):
                assert "deletionTimestamp" not in (await cluster.get_pod(other))["metadata"]
            await reports(cluster, name, "True", "PodsPendingEviction")


async def test_toleration_seconds_are_waited_for(controlled):
    async with furnished(controlled, devices=1) as cluster:
        await cluster.template("brief", tolerant(cluster, 2))
        await cluster.pod("p", templates=["brief"])
        await cluster.bound("p", SOON)
        async with rule(cluster) as name:
            added = (await cluster.client.get(kinds.TAINT_RULES, name))["spec"]["taint"]["timeAdded"]
            await gone(cluster, kinds.PODS, "p", cluster.namespace)
            stayed = datetime.now(UTC) - datetime.fromisoformat(added.replace("Z", "+00:00"))
            assert stayed >= timedelta(seconds=2)


async def test_a_taint_in_the_slice_evicts_too(controlled):
    async with furnished(controlled, devices=1) as cluster:
        await cluster.pod("p", templates=["gpu"])
        await cluster.bound("p", SOON)
        claim = (await cluster.claim_of("p"))["metadata"]["name"]
        found = next(
            each
            for each in (await cluster.client.list(kinds.SLICES)).items
            if each["spec"]["driver"] == cluster.driver
        )
        found["spec"]["devices"][0]["taints"] = [{"key": "example.com/hot", "effect": "NoExecute"}]
        await cluster.client.update(kinds.SLICES, found["metadata"]["name"], found)
        await gone(cluster, kinds.PODS, "p", cluster.namespace)
        await gone(cluster, kinds.CLAIMS, claim, cluster.namespace)


async def test_a_dry_run_tells_what_would_happen_and_touches_nobody(controlled):
    async with furnished(controlled, devices=3) as cluster:
        for name in ("p", "q"):
            await cluster.pod(name, templates=["gpu"])
            await cluster.bound(name, SOON)
        async with rule(cluster, effect="None") as name:
            selected = "3 published devices selected. 2 allocated devices selected."
            evicted = "2 pods would be evicted in 1 namespace "
            await reports(cluster, name, "False", "NoEffect", selected, evicted)
            for pod in ("p", "q"):
                assert "deletionTimestamp" not in (await cluster.get_pod(pod))["metadata"]


# --- pool status and quota ----------------------------------------------------------


@contextlib.asynccontextmanager
async def pool_status(cluster, **spec):
    """Ask for the status of this test's pools, for the time of the block.

    The answer is what the controller has seen so far, and stays: ask again until it has seen enough.
    """
    name = f"ask-{cluster.number}-{uuid.uuid4().hex[:6]}"
    body = {"metadata": {"name": name}, "spec": {"driver": cluster.driver, **spec}}
    await cluster.client.create(kinds.POOL_STATUS_REQUESTS, body)
    try:

        async def answered():
            return (await cluster.client.get(kinds.POOL_STATUS_REQUESTS, name)).get("status")

        yield await cluster.until(answered, "an answer")
    finally:
        await cluster.client.delete(kinds.POOL_STATUS_REQUESTS, name)


async def test_a_pool_status_request_is_answered_once(controlled):
    async with furnished(controlled, devices=3) as cluster:
        await cluster.pod("p", templates=["gpu"])
        await cluster.bound("p", SOON)
        wanted = {"totalDevices": 3, "allocatedDevices": 1, "availableDevices": 2, "unavailableDevices": 0}

        async def counted():
            async with pool_status(cluster) as status:
                assert [each["type"] for each in status["conditions"]] == ["Complete"]
                assert status["poolCount"] == len(status["pools"])
                return [{key: pool.get(key, 0) for key in wanted} for pool in status["pools"]] == [wanted]

        await cluster.until(counted, "the pools as they are", SOON)


async def test_a_quota_on_claims_and_devices_holds_and_is_counted(controlled):
    async with Cluster(controlled) as cluster:
        gpu = await cluster.device_class()
        claims, devices = "count/resourceclaims.resource.k8s.io", f"{gpu}.deviceclass.resource.k8s.io/devices"
        body = {"metadata": {"name": "q"}, "spec": {"hard": {claims: "3", devices: "4"}}}
        await cluster.client.create(kinds.RESOURCE_QUOTAS, body, cluster.namespace)

        async def used(wanted):
            async def check():
                found = await cluster.client.get(kinds.RESOURCE_QUOTAS, "q", cluster.namespace)
                return (found.get("status") or {}).get("used") == wanted

            await cluster.until(check, f"quota use {wanted}", SOON)

        await used({claims: "0", devices: "0"})
        await cluster.claim("two", {"name": "r", "deviceClassName": gpu, "count": 2})
        choice = [
            {"name": "big", "deviceClassName": gpu, "count": 2},
            {"name": "small", "deviceClassName": gpu},
        ]
        await cluster.claim("choice", {"name": "r", "firstAvailable": choice})
        await used({claims: "2", devices: "4"})
        with pytest.raises(Forbidden, match="exceeded quota"):
            await cluster.claim("one", {"name": "r", "deviceClassName": gpu})
        await cluster.client.delete(kinds.CLAIMS, "two", cluster.namespace)
        await used({claims: "1", devices: "2"})

        async def admitted():
            with contextlib.suppress(Forbidden):  # the server's own view of the quota may be a moment old
                return await cluster.claim("one", {"name": "r", "deviceClassName": gpu})

        await cluster.until(admitted, "room for another claim", SOON)
        await used({claims: "2", devices: "3"})


# --- garbage --------------------------------------------------------------------------


async def config_map(cluster, name, *owners, block=False):
    """Make an object that the others own."""
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **({"blockOwnerDeletion": True} if block else {}),
        }
        for owner in owners
    ]
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": references},
    }
    return await cluster.client.create(kinds.CONFIG_MAPS, body, cluster.namespace)


async def remove(cluster, name, propagation):
    await cluster.client.delete(kinds.CONFIG_MAPS, name, cluster.namespace, propagation=propagation)


async def test_what_nobody_owns_any_more_is_deleted_generation_by_generation(controlled):
    async with Cluster(controlled) as cluster:
        root = await config_map(cluster, "root")
        child = await config_map(cluster, "child", root)
        await config_map(cluster, "grandchild", child)
        other = await config_map(cluster, "other")
        await config_map(cluster, "shared", root, other)
        await remove(cluster, "root", "Background")
        for name in ("child", "grandchild"):
            await gone(cluster, kinds.CONFIG_MAPS, name, cluster.namespace)

        async def let_go():
            shared = await cluster.client.get(kinds.CONFIG_MAPS, "shared", cluster.namespace)
            names = [each["name"] for each in shared["metadata"]["ownerReferences"]]
            return names == ["other"]

        await cluster.until(let_go, "shared is other's alone", SOON)


async def test_in_the_foreground_the_owner_goes_last(controlled):
    async with Cluster(controlled) as cluster:
        root = await config_map(cluster, "root")
        await config_map(cluster, "child", root, block=True)
        keep = {"metadata": {"finalizers": ["example.com/keep"]}}
        await cluster.client.patch(kinds.CONFIG_MAPS, "child", keep, cluster.namespace)
        await remove(cluster, "root", "Foreground")

        async def child_is_leaving():
            child = await exists(cluster, kinds.CONFIG_MAPS, "child", cluster.namespace)
            return child["metadata"].get("deletionTimestamp")

        await cluster.until(child_is_leaving, "the child is being deleted", SOON)
        assert await exists(cluster, kinds.CONFIG_MAPS, "root", cluster.namespace), "the owner waits"
        done = {"metadata": {"finalizers": None}}
        await cluster.client.patch(kinds.CONFIG_MAPS, "child", done, cluster.namespace)
        await gone(cluster, kinds.CONFIG_MAPS, "child", cluster.namespace)
        await gone(cluster, kinds.CONFIG_MAPS, "root", cluster.namespace)


async def test_orphans_live_on(controlled):
    async with Cluster(controlled) as cluster:
        root = await config_map(cluster, "root")
        await config_map(cluster, "child", root)
        await remove(cluster, "root", "Orphan")
        await gone(cluster, kinds.CONFIG_MAPS, "root", cluster.namespace)
        child = await cluster.client.get(kinds.CONFIG_MAPS, "child", cluster.namespace)
        assert not child["metadata"].get("ownerReferences")


async def test_custom_kinds_own_and_are_owned(controlled):
    async with Cluster(controlled) as cluster:
        group = f"case{cluster.number}.example.com"
        widgets = kinds.Resource(group, "v1", "widgets", "Widget")
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        definition = {
            "metadata": {"name": f"widgets.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {
                    "plural": "widgets",
                    "singular": "widget",
                    "kind": "Widget",
                    "listKind": "WidgetList",
                },
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }
        await cluster.client.create(kinds.CUSTOM_RESOURCE_DEFINITIONS, definition)
        cluster._made.append((kinds.CUSTOM_RESOURCE_DEFINITIONS, f"widgets.{group}"))
        body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}}

        async def made():
            with contextlib.suppress(NotFound):
                return await cluster.client.create(widgets, body, cluster.namespace)
            return None

        widget = await cluster.until(made, "widgets are served", SOON)
        child = await config_map(cluster, "child", widget)
        owner = {key: child[key] for key in ("apiVersion", "kind")}
        owner |= {key: child["metadata"][key] for key in ("name", "uid")}
        grandchild = {**body, "metadata": {"name": "grandchild", "ownerReferences": [owner]}}
        await cluster.client.create(widgets, grandchild, cluster.namespace)
        await cluster.client.delete(widgets, "w", cluster.namespace)
        await gone(cluster, kinds.CONFIG_MAPS, "child", cluster.namespace)
        await gone(cluster, widgets, "grandchild", cluster.namespace)


async def test_a_deleted_namespace_is_emptied_first(controlled):
    async with furnished(controlled) as cluster:
        space = f"doomed-{cluster.number}"
        await cluster.client.create(kinds.NAMESPACES, {"metadata": {"name": space}})

        async def has_account():
            return await exists(cluster, kinds.SERVICE_ACCOUNTS, "default", space)

        await cluster.until(has_account, "the default account", SOON)
        spec = claim_spec({"name": "r", "deviceClassName": cluster.gpu})
        await cluster.client.create(kinds.CLAIMS, {"metadata": {"name": "c"}, "spec": spec}, space)
        await cluster.client.create(kinds.CONFIG_MAPS, {"metadata": {"name": "m"}}, space)
        pod = {
            "metadata": {"name": "p"},
            "spec": {
                "schedulerName": cluster.scheduler_name,
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "c"}]}}],
                "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        await cluster.client.create(kinds.PODS, pod, space)

        async def bound():
            return (await cluster.client.get(kinds.PODS, "p", space))["spec"].get("nodeName")

        await cluster.until(bound, "the pod is bound", SOON)
        await cluster.client.delete(kinds.NAMESPACES, space)
        await gone(cluster, kinds.NAMESPACES, space)


# --- nodes ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def impatient_lifecycle(cluster, clock=lambda: datetime.now(UTC), *, grace=4):
    """Run the node controller in this process: some seconds of silence are too long for it."""
    client = Client.connect(cluster.peer.kubeconfig)
    caches = Caches(client)
    controller = NodeLifecycle(caches, clock, NodeMonitoring(grace, period=0.5), lost_node_grace=0.5)
    task = asyncio.create_task(run_controllers(caches, [controller]))
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def beat(cluster, *nodes):
    """Renew the leases of nodes."""
    while True:
        for node in nodes:
            spec = {"renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())}
            spec["holderIdentity"] = str(time.monotonic())
            try:
                await cluster.client.patch(kinds.LEASES, node, {"spec": spec}, "kube-node-lease")
            except NotFound:
                body = {"metadata": {"name": node}, "spec": spec}
                with contextlib.suppress(NotFound):
                    await cluster.client.create(kinds.LEASES, body, "kube-node-lease")
        await asyncio.sleep(0.3)


async def lease_namespace(cluster):
    if not await exists(cluster, kinds.NAMESPACES, "kube-node-lease"):
        await cluster.client.create(kinds.NAMESPACES, {"metadata": {"name": "kube-node-lease"}})


def leaves_at_once():
    key = "node.kubernetes.io/unreachable"
    return [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]


async def taints_of(cluster, node):
    found = await cluster.client.get(kinds.NODES, node)
    return {(each["key"], each["effect"]) for each in found["spec"].get("taints") or ()}


async def test_a_silent_node_is_tainted_its_pods_leave_and_their_devices_are_free(controlled):
    async with furnished(controlled, devices=1) as cluster:
        silent, lively = f"a-{cluster.number}", await cluster.node("b")
        await lease_namespace(cluster)
        await cluster.claim("shared", {"name": "r", "deviceClassName": cluster.gpu})
        await cluster.pod("p", claims=["shared"], tolerations=leaves_at_once())
        assert await cluster.bound("p", SOON) == "a"
        beating = asyncio.create_task(beat(cluster, lively))
        try:
            async with impatient_lifecycle(cluster):
                await gone(cluster, kinds.PODS, "p", cluster.namespace)
                await claim_when(cluster, "shared", is_free, "free")
                assert ("node.kubernetes.io/unreachable", "NoExecute") in await taints_of(cluster, silent)
                assert not any(
                    key.startswith("node.kubernetes.io/un") for key, _ in await taints_of(cluster, lively)
                )
        finally:
            beating.cancel()


async def test_a_wall_clock_that_jumps_costs_no_node_its_life(controlled):
    async with Cluster(controlled) as cluster:
        node = await cluster.node("a")
        await lease_namespace(cluster)
        offset = timedelta(0)
        beating = asyncio.create_task(beat(cluster, node))
        try:
            clock = lambda: datetime.now(UTC) + offset  # noqa: E731
            async with impatient_lifecycle(cluster, clock, grace=30) as controller:
                for hours in (5, -5, 48):
                    offset = timedelta(hours=hours)
                    before = controller._heard.get(node, 0.0)

                    async def heard_again(before=before):
                        controller.enqueue(f"node:{node}")
                        return controller._heard.get(node, 0.0) > before

                    await cluster.until(heard_again, "a heartbeat", SOON)
                    await asyncio.sleep(0)
                    assert not {key for key, _ in await taints_of(cluster, node)}
        finally:
            beating.cancel()


async def test_pods_of_a_node_that_is_gone_are_cleaned_up(controlled):
    async with furnished(controlled, devices=1) as cluster:
        await cluster.pod("p", templates=["gpu"], terminationGracePeriodSeconds=30)
        await cluster.bound("p", SOON)
        claim = (await made_claim(cluster, "p"))["metadata"]["name"]
        async with impatient_lifecycle(cluster):
            await cluster.client.delete(kinds.NODES, f"a-{cluster.number}")
            await gone(cluster, kinds.PODS, "p", cluster.namespace)
        await gone(cluster, kinds.CLAIMS, claim, cluster.namespace)
