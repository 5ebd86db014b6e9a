"""Capacity plans: cheap, verified, explained; compute classes; nodes that can go."""

import itertools
import json

import pytest

from dray.cli.main import main
from dray.sim.hardware import hardware_snapshot, parse_hardware
from dray.sim.snapshot import Snapshot
from dray.workbench.capacity import CatalogueError, parse_catalogue, plan_capacity, plan_removal
from dray.workbench.capacity.covering import Filling, cover

CATALOGUE = {
    "kind": "NodeCatalogue",
    "currency": "EUR",
    "nodeTypes": [
        {"name": "dgx-h100", "profile": "dgx-h100", "price": 30},
        {"name": "workstation", "profile": "workstation", "price": 2},
        {"name": "cpu", "allocatable": {"cpu": "16", "memory": "64Gi"}, "price": 0.5},
    ],
}


def template(name, count=1, expression=None):
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": count}
    if expression:
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def pod(name, cpu="1", claim=None, node=None, controller="ReplicaSet", **spec):
    body = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}], **spec}
    meta = {"name": name, "namespace": "default", "labels": {"app": "a"}}
    if claim:
        body["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
    if node:
        body["nodeName"] = node
    if controller:
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": controller, "name": "owner", "uid": "u", "controller": True}
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def snapshot_of(*objects, base=None):
    snapshot = base or Snapshot()
    for obj in objects:
        snapshot.add(obj)
    return snapshot


def plan(*objects, catalogue=CATALOGUE, base=None):
    snapshot = snapshot_of(*objects, base=base)
    waiting = [each for each in snapshot.pods if not each.spec.node_name]
    return plan_capacity(snapshot, waiting, parse_catalogue([catalogue], "prices", snapshot))


def bought(found):
    return {each.node_type: len(each.nodes) for each in found.additions}


# --- what to add --------------------------------------------------------------------


def test_the_cheapest_type_that_fits_is_taken():
    found = plan(template("one"), pod("a", claim="one"), pod("b", claim="one"), pod("c", cpu="4"))
    assert bought(found) == {"workstation": 1}
    assert found.cost == 2
    assert {each.pod for each in found.placed} == {"default/a", "default/b", "default/c"}
    assert found.additions[0].nodes[0].claims == ("default/a-gpu", "default/b-gpu")


def test_a_plan_says_why_a_cheaper_type_fails():
    hopper = template("hopper", expression="device.attributes['gpu.nvidia.com'].architecture == 'Hopper'")
    found = plan(hopper, pod("a", claim="hopper"))
    assert bought(found) == {"dgx-h100": 1}
    reasons = {each.node_type: each.reason for each in found.additions[0].cheaper}
    assert "Ada Lovelace" in reasons["workstation"]
    assert "no devices" in reasons["cpu"]
    assert found.additions[0].nodes[0].spare["devices"] > 0


def test_pods_that_fit_without_new_nodes_need_none():
    base = hardware_snapshot(parse_hardware(["workstation"]))
    found = plan(template("one"), *(pod(f"p{n}", claim="one") for n in range(3)), base=base)
    assert bought(found) == {"workstation": 1}
    assert len(found.fitting) == 2


def test_a_pod_that_no_type_takes_is_told_why_for_each():
    found = plan(template("many", count=9), pod("a", claim="many"))
    assert found.additions == ()
    assert [each.pod for each in found.unserved] == ["default/a"]
    assert {name for name, _ in found.unserved[0].reasons} == {"dgx-h100", "workstation", "cpu"}


def test_the_limit_of_a_type_is_kept_and_others_take_over():
    catalogue = json.loads(json.dumps(CATALOGUE))
    catalogue["nodeTypes"][1]["max"] = 2
    found = plan(template("one"), *(pod(f"p{n}", claim="one") for n in range(8)), catalogue=catalogue)
    assert bought(found).get("workstation", 0) <= 2
    assert bought(found)["dgx-h100"] == 1
    assert not found.unserved


def test_partitions_are_planned_by_placing_them():
    exactly = {
        "deviceClassName": "mig.nvidia.com",
        "count": 1,
        "selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}],
    }
    mig = template("mig")
    mig["spec"]["spec"]["devices"]["requests"][0]["exactly"] = exactly
    catalogue = {"nodeTypes": [{"name": "mig", "profile": "dgx-h100-mig", "price": 10}]}
    found = plan(mig, *(pod(f"p{n}", cpu="100m", claim="mig") for n in range(60)), catalogue=catalogue)
    assert bought(found) == {"mig": 2}  # eight GPUs of seven partitions each
    assert not found.unserved


def test_pods_that_keep_apart_get_a_node_each():
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
            ]
        }
    }
    found = plan(*(pod(f"p{n}", affinity=apart) for n in range(3)))
    assert bought(found) == {"cpu": 3}


def test_a_gang_gets_nodes_for_all_its_members():
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    }
    members = [pod(f"p{n}", cpu="10", schedulingGroup={"podGroupName": "gang"}) for n in range(3)]
    found = plan(group, *members)
    assert bought(found) == {"workstation": 1} or bought(found) == {"cpu": 3}
    assert len(found.placed) == 3


