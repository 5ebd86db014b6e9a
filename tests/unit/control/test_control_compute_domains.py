"""ComputeDomains: what the controller makes, how daemons join cliques, and that nothing outlives a domain."""

import asyncio
import contextlib

import msgspec
from conditions import until
from hypothesis import given
from hypothesis import strategies as st
from small_api import SmallApi

from dray.api.compute_domains import MAX_NODES, NAMESPACE, CliqueDaemon, ComputeDomain, DomainNode
from dray.api.core import Pod
from dray.control.compute_domains import ComputeDomainController
from dray.control.compute_domains.desired import (
    clique_daemons,
    daemon_set,
    daemon_template,
    daemons_at_work,
    domain_nodes,
    overall_status,
    workload_template,
)
from dray.control.reconcile_loop import Caches, run_controllers

LABEL = "resource.nvidia.com/computeDomain"
CLIQUE = "rack-1.7"
DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/team/computedomains"
CLIQUES = f"/apis/resource.nvidia.com/v1beta1/namespaces/{NAMESPACE}/computedomaincliques"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def domain(**spec):
    channel = {"resourceClaimTemplate": {"name": "channel"}, "allocationMode": "Single"}
    body = {
        "metadata": {"name": "job", "namespace": "team", "uid": "u1"},
        "spec": {"channel": channel, **spec},
    }
    return msgspec.convert(body, ComputeDomain)


def daemon(node, ready=True, ip="10.0.0.1", **metadata):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    body = {
        "metadata": {"name": f"daemon-{node}", "namespace": NAMESPACE, "uid": node, **metadata},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": ip, "conditions": conditions},
    }
    return msgspec.convert(body, Pod)


# --- what is made -----------------------------------------------------------------


def test_the_templates_name_the_domain_in_their_configs():
    workload, daemons = workload_template(domain()), daemon_template(domain())
    assert (workload["metadata"]["namespace"], workload["metadata"]["name"]) == ("team", "channel")
    assert daemons["metadata"]["namespace"] == NAMESPACE
    for template, kind, device_class in (
        (workload, "ComputeDomainChannelConfig", "compute-domain-default-channel.nvidia.com"),
        (daemons, "ComputeDomainDaemonConfig", "compute-domain-daemon.nvidia.com"),
    ):
        devices = template["spec"]["spec"]["devices"]
        parameters = devices["config"][0]["opaque"]["parameters"]
        assert (parameters["kind"], parameters["domainID"]) == (kind, "u1")
        assert devices["requests"][0]["exactly"]["deviceClassName"] == device_class
        assert template["metadata"]["finalizers"] == [LABEL]
    assert (
        workload["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["allocationMode"] == "Single"
    )


def test_daemons_run_only_on_nodes_of_their_domain():
    spec = daemon_set(domain())["spec"]
    assert spec["template"]["spec"]["nodeSelector"] == {LABEL: "u1"} == spec["selector"]["matchLabels"]
    assert (
        spec["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        == "computedomain-daemon-u1"
    )


# --- cliques ------------------------------------------------------------------------


def test_daemons_that_end_or_have_no_address_do_not_count():
    pods = [
        daemon("b"),
        daemon("a"),
        daemon("c", ip=""),
        daemon("d", deletionTimestamp="2026-01-01T00:00:00Z"),
    ]
    assert [pod.spec.node_name for pod in daemons_at_work(pods)] == ["a", "b"]


def test_a_newcomer_takes_the_lowest_free_index():
    before = clique_daemons([], [daemon("a"), daemon("b"), daemon("c")], CLIQUE)
    after = clique_daemons(before, [daemon("a"), daemon("c"), daemon("d")], CLIQUE)
    assert [(each.node_name, each.index) for each in after] == [("a", 0), ("d", 1), ("c", 2)]


@given(st.lists(st.sets(st.sampled_from([f"n{number}" for number in range(25)])), max_size=6))
def test_a_daemon_keeps_its_index_for_as_long_as_it_stays(rounds):
    daemons = []
    for nodes in rounds:
        known = {each.node_name: each.index for each in daemons}
        daemons = clique_daemons(daemons, [daemon(node) for node in sorted(nodes)], CLIQUE)
        indexes = [each.index for each in daemons]
        assert len(set(indexes)) == len(indexes) == min(len(nodes), MAX_NODES)
        assert all(0 <= index < MAX_NODES for index in indexes)
        assert all(each.index == known.get(each.node_name, each.index) for each in daemons)


def test_the_status_is_ready_when_enough_nodes_are():
    ready = domain_nodes({CLIQUE: [CliqueDaemon(node_name="a", status="Ready")]}, [daemon("b")])
    assert [(node.name, node.clique_id, node.index) for node in ready] == [("a", CLIQUE, 0), ("b", "", -1)]
    assert overall_status(domain(numNodes=2), ready) == "Ready"
    assert overall_status(domain(numNodes=3), ready) == "NotReady"
    assert overall_status(domain(), []) == "Ready"
    assert overall_status(domain(), [*ready, DomainNode(name="c")]) == "NotReady"


# --- the loop -------------------------------------------------------------------------


class Cluster:
    """The controller beside a small API server; pods and labels are set by the test."""

    def __init__(self):
        self.api = SmallApi()
        for name, clique in (("tray-1", CLIQUE), ("tray-2", CLIQUE), ("plain", "")):
            labels = {"nvidia.com/gpu.clique": clique} if clique else {}
            self.api.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}, "spec": {}})

    def make(self, **spec):
        channel = {"resourceClaimTemplate": {"name": "channel"}, "allocationMode": "All"}
        body = {"kind": "ComputeDomain", "spec": {"channel": channel, **spec}, "status": {}}
        return self.api.put(f"{DOMAINS}/job", body)["metadata"]["uid"]

    def add_daemon(self, uid, node, ready=True):
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        body = {
            "kind": "Pod",
            "metadata": {"labels": {LABEL: uid}},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions},
        }
        self.api.put(f"{PODS}/daemon-{node}", body)

    @contextlib.asynccontextmanager
    async def running(self):
        caches = Caches(self.api.client())
        work = asyncio.create_task(run_controllers(caches, [ComputeDomainController(caches)]))
        try:
            yield self
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def until(self, look):
        await until(look, 10)

    def status(self):
        return self.api.objects[f"{DOMAINS}/job"].get("status", {})

    def has(self, *paths):
        return all(path in self.api.objects for path in paths)


