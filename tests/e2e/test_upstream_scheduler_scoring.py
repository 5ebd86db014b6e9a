"""Which nodes a pod prefers: Kubernetes' tests of scoring, in our own words.

Ported from test/integration/scheduler v1.37: scoring/priorities_test.go. docs/scheduler-upstream.md has the list, with those that are left out and why.
"""

import pytest
from test_upstream_scheduler_filters import FOUR, NOT_FIRST, S1, at, zones
from upstream_scheduler import (
    EXISTS_FOO,
    FOO,
    SCHEDULER,
    TWO,
    Case,
    Node,
    Pod,
    Rig,
    expression,
    judge,
    matching,
    prefer,
    rules,
    spread,
    taint,
    term,
    tolerating,
    toleration,
)

SOFT_ZONE, SOFT_NODE = (spread(1, key, action="ScheduleAnyway") for key in ("zone", "node"))
INCLUDED = {
    name: Node({**each.labels, **({} if name == "n4" else FOO)}, each.taints)
    for name, each in zones(["n2"]).items()
}
AT_FOUR = at("n1", "n2", "n2", "n4")
SCORING = [
    Case(
        "scoring/TestNodeAffinityScoring",
        {"a": Node(), "b": Node({"best": ""}), "c": Node()},
        {},
        Pod(
            {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 20, "preference": {"matchExpressions": [expression("best", "Exists")]}}
                        ]
                    }
                }
            }
        ),
        ("b",),
    ),
    Case(
        "scoring/TestPodAffinityScoring: near",
        TWO,
        {"q": Pod(labels=S1, node="b")},
        Pod(prefer("podAffinity", (50, term(matching(security="S1"))))),
        ("b",),
    ),
    Case(
        "scoring/TestPodAffinityScoring: namespace selector",
        TWO,
        {"q": Pod(labels=S1, node="b")},
        Pod(prefer("podAffinity", (50, term(matching(security="S1"), namespaceSelector={})))),
        ("b",),
    ),
    Case(
        "scoring/TestPodAffinityScoring: away with matchLabelKeys",
        TWO,
        {"q": Pod(labels={**FOO, "v": "1"}, node="a"), "r": Pod(labels={**FOO, "v": "2"}, node="b")},
        Pod(prefer("podAntiAffinity", (50, term(EXISTS_FOO, matchLabelKeys=["v"]))), {"v": "1"}),
        ("b",),
    ),
    Case(
        "scoring/TestPodAffinityScoring: near with mismatchLabelKeys",
        TWO,
        {"q": Pod(labels={**FOO, "v": "1"}, node="a"), "r": Pod(labels={**FOO, "v": "2"}, node="b")},
        Pod(prefer("podAffinity", (50, term(EXISTS_FOO, mismatchLabelKeys=["v"]))), {"v": "1"}),
        ("b",),
    ),
    Case(
        "scoring/TestTaintTolerationScoring: tolerated",
        {
            "a": Node(taints=(taint(effect="PreferNoSchedule"),)),
            "b": Node(taints=(taint("w", "PreferNoSchedule"),)),
        },
        {},
        Pod(tolerating(toleration(effect="PreferNoSchedule"))),
        ("a",),
    ),
    Case(
        "scoring/TestTaintTolerationScoring: not tolerated",
        {"a": Node(taints=(taint(effect="PreferNoSchedule"),)), "b": Node()},
        {},
        Pod(),
        ("b",),
    ),
    Case(
        "scoring/TestTaintTolerationScoring: greater",
        {
            "a": Node(taints=(taint("100", "PreferNoSchedule"),)),
            "b": Node(taints=(taint("10", "PreferNoSchedule"),)),
        },
        {},
        Pod(tolerating(toleration("Gt", "50", effect="PreferNoSchedule"))),
        ("a",),
    ),
    Case(
        "scoring/TestImageLocalityScoring",
        {"a": Node(), "b": Node(images=(("big:v1", 3_000_000_000),))},
        {},
        Pod({"containers": [{"name": "c", "image": "big:v1"}]}),
        ("b",),
    ),
    Case(
        "scoring/TestPodTopologySpreadScoring: ~0~/1/2/3",
        FOUR,
        at("n1", "n2", "n2", "n3", "n3", "n3"),
        Pod(rules(spread(1, "node", action="ScheduleAnyway"), **NOT_FIRST), FOO),
        ("n1",),
    ),
    Case(
        "scoring/TestPodTopologySpreadScoring: beside a required one, ~4~/0/1/2",
        FOUR,
        at("n0", "n0", "n0", "n0", "n2", "n3", "n3"),
        Pod(rules(spread(1, "node", action="ScheduleAnyway"), spread(1, "zone")), FOO),
        ("n2",),
    ),
    Case(
        "scoring/TestPodTopologySpreadScoring: matchLabelKeys",
        FOUR,
        {
            **at("n1", "n1"),
            "r": Pod(labels={**FOO, "bar": ""}, node="n2"),
            "s": Pod(labels={**FOO, "bar": ""}, node="n3"),
            "t": Pod(labels={**FOO, "bar": ""}, node="n0"),
        },
        Pod(rules(spread(1, "node", action="ScheduleAnyway", matchLabelKeys=["bar"])), {**FOO, "bar": ""}),
        ("n1",),
    ),
    Case(
        "scoring/TestNodeResourcesScoring: sidecars of placed pods count",
        {"a": Node(cpu="8"), "b": Node(cpu="8")},
        {
            "q": Pod(
                {
                    "initContainers": [
                        {
                            "name": "s",
                            "image": "pause",
                            "restartPolicy": "Always",
                            "resources": {"requests": {"cpu": "4"}},
                        }
                    ]
                },
                node="a",
            )
        },
        Pod(cpu="1"),
        ("b",),
    ),
    Case(
        "scoring/TestPodAffinityScoring: away with mismatchLabelKeys",
        TWO,
        {"q": Pod(labels={**FOO, "v": "1"}, node="a"), "r": Pod(labels={**FOO, "v": "2"}, node="b")},
        Pod(prefer("podAntiAffinity", (50, term(EXISTS_FOO, mismatchLabelKeys=["v"]))), {"v": "1"}),
        ("a",),
    ),
    Case(
        "scoring/TestPodAffinityScoring: near with matchLabelKeys",
        TWO,
        {"q": Pod(labels={**FOO, "v": "1"}, node="a"), "r": Pod(labels={**FOO, "v": "2"}, node="b")},
        Pod(prefer("podAffinity", (50, term(EXISTS_FOO, matchLabelKeys=["v"]))), {"v": "1"}),
        ("a",),
    ),
    Case("scoring/TestTaintTolerationScoring: no taints, no tolerations", TWO, {}, Pod(), ("a", "b")),
    Case(
        "scoring/TestPodTopologySpreadScoring: honor and ignore",
        INCLUDED,
        AT_FOUR,
        Pod(rules(SOFT_ZONE, SOFT_NODE, nodeSelector=FOO), FOO),
        ("n3",),
    ),
    Case(
        "scoring/TestPodTopologySpreadScoring: ignore and honor",
        INCLUDED,
        AT_FOUR,
        Pod(
            rules(
                {**SOFT_ZONE, "nodeAffinityPolicy": "Ignore"},
                {**SOFT_NODE, "nodeTaintsPolicy": "Honor"},
                nodeSelector=FOO,
            ),
            FOO,
        ),
        ("n3",),
    ),
    Case(
        "scoring/TestPodTopologySpreadScoring: matchLabelKeys with an empty selector",
        FOUR,
        at("n1", "n2", "n2", "n3", "n3", "n3"),
        Pod(rules(spread(1, "node", {}, action="ScheduleAnyway", matchLabelKeys=["foo"]), **NOT_FIRST), FOO),
        ("n1",),
    ),
]


@pytest.mark.parametrize("case", SCORING, ids=str)
async def test_a_pod_goes_where_upstream_prefers_it(api, case):
    await judge(api, case)


async def test_pods_of_a_service_are_spread_by_default(api):
    """scoring/TestDefaultPodTopologySpreadScoring: 300 pods over 20 nodes there, 24 over 6 nodes and 3 zones here."""
    if api.kind == "dray":
        pytest.skip("dray's server has no Services")
    async with Rig(api) as rig:
        zone = "topology.kubernetes.io/zone"
        await rig.furnish({f"n{number}": Node({zone: f"z{number % 3}"}) for number in range(6)})
        body = {"metadata": {"name": "web"}, "spec": {"selector": FOO, "ports": [{"port": 80}]}}
        await rig.client.call("POST", f"/api/v1/namespaces/{rig.namespace}/services", body, view=None)
        await rig.start_scheduler(**SCHEDULER)
        for number in range(24):
            await rig.run(f"p{number}", Pod(labels=FOO))
        nodes = await rig.where(*(f"p{number}" for number in range(24)))
        counts = [nodes.count(name) for name in set(nodes)]
        assert len(counts) == 6
        assert max(counts) - min(counts) <= 2