def test_many_kinds_of_pods_are_merged_and_all_served():
    found = plan(
        template("one"),
        *(pod(f"p{n}", cpu=f"{100 + 7 * n}m", claim="one" if n % 3 else None) for n in range(120)),
    )
    assert not found.unserved
    assert len(found.placed) == 120


def test_every_placement_is_one_that_the_scheduler_decided():
    found = plan(template("two", count=2), *(pod(f"p{n}", claim="two", cpu="3") for n in range(9)))
    devices = [device for each in found.placed for group in each.devices.values() for device in group]
    assert len(devices) == len(set(devices)) == 18


# --- compute classes ----------------------------------------------------------------


def with_class(when="DoNotScaleUp", priorities=(["dgx-h100"], ["workstation"]), **limits):
    catalogue = json.loads(json.dumps(CATALOGUE))
    for each in catalogue["nodeTypes"]:
        if each["name"] in limits:
            each["max"] = limits[each["name"]]
    catalogue["computeClasses"] = [
        {
            "name": "train",
            "priorities": [{"nodeTypes": names} for names in priorities],
            "whenUnsatisfiable": when,
        }
    ]
    return catalogue


def in_class(name, **more):
    return pod(name, nodeSelector={"dray.dev/compute-class": "train"}, **more)


def test_a_class_takes_its_first_alternative_though_it_costs_more():
    found = plan(template("one"), in_class("a", claim="one"), catalogue=with_class())
    assert [(each.node_type, each.compute_class) for each in found.additions] == [("dgx-h100", "train")]


def test_a_class_goes_on_to_the_next_alternative_when_the_first_is_used_up():
    pods = [in_class(f"p{n}", claim="one") for n in range(10)]
    found = plan(template("one"), *pods, catalogue=with_class(**{"dgx-h100": 1}))
    assert bought(found) == {"dgx-h100": 1, "workstation": 1}


@pytest.mark.parametrize(("when", "served"), [("DoNotScaleUp", False), ("ScaleUpAnyway", True)])
def test_what_no_alternative_serves(when, served):
    catalogue = with_class(when, priorities=(["cpu"],))
    found = plan(template("one"), in_class("a", claim="one"), catalogue=catalogue)
    assert bool(found.additions) == served
    assert bool(found.unserved) != served


def test_computeclass_objects_of_gke_are_read():
    document = {
        "apiVersion": "cloud.google.com/v1",
        "kind": "ComputeClass",
        "metadata": {"name": "c"},
        "spec": {"priorities": [{"machineType": "cpu"}], "whenUnsatisfiable": "ScaleUpAnyway"},
    }
    found = parse_catalogue([CATALOGUE, document], "prices").classes[0]
    assert (found.label, found.priorities, found.may_use_any) == (
        "cloud.google.com/compute-class", (("cpu",),), True
    )  # fmt: skip


# --- catalogues ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodeTypes": []}, "empty"),
        ({"nodeTypes": "x"}, "expected a list"),
        ({"nodeTypes": [{"name": "a", "price": -1}]}, "price"),
        ({"nodeTypes": [{"name": "a", "price": 1}]}, "allocatable"),
        ({"nodeTypes": [{"name": "a", "price": 1, "profile": "nope"}]}, "nope"),
        ({"nodeTypes": [{"name": "a", "price": 1, "like": "node-7"}]}, "node-7"),
        ({"nodeTypes": [{"name": "a", "price": 1, "cpu": 3}]}, "unknown field"),
        ({"nodeTypes": [{"name": "a", "price": 1, "allocatable": {"cpu": "x"}}]}, "x"),
        ({"kind": "Deployment"}, "Deployment"),
        ({"computeClasses": [{"name": "c", "priorities": [{"nodeTypes": ["zzz"]}]}]}, "zzz"),
        ({"computeClasses": [{"name": "c", "priorities": [], "whenUnsatisfiable": "Never"}]}, "Never"),
    ],
)
def test_bad_catalogues_are_named(change, message):
    with pytest.raises(CatalogueError, match=message):
        parse_catalogue([{**CATALOGUE, **change}], "prices.yaml")


def test_a_type_can_be_a_copy_of_a_node():
    base = hardware_snapshot(parse_hardware(["workstation"]))
    catalogue = {"nodeTypes": [{"name": "again", "like": "workstation-1", "price": 1}]}
    found = plan(
        template("one"), *(pod(f"p{n}", claim="one") for n in range(4)), base=base, catalogue=catalogue
    )
    assert bought(found) == {"again": 1}


# --- covering -----------------------------------------------------------------------


