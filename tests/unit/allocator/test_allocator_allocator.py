"""The allocator as its users meet it: plans for many nodes, explanations, policies, taint rules."""

from collections.abc import Iterator

import msgspec
import pytest

from dray.allocator import AllocationError, Allocator, Plan, Unsatisfied, policy_named
from dray.allocator.cases import CaseError, build_allocator, read_case
from dray.api.resource import DeviceClaim, ResourceClaim, ResourceClaimSpec, ResourceSlice


def case(n_nodes: int = 3, used: dict[str, int] | None = None, **extra: object) -> dict[str, object]:
    slices = [
        {
            "metadata": {"name": f"s-{n}"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": f"n{n}",
                "pool": {"name": f"n{n}", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {"name": f"gpu-{i}", "attributes": {"model": {"string": "H100" if i < 2 else "T4"}}}
                    for i in range(4)
                ],
            },
        }
        for n in range(n_nodes)
    ]
    in_use = [
        {"driver": "gpu.example.com", "pool": node, "device": f"gpu-{i}"}
        for node, count in (used or {}).items()
        for i in range(count)
    ]
    return {
        "nodes": [f"n{n}" for n in range(n_nodes)],
        "slices": slices,
        "classes": [{"metadata": {"name": "gpu"}}],
        "allocatedDevices": in_use,
        **extra,
    }


def claims(count: int = 1, expression: str = "") -> list[ResourceClaim]:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count, "selectors": selectors}}
    data = [{"metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": {"requests": [request]}}}]
    return msgspec.convert(data, list[ResourceClaim])


def allocator(**extra: object) -> Allocator:
    return build_allocator(read_case(case(**extra)))  # type: ignore[arg-type]


def test_equal_nodes_share_one_search() -> None:
    answers = allocator(n_nodes=50).plan_nodes(claims())
    assert len(answers) == 50
    assert answers.steps == 2


def test_nodes_of_which_nothing_is_selected_share_one_search() -> None:
    data = case(n_nodes=50)
    for node, resource_slice in enumerate(data["slices"]):  # type: ignore[arg-type, var-annotated]
        for index, device in enumerate(resource_slice["spec"]["devices"]):
            device["attributes"]["uuid"] = {"string": f"GPU-{node}-{index}"}
    built = build_allocator(read_case(data))
    answers = built.plan_nodes(claims(1, 'device.attributes["gpu.example.com"].uuid == "GPU-31-2"'))
    assert answers.nodes == ("n31",)
    assert answers.steps == 3  # two where it is, one for all the others
    [(reason,)] = [each.reasons for each in answers.refusals["n7"].reasons]
    assert 'uuid is "GPU-7-0"' in str(reason)


def test_nodes_without_a_free_device_are_not_told_apart() -> None:
    data = case(n_nodes=40, used={f"n{n}": 4 for n in range(39)})
    for node, resource_slice in enumerate(data["slices"]):  # type: ignore[arg-type, var-annotated]
        for device in resource_slice["spec"]["devices"]:
            device["attributes"]["rack"] = {"string": f"r-{node}"}
    built = build_allocator(read_case(data))
    asked = claims(1, 'device.attributes["gpu.example.com"].rack != "nowhere"')
    answers = built.plan_nodes(asked)
    assert answers.nodes == ("n39",)
    assert answers.steps == 3  # two where one is free, one for all the others
    # What would help is said for each of them: they differ as soon as a device is free.
    [request] = answers.refusals["n7"].reasons
    assert request.relaxation.endswith("and the claims fit")
    elsewhere = claims(1, 'device.attributes["gpu.example.com"].rack == "r-8"')
    refusals = built.plan_nodes(elsewhere).refusals
    assert refusals["n7"].reasons[0].relaxation != refusals["n8"].reasons[0].relaxation
    for mode in ("All", "ExactCount"):
        every = msgspec.structs.replace(
            asked[0].spec.devices.requests[0].exactly,  # type: ignore[arg-type]
            allocation_mode=mode,
            admin_access=mode == "ExactCount",
            selectors=elsewhere[0].spec.devices.requests[0].exactly.selectors,  # type: ignore[union-attr]
        )
        [request] = asked[0].spec.devices.requests
        changed = msgspec.structs.replace(request, exactly=every)
        spec = ResourceClaimSpec(devices=DeviceClaim(requests=[changed]))
        watching = [msgspec.structs.replace(asked[0], spec=spec)]
        assert built.plan_nodes(watching).nodes == (("n8",) if mode == "ExactCount" else ())


