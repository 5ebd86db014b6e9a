"""Which claims a pod has, whether it may use them, and what each container of it sees; and a disk that is full."""

import asyncio

import msgspec
import pytest
from node_builders import add_pod, eventually
from test_node_agent import Cluster

from dray.api.podspec import RunPod
from dray.api.resource import ResourceClaim
from dray.node.claims import ClaimKey, ClaimRefused
from dray.node.preparing import claim_names, container_references, facts_of, refuse_unfit

KEY = ClaimKey("ns", "c")


def pod(claims=(), statuses=(), containers=(), **more):
    status = {"resourceClaimStatuses": list(statuses), **more.pop("status", {})}
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"},
            "spec": {"resourceClaims": list(claims), "containers": list(containers), **more},
            "status": status,
        },
        RunPod,
    )


def claim(
    results=({"request": "r", "driver": "d", "pool": "p", "device": "x"},),
    reserved=("pod-uid",),
    owner=None,
    **more,
):
    metadata = {"name": "c", "namespace": "ns", "uid": "claim-uid"}
    if owner:
        metadata["ownerReferences"] = [
            {"uid": owner, "controller": True, "kind": "Pod", "name": "p", "apiVersion": "v1"}
        ]
    status = {"reservedFor": [{"resource": "pods", "name": "p", "uid": uid} for uid in reserved], **more}
    if results is not None:
        status["allocation"] = {"devices": {"results": list(results)}}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


def test_claims_come_by_name_from_templates_and_from_extended_resources():
    found = pod(
        [
            {"name": "a", "resourceClaimName": "named"},
            {"name": "b", "resourceClaimTemplateName": "t"},
            {"name": "n", "resourceClaimTemplateName": "t"},
        ],
        [{"name": "b", "resourceClaimName": "made"}, {"name": "n"}],
        status={"extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": []}},
    )
    assert list(claim_names(found)) == [
        (ClaimKey("ns", "named"), False),
        (ClaimKey("ns", "made"), True),
        (ClaimKey("ns", "extended"), True),
    ]


def test_a_template_claim_that_was_not_made_yet_is_waited_for():
    with pytest.raises(ClaimRefused, match="not made from its template yet"):
        list(claim_names(pod([{"name": "b", "resourceClaimTemplateName": "t"}])))


def test_containers_refer_to_claims_and_requests():
    containers = [
        {"name": "one", "resources": {"claims": [{"name": "a"}, {"name": "b", "request": "left"}]}},
        {"name": "two"},
    ]
    mappings = [{"containerName": "two", "resourceName": "example.com/gpu", "requestName": "container-0"}]
    found = pod(
        [{"name": "a", "resourceClaimName": "named"}, {"name": "b", "resourceClaimTemplateName": "t"}],
        [{"name": "b", "resourceClaimName": "made"}],
        containers,
        status={
            "extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": mappings}
        },
    )
    assert container_references(found, "one") == [
        (ClaimKey("ns", "named"), ""),
        (ClaimKey("ns", "made"), "left"),
    ]
    assert container_references(found, "two") == [(ClaimKey("ns", "extended"), "container-0")]


@pytest.mark.parametrize(
    ("found", "is_from_template", "message"),
    [
        (claim(results=None), False, "not allocated"),
        (claim(reserved=["other"]), False, "reservedFor"),
        (claim(owner="other-pod"), True, "was not made for pod"),
        (claim(), True, "owned by nobody"),
    ],
)
def test_claims_that_a_pod_may_not_use(found, is_from_template, message):
    with pytest.raises(ClaimRefused, match=message):
        refuse_unfit(pod(), KEY, found, is_from_template)


def test_claims_that_a_pod_may_use():
    refuse_unfit(pod(), KEY, claim(), False)
    refuse_unfit(pod(), KEY, claim(owner="pod-uid"), True)
    group = claim(reserved=[])
    group = msgspec.structs.replace(
        group,
        status=msgspec.convert(
            {
                "allocation": {"devices": {"results": []}},
                "reservedFor": [
                    {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "g"}
                ],
            },
            type(group.status),
        ),
    )
    refuse_unfit(pod(schedulingGroup={"podGroupName": "gang"}), KEY, group, False)
    with pytest.raises(ClaimRefused):
        refuse_unfit(pod(schedulingGroup={"podGroupName": "another"}), KEY, group, False)


def test_an_operation_is_skipped_only_if_every_device_of_the_driver_says_so():
    def result(driver, *skips):
        return {
            "request": "r",
            "driver": driver,
            "pool": "p",
            "device": "x",
            "skipNodeOperations": list(skips),
        }

    facts = facts_of(
        KEY,
        claim(
            [
                result("both", "*"),
                result("half", "*"),
                result("half"),
                result("after", "NodeUnprepareResources"),
            ]
        ),
    )
    assert facts.drivers == ["both", "half", "after"]
    assert facts.skips_prepare == {"both"}
    assert facts.skips_unprepare == {"both", "after"}


async def test_a_pod_waits_while_the_disk_is_full_and_runs_when_it_is_not(tmp_path, monkeypatch):
    cluster = Cluster(tmp_path)
    from dray.node import checkpoint

    real = checkpoint.write_atomically
    is_full = True

    def write(*args, **kwargs):
        if is_full:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "write_atomically", write)
    async with cluster.up():
        add_pod(cluster.api)
        await eventually(lambda: any("No space left" in text for text in cluster.events()))
        assert cluster.driver.calls == []  # nobody is asked to prepare what could be forgotten
        is_full = False
        await cluster.phase("Running")
        is_full = True
        await cluster.delete(grace=1)
        await asyncio.sleep(0.5)
        is_full = False
        await cluster.gone()
        assert cluster.agent.records.infos == {}


async def test_a_driver_without_space_refuses_and_recovers(tmp_path, monkeypatch):
    cluster = Cluster(tmp_path)
    from dray.driver import state

    real = state.write_atomically
    is_full = True

    def write(*args, **kwargs):
        if is_full:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(state, "write_atomically", write)
    async with cluster.up():
        add_pod(cluster.api)
        await eventually(lambda: any("dray-state.json: No space left" in text for text in cluster.events()))
        assert cluster.driver.calls == []
        is_full = False
        await cluster.phase("Running")