def test_covering_equals_brute_force_on_small_problems():
    # Three kinds of sizes 2, 3, 5; bins of 6, 7 and 10 at different prices.
    sizes, bins = (2, 3, 5), ((6, 1.0), (7, 1.3), (10, 1.7))

    def generate(values, caps):
        found = []
        for number, (room, price) in enumerate(bins):
            options = [
                counts
                for counts in itertools.product(*(range(cap + 1) for cap in caps))
                if any(counts) and sum(c * s for c, s in zip(counts, sizes, strict=True)) <= room
            ]
            if options:
                best = max(options, key=lambda c: sum(v * n for v, n in zip(values, c, strict=True)))
                found.append(Filling(price, best, number))
        return found

    def cheapest(demands, cache):
        if not any(demands):
            return 0.0
        if demands not in cache:
            cache[demands] = min(
                price + cheapest(tuple(d - n for d, n in zip(demands, counts, strict=True)), cache)
                for room, price in bins
                for counts in itertools.product(*(range(d + 1) for d in demands))
                if any(counts) and sum(c * s for c, s in zip(counts, sizes, strict=True)) <= room
            )
        return cache[demands]

    cache = {}
    for demands in itertools.product(range(4), range(4), range(3)):
        chosen = cover(demands, generate, {})
        covered = [sum(each.counts[kind] for each in chosen) for kind in range(3)]
        assert all(have >= want for have, want in zip(covered, demands, strict=True))
        assert sum(each.price for each in chosen) <= cheapest(demands, cache) * 1.05 + 1e-9, demands


# --- what can go --------------------------------------------------------------------


def bound(name, node, number, controller="ReplicaSet"):
    """Return a pod that runs on a node with one GPU, and its claim."""
    made = pod(name, claim="one", node=node, controller=controller)
    made["metadata"]["uid"] = f"uid-{name}"
    made["status"] = {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
    }
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": f"gpu-{number}"}
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{name}-gpu",
            "namespace": "default",
            "uid": f"c-{name}",
            "ownerReferences": [owner],
        },
        "spec": template("one")["spec"]["spec"],
        "status": {
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            },
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
        },
    }
    return made, claim


def two_workstations(*objects):
    base = hardware_snapshot(parse_hardware(["workstation:2"]))
    return snapshot_of(template("one"), *objects, base=base)


def test_a_node_can_go_when_its_pods_fit_elsewhere():
    one, two = bound("a", "workstation-1", 0), bound("b", "workstation-2", 0)
    found = plan_removal(two_workstations(*one, *two))
    assert [each.node for each in found.removals] == ["workstation-1"]
    moved = found.removals[0].moved
    assert [(each.pod, each.node) for each in moved] == [("default/a", "workstation-2")]
    assert [list(each.devices.values()) for each in moved] == [[["gpu.nvidia.com/workstation-2/gpu-1"]]]
    assert [each.node for each in found.kept] == ["workstation-2"]


def test_a_node_stays_when_its_pods_do_not_fit_elsewhere():
    pods = [bound("a", "workstation-1", 0), bound("b", "workstation-2", 0), bound("c", "workstation-2", 1)]
    found = plan_removal(two_workstations(*(obj for each in pods for obj in each)))
    assert found.removals == ()
    assert {each.reason for each in found.kept} == {"its pods do not all fit elsewhere"}


def test_a_bare_pod_or_a_budget_keeps_a_node():
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "minAvailable": 1},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }
    bare = plan_removal(two_workstations(*bound("a", "workstation-1", 0, controller=None)))
    assert "no controller" in bare.kept[0].reason
    guarded = plan_removal(two_workstations(*bound("a", "workstation-1", 0), budget))
    assert "disruption budget all" in guarded.kept[0].reason


# --- the command --------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    (tmp_path / "prices.yaml").write_text(json.dumps(CATALOGUE))
    (tmp_path / "pods.yaml").write_text(
        "---\n"
        + "\n---\n".join(
            json.dumps(each) for each in (template("one"), pod("a", claim="one"), pod("b", cpu="40"))
        )
    )
    return tmp_path


def test_the_command_plans_for_manifests(files, capsys):
    code = main(
        ["capacity", str(files / "pods.yaml"), "--catalogue", str(files / "prices.yaml"), "-o", "json"]
    )
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert answer["cost"] == 30  # 40 cpus need the large node, and the GPU pod finds room there
    assert [each["type"] for each in answer["add"]] == ["dgx-h100"]


def test_the_command_prints_a_table_with_reasons_and_the_total(files, capsys):
    assert (
        main(["capacity", str(files / "pods.yaml"), "--catalogue", str(files / "prices.yaml"), "--remove"])
        == 0
    )
    out = capsys.readouterr().out
    assert "total: 30.00 EUR per hour" in out
    assert "not workstation (2) instead of dgx-h100" in out


def test_the_command_says_what_is_missing(files, capsys):
    assert main(["capacity"]) == 2
    assert "--pending" in capsys.readouterr().err
    assert main(["capacity", "--pending"]) == 2
    assert "--catalogue" in capsys.readouterr().err


def test_an_unserved_pod_is_exit_code_1(files, capsys):
    (files / "large.yaml").write_text(json.dumps(pod("large", cpu="4000")))
    assert main(["capacity", str(files / "large.yaml"), "--catalogue", str(files / "prices.yaml")]) == 1
    assert "no node on offer takes default/large" in capsys.readouterr().out