def test_first_stops_early() -> None:
    answers = allocator(n_nodes=50).plan_nodes(claims(), first=3)
    assert answers.nodes == ("n0", "n1", "n2")


def test_devices_of_the_asked_node_are_named() -> None:
    answers = allocator(n_nodes=2).plan_nodes(claims())
    pools = [plan.allocations[0].devices.results[0].pool for plan in answers]
    assert pools == ["n0", "n1"]


def test_what_is_taken_is_gone_until_it_is_given_back() -> None:
    found = allocator(n_nodes=1)
    plan = found.plan("n0", claims(4))
    assert isinstance(plan, Plan)
    undo = found.take("claim", plan.allocations[0])
    assert not found.plan("n0", claims())
    undo()
    assert found.plan("n0", claims(4))


def test_a_refusal_says_who_holds_the_devices() -> None:
    found = allocator(n_nodes=1)
    plan = found.plan("n0", claims(2))
    assert isinstance(plan, Plan)
    found.take("team/training", plan.allocations[0])
    refusal = found.plan("n0", claims(3))
    assert isinstance(refusal, Unsatisfied)
    [reasons] = refusal.reasons
    assert (reasons.devices, reasons.usable, reasons.wanted) == (4, 2, 3)
    assert [(r.cause, r.detail, r.devices) for r in reasons.reasons] == [("in-use", "team/training", 2)]
    assert (
        reasons.relaxation
        == "wait for (or free) devices in use (team/training): 2 more would be usable, and the claims fit"
    )


def test_a_refusal_names_the_selector_that_failed() -> None:
    expression = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "H100"'
    refusal = allocator(n_nodes=1).plan("n0", claims(3, expression))
    assert isinstance(refusal, Unsatisfied)
    [reason] = refusal.reasons[0].reasons
    assert (reason.cause, reason.devices) == ("selector", 2)
    assert 'model == "H100"; found: ' in reason.detail
    assert "T4" in reason.detail
    assert "device.driver" not in reason.detail


def test_explain_joins_nodes_with_one_story() -> None:
    explanation = allocator(n_nodes=4, used={"n3": 0, "n0": 2, "n1": 2, "n2": 2}).explain(claims(3))
    assert explanation.fits == ("n3",)
    [(nodes, _)] = explanation.reasons
    assert nodes == ("n0", "n1", "n2")
    assert any("does not fit on 3 nodes" in line for line in explanation.lines())


def test_explain_reports_errors_instead_of_raising() -> None:
    explanation = allocator(n_nodes=2).explain(claims(1, "nonsense"))
    assert list(explanation.errors) == [""]
    assert "CEL compile error" in explanation.errors[""]


def test_errors_name_the_device_of_the_asked_node() -> None:
    found = allocator(n_nodes=2)
    for node in ("n0", "n1"):
        with pytest.raises(
            AllocationError, match=f"gpu.example.com/{node}/gpu-0: CEL runtime error: no such key: none"
        ):
            found.plan(node, claims(1, 'device.attributes["gpu.example.com"].none == 1'))


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("first-fit", ("n0", "n1", "n2")),
        ("pack", ("n2", "n0", "n1")),
        ("spread", ("n1", "n0", "n2")),
    ],
)
def test_policies_order_the_nodes(policy: str, order: tuple[str, ...]) -> None:
    answers = allocator(used={"n0": 1, "n2": 2}).plan_nodes(claims(), policy=policy_named(policy))
    assert answers.nodes == order


def test_the_fragmentation_policy_prefers_exact_fits() -> None:
    answers = allocator(used={"n0": 1, "n2": 2}).plan_nodes(claims(2), policy=policy_named("frag"))
    assert answers.nodes[0] == "n2"


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known: first-fit, pack, spread, frag"):
        policy_named("best")


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(CaseError, match="unknown feature gate 'DRAMagic'"):
        allocator(features=["DRAMagic"])


