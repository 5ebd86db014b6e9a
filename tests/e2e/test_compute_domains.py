"""ComputeDomains on a rack of simulated GB200 trays: channels, daemons, cliques, gangs, and the end of it all."""

import asyncio

import pytest
from device_features import RunningUp, make, make_namespace, pod_body, printed, wait_for

from dray.api.compute_domains import NAMESPACE, ComputeDomain
from dray.api.core import Node, Pod
from dray.client import Client, NotFound, Resource
from dray.client.resources import CLAIM_TEMPLATES, CLAIMS, DAEMON_SETS, EVENTS, NODES, POD_GROUPS, PODS

DOMAINS = Resource("resource.nvidia.com", "v1beta1", "computedomains", "ComputeDomain")
CLIQUES = Resource("resource.nvidia.com", "v1beta1", "computedomaincliques", "ComputeDomainClique")
LABEL = "resource.nvidia.com/computeDomain"
USE = {"claims": [{"name": "channel"}]}
ENTRY = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "channel"}]}


@pytest.fixture(scope="module")
def rack(tmp_path_factory):
    running = RunningUp(
        tmp_path_factory.mktemp("rack"), "gb200-tray:4", arguments=["--feature-gates", "GenericWorkload=true"]
    )
    yield running
    running.stop()


@pytest.fixture
async def client(rack):
    async with Client.connect(rack.kubeconfig) as client:
        yield client


async def make_domain(client, namespace, **spec):
    channel = {"resourceClaimTemplate": {"name": "channel"}, **spec.pop("channel", {})}
    body = {
        "apiVersion": DOMAINS.api_version,
        "kind": DOMAINS.kind,
        "metadata": {"name": "domain", "namespace": namespace},
        "spec": {"channel": channel, **spec},
    }
    made = await client.create(DOMAINS, body, namespace)
    return made["metadata"]["uid"]


async def domain_of(client, namespace):
    return await client.get(DOMAINS, "domain", namespace, view=ComputeDomain)


async def nothing_left(client, namespace, uid):
    """Delete the domain and its pods; everything of them goes, the node labels included."""
    pods = await client.list(PODS, namespace, view=Pod)
    for pod in pods.items:
        await client.delete(PODS, pod.metadata.name, namespace, grace_seconds=0)
    await client.delete(DOMAINS, "domain", namespace)

    async def gone():
        try:
            await domain_of(client, namespace)
        except NotFound:
            pass
        else:
            return False
        left = [
            each["metadata"]["name"]
            for resource, where in (
                (CLAIM_TEMPLATES, namespace),
                (CLAIMS, namespace),
                (CLAIM_TEMPLATES, NAMESPACE),
                (CLAIMS, NAMESPACE),
                (DAEMON_SETS, NAMESPACE),
                (CLIQUES, NAMESPACE),
                (PODS, NAMESPACE),
            )
            for each in (await client.list(resource, where)).items
            if (where == namespace and each["metadata"]["name"] != "gpus")
            or uid[:18] in each["metadata"]["name"]
        ]
        nodes = (await client.list(NODES, view=Node)).items
        labels = [(node.metadata.labels or {}).get(LABEL) for node in nodes]
        return not left and uid not in labels

    await wait_for(gone, f"something of ComputeDomain {uid} is left")


@pytest.mark.parametrize(("mode", "count"), [("Single", 1), ("All", 2048)])
async def test_a_pod_gets_its_channel_when_the_daemon_of_its_node_serves(client, mode, count):
    space = f"channel-{mode.lower()}"
    await make_namespace(client, space)
    uid = await make_domain(client, space, numNodes=1, channel={"allocationMode": mode})
    await make(client, pod_body("worker", space, "", USE, **ENTRY))
    await printed(client, "worker", space, (f"DRAY_IMEX_CHANNELS={count}",))
    node = (await client.get(PODS, "worker", space, view=Pod)).spec.node_name

    async def ready():
        domain = await domain_of(client, space)
        return domain.status.status == "Ready" and domain.status.nodes

    (entry,) = await wait_for(ready, "the domain is not ready")
    assert (entry.name, entry.index, entry.status) == (node, 0, "Ready")
    assert entry.clique_id.endswith(".2")
    daemons = (await client.list(PODS, NAMESPACE, view=Pod)).items
    (daemon,) = [pod for pod in daemons if (pod.metadata.labels or {}).get(LABEL) == uid]
    log = await printed(client, daemon.metadata.name, NAMESPACE, ("simulated IMEX daemon",))
    assert f"{space}/domain ({uid})" in log
    await nothing_left(client, space, uid)


async def test_a_gang_on_the_whole_rack_shares_one_domain(client):
    space = "gang"
    await make_namespace(client, space)
    uid = await make_domain(client, space, numNodes=4)
    gpus = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": space},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}
                    ]
                }
            }
        },
    }
    group = {
        "apiVersion": POD_GROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "workers", "namespace": space},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 4}}},
    }
    await make(client, gpus)
    await make(client, group)
    entries = [*ENTRY["resourceClaims"], {"name": "gpus", "resourceClaimTemplateName": "gpus"}]
    for number in range(4):
        use = {"claims": [{"name": "channel"}, {"name": "gpus"}]}
        body = pod_body(f"worker-{number}", space, "", use, resourceClaims=entries)
        body["spec"]["schedulingGroup"] = {"podGroupName": "workers"}
        await make(client, body)
    await asyncio.gather(
        *(
            printed(client, f"worker-{n}", space, ("DRAY_IMEX_CHANNELS=1", "DRAY_DEVICE_GPU_3="))
            for n in range(4)
        )
    )

    async def ready():
        domain = await domain_of(client, space)
        return domain if domain.status.status == "Ready" else None

    domain = await wait_for(ready, "the domain of the gang is not ready")
    assert sorted(node.index for node in domain.status.nodes) == [0, 1, 2, 3]
    assert {node.name for node in domain.status.nodes} == {f"gb200-tray-{number}" for number in range(1, 5)}
    await nothing_left(client, space, uid)


async def test_a_claim_of_another_namespace_is_refused(client):
    for space in ("owner", "thief"):
        await make_namespace(client, space)
    uid = await make_domain(client, "owner")
    config = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": uid,
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "stolen", "namespace": "thief"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "channel",
                        "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
                    }
                ],
                "config": [{"opaque": {"driver": "compute-domain.nvidia.com", "parameters": config}}],
            }
        },
    }
    await make(client, claim)
    entry = {"resourceClaims": [{"name": "channel", "resourceClaimName": "stolen"}]}
    await make(client, pod_body("worker", "thief", "", USE, **entry))

    async def told():
        events = await client.list(EVENTS, "thief")
        return any(
            "namespace is different than the ComputeDomain's" in each["message"] for each in events.items
        )

    await wait_for(told, "no event says why")
    await client.delete(PODS, "worker", "thief", grace_seconds=0)
    await nothing_left(client, "owner", uid)