async def test_a_domain_gets_its_objects_and_reports_its_daemons():
    async with Cluster().running() as cluster:
        uid = cluster.make(numNodes=2)
        mine = (
            f"{SETS}/computedomain-daemon-{uid}",
            f"{TEMPLATES.format(NAMESPACE)}/computedomain-daemon-{uid}",
            f"{TEMPLATES.format('team')}/channel",
        )
        await cluster.until(lambda: cluster.has(*mine) and cluster.status().get("status") == "NotReady")
        cluster.add_daemon(uid, "tray-1")
        cluster.add_daemon(uid, "plain")
        await cluster.until(lambda: cluster.status().get("status") == "Ready")
        assert [(node["name"], node["cliqueID"], node["index"]) for node in cluster.status()["nodes"]] == [
            ("tray-1", CLIQUE, 0),
            ("plain", "", -1),
        ]
        clique = cluster.api.objects[f"{CLIQUES}/{uid}.{CLIQUE}"]
        assert [each["nodeName"] for each in clique["daemons"]] == ["tray-1"]
        pod = cluster.api.objects[f"{PODS}/daemon-tray-1"]
        assert pod["metadata"]["labels"]["resource.nvidia.com/computeDomain.cliqueID"] == CLIQUE


async def test_a_deleted_domain_leaves_nothing_behind():
    async with Cluster().running() as cluster:
        uid = cluster.make()
        await cluster.until(
            lambda: cluster.has(f"{TEMPLATES.format('team')}/channel", f"{SETS}/computedomain-daemon-{uid}")
        )
        cluster.add_daemon(uid, "tray-1")
        await cluster.until(lambda: cluster.has(f"{CLIQUES}/{uid}.{CLIQUE}"))
        client = cluster.api.client()
        from dray.client.resources import NODES

        await client.patch(NODES, "tray-1", {"metadata": {"labels": {LABEL: uid}}})
        from dray.control.compute_domains.controller import DOMAINS as RESOURCE

        await client.delete(RESOURCE, "job", "team")
        await cluster.until(lambda: not cluster.has(f"{DOMAINS}/job"))
        left = [path for path in cluster.api.objects if "/nodes/" not in path and "/pods/" not in path]
        assert left == []
        assert LABEL not in cluster.api.objects["/api/v1/nodes/tray-1"]["metadata"]["labels"]


async def test_the_label_of_a_domain_that_does_not_exist_is_removed():
    cluster = Cluster()
    node = cluster.api.objects["/api/v1/nodes/tray-2"]
    node["metadata"]["labels"][LABEL] = "gone"
    async with cluster.running():
        await cluster.until(
            lambda: LABEL not in cluster.api.objects["/api/v1/nodes/tray-2"]["metadata"]["labels"]
        )


async def test_a_template_of_somebody_else_is_left_alone_and_told():
    cluster = Cluster()
    cluster.api.put(f"{TEMPLATES.format('team')}/channel", {"spec": {}})
    async with cluster.running():
        cluster.make()
        await cluster.until(lambda: any("/events/" in path for path in cluster.api.objects))
    assert cluster.api.objects[f"{TEMPLATES.format('team')}/channel"]["spec"] == {}
    (event,) = [each for path, each in cluster.api.objects.items() if "/events/" in path]
    assert "does not belong to this ComputeDomain" in event["message"]