def test_a_claim_without_change_is_not_booked_twice() -> None:
    found = allocator(n_nodes=1)
    plan = found.plan("n0", claims(1))
    assert isinstance(plan, Plan)
    held = msgspec.convert(
        {
            "metadata": {"name": "held", "uid": "u"},
            "status": {"allocation": msgspec.to_builtins(plan.allocations[0])},
        },
        ResourceClaim,
    )
    found.set_claim(held)
    found.set_claim(held)
    assert not found.plan("n0", claims(4))
    assert found.plan("n0", claims(3))
    found.delete_claim("u")
    assert found.plan("n0", claims(4))


def test_no_more_names_are_taken_than_needed() -> None:
    handed_out = []

    def names() -> Iterator[str]:
        for node in ("n0", "n1", "n2", "n3"):
            handed_out.append(node)
            yield node

    answers = allocator(n_nodes=4, used={"n0": 4}).plan_nodes(claims(), names(), first=2)
    assert answers.nodes == ("n1", "n2")
    assert list(answers.refusals) == ["n0"]
    assert handed_out == ["n0", "n1", "n2"]


def test_enough_nodes_before_a_broken_one_hide_its_error() -> None:
    found = allocator(n_nodes=3)
    wanted = claims(1, 'device.attributes["gpu.example.com"].model == "H100"')
    broken = case(n_nodes=1)["slices"][0]  # type: ignore[index]
    broken["metadata"]["name"] = "s-2"
    broken["spec"]["nodeName"] = broken["spec"]["pool"]["name"] = "n2"
    del broken["spec"]["devices"][0]["attributes"]
    found.set_slice(msgspec.convert(broken, ResourceSlice), key="s-2\0" + "00000002")
    assert found.plan_nodes(wanted, first=2).nodes == ("n0", "n1")
    with pytest.raises(AllocationError, match="gpu.example.com/n2/gpu-0"):
        found.plan_nodes(wanted)


@pytest.mark.parametrize("order", [("a", "c"), ("c", "a")])
def test_devices_in_use_that_disagree_about_groups_count_in_the_order_of_the_slice(
    order: tuple[str, str],
) -> None:
    """With c first, which has no groups, only devices without groups would be admitted."""
    groups = {"a": ["one"], "b": [], "c": [], "e": ["one"]}
    devices = [
        {
            "name": name,
            "consumesCounters": [
                {"counterSet": "s", "counters": {"m": {"value": "1"}}, "compatibilityGroups": own}
            ],
        }
        for name, own in groups.items()
    ]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": "d", "nodeName": "n0", "pool": pool}
    counters = [{"name": "s", "counters": {"m": {"value": "9"}}}]
    found = build_allocator(
        read_case(
            {
                "features": ["DRAPartitionableDevices", "DRADeviceCompatibilityGroups"],
                "nodes": ["n0"],
                "slices": [
                    {"metadata": {"name": "s-1"}, "spec": {**spec, "devices": devices}},
                    {"metadata": {"name": "s-2"}, "spec": {**spec, "sharedCounters": counters}},
                ],
                "classes": [{"metadata": {"name": "gpu"}}],
                "allocatedDevices": [{"driver": "d", "pool": "p", "device": name} for name in order],
            }
        )
    )
    plan = found.plan("n0", claims())
    assert isinstance(plan, Plan)
    assert [result.device for result in plan.allocations[0].devices.results] == ["e"]


def test_what_is_said_about_an_invalid_pool_does_not_depend_on_the_order_in_which_slices_arrive() -> None:
    def part(name: str, node: str, counter_set: str) -> dict[str, object]:
        consumes = [{"counterSet": counter_set, "counters": {"c": {"value": "1"}}}]
        return {
            "metadata": {"name": name},
            "spec": {
                "driver": "d",
                "nodeName": node,
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2},
                "devices": [{"name": name, "consumesCounters": consumes}],
            },
        }

    parts = [part("s-1", "n0", "first"), part("s-2", "n1", "second")]
    said = set()
    for slices in (parts, parts[::-1]):
        answer = allocator(slices=slices, n_nodes=2).plan("n1", claims())
        assert isinstance(answer, Unsatisfied)
        said.add(str(answer.reasons))
    [text] = said
    assert "counter set first not found" in text
