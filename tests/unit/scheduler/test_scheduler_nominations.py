"""Nodes that are kept for pods that wait: tried first by them, left to them by others, shared where there is room."""

import pytest
from scheduler_builders import container, node, pod

from dray.api.features import Features
from dray.scheduler import ClusterSnapshot, Nomination, QueueingHint, SchedulerProfile, Unplaceable, decide


class Cluster:
    def __init__(self, **cpus):
        self.snapshot = ClusterSnapshot(
            SchedulerProfile(features=Features.default()), new_share_id=lambda: "share"
        )
        for name, cpu in cpus.items():
            self.snapshot.set_node(node(name, cpu=cpu))

    def keep(self, name, where, cpu="1", priority=0, **spec):
        """Let a pod wait for whom a node is kept."""
        waiting = wanting(name, cpu, priority, **spec)
        self.snapshot.nominated[waiting.metadata.uid] = Nomination(waiting, where)
        return waiting

    def where(self, wanted):
        """Return the node that a pod gets, or its refusal; deciding must leave everything as it was."""
        decision = decide(wanted, self.snapshot)
        assert not any(any(each.used.values()) for each in self.snapshot.state.nodes.values())
        assert not self.snapshot.state.pods
        return decision if isinstance(decision, Unplaceable) else decision[0].placement.node


def wanting(name, cpu="1", priority=0, **spec):
    return pod(name, priority=priority, containers=[container(cpu=cpu)], **spec)


def test_a_pod_goes_to_the_node_that_is_kept_for_it_if_it_fits():
    cluster = Cluster(a="2", b="8")
    assert cluster.where(wanting("p")) == "b", "the emptier one"
    assert cluster.where(cluster.keep("p", "a")) == "a"
    assert cluster.where(cluster.keep("p", "a", "4")) == "b"
    assert cluster.where(cluster.keep("p", "gone")) == "b"


@pytest.mark.parametrize(("priority", "to"), [(10, "small"), (5, "small"), (0, "large")])
def test_only_those_who_matter_less_or_as_much_keep_off(priority, to):
    cluster = Cluster(small="1", large="4")
    cluster.keep("other", "large", "4", priority)
    assert cluster.where(wanting("p", priority=5)) == to


def test_what_the_others_do_not_need_may_be_used():
    cluster = Cluster(a="4")
    cluster.keep("other", "a", "3", 10)
    assert cluster.where(wanting("p", "1")) == "a"
    refusal = cluster.where(wanting("p", "2"))
    assert refusal.explain() == "0/1 nodes: all that could take the pod are kept for more important pods"
    assert QueueingHint.RESOURCES in refusal.hints, "it waits for the end of the nomination"


def test_pods_that_both_may_need_devices_do_not_share():
    cluster = Cluster(a="4", b="1")
    claims = [{"name": "c", "resourceClaimName": "x"}]
    cluster.keep("other", "a", "1", 10, resource_claims=claims)
    assert cluster.where(wanting("p", "2")) == "a"
    gpu = pod("q", priority=0, containers=[container(cpu="2", **{"example.com/gpu": "1"})])
    assert isinstance(cluster.where(gpu), Unplaceable)


def test_members_of_a_group_do_not_keep_each_other_away():
    cluster = Cluster(a="1", b="8")
    group = {"scheduling_group": {"podGroupName": "gang"}}
    cluster.keep("g0", "b", "8", **group)
    assert cluster.where(wanting("g1", "2", **group)) == "b"


def test_rules_about_other_pods_hold_without_those_that_are_not_there_yet():
    cluster = Cluster(a="8")
    waiting = cluster.keep("other", "a", priority=10)
    waiting.metadata.labels["app"] = "x"
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert isinstance(cluster.where(wanting("p", affinity=near)), Unplaceable)
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert isinstance(cluster.where(wanting("p", affinity=away)), Unplaceable)
