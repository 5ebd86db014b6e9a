"""Extended resources: which class, which nodes, which requests, who reuses whose devices."""

import msgspec
from scheduler_builders import SmallCluster, container, device_class, node, pod

from dray.scheduler import ExtendedResources, special_claim, variants

GPU = "example.com/gpu"


def classes(*names, **created):
    index = ExtendedResources()
    for name in names:
        found = device_class(name, extended_resource_name=GPU)
        meta = msgspec.structs.replace(found.metadata, creation_timestamp=created.get(name))
        index.set_class(msgspec.structs.replace(found, metadata=meta))
    return index


def wants(count, name="c", **options):
    return container(name=name, limits={GPU: str(count), "cpu": "1"}, **options)


def claim_of(*containers, init=()):
    found, mappings = special_claim(
        pod("p", containers=list(containers), init_containers=list(init)),
        frozenset({GPU}),
        classes("gpu").class_of,
    )
    requests = {each.name: each.exactly.count for each in found.spec.devices.requests}
    return requests, [(each.container_name, each.request_name) for each in mappings]


def test_names_are_explicit_or_implicit():
    index = classes("gpu")
    assert index.class_of(GPU) == "gpu"
    assert index.class_of("deviceclass.resource.kubernetes.io/gpu") == "gpu"
    assert index.class_of("deviceclass.resource.kubernetes.io/none") is None
    index.delete_class("gpu")
    assert index.class_of(GPU) is None


def test_of_two_classes_the_later_created_wins_then_the_alphabet():
    assert classes("a", "b", a="2026-01-01T00:00:00Z", b="2026-01-02T00:00:00Z").class_of(GPU) == "b"
    assert classes("b", "a").class_of(GPU) == "a"


def test_only_resources_with_a_class_are_asked_for():
    index = classes("gpu")
    assert index.asked_by(pod("p", containers=[wants(1)])) == {GPU}
    assert index.asked_by(pod("p", containers=[wants(0)])) == set()
    assert index.asked_by(pod("p", containers=[container(limits={"other.com/x": "1"})])) == set()


def test_nodes_with_a_device_plugin_need_no_claim():
    small = SmallCluster(node("plugin", example__x="1"), node("plain"))
    small.state.nodes["plugin"].allocatable[GPU] = 4
    found = variants(small.state, frozenset({GPU}))
    names = [[each.name for each in small.state.in_set(nodes)] for nodes, _ in found]
    assert names == [["plugin"], ["plain"]]
    assert [by_devices for _, by_devices in found] == [frozenset(), frozenset({GPU})]


def test_each_container_has_a_request_named_by_its_place():
    requests, mappings = claim_of(wants(2, "x"), container(name="y", cpu="1"), wants(1, "z"))
    assert requests == {"container-0-request-1": 2, "container-2-request-1": 1}
    assert mappings == [("x", "container-0-request-1"), ("z", "container-2-request-1")]


def test_init_containers_reuse_the_devices_of_those_who_come_after():
    requests, mappings = claim_of(wants(2, "main"), init=[wants(1, "init")])
    assert requests == {"container-1-request-1": 2}
    assert mappings == [("main", "container-1-request-1"), ("init", "container-1-request-1")]


def test_a_hungry_init_container_asks_for_what_is_missing():
    requests, mappings = claim_of(wants(2, "main"), init=[wants(5, "init")])
    assert requests == {"container-0-request-1": 3, "container-1-request-1": 2}
    assert mappings == [
        ("main", "container-1-request-1"),
        ("init", "container-1-request-1"),
        ("init", "container-0-request-1"),
    ]


def test_several_init_containers_share_the_largest_extra_request():
    requests, mappings = claim_of(wants(1, "main"), init=[wants(2, "i0"), wants(4, "i1")])
    assert requests == {"container-1-request-1": 3, "container-2-request-1": 1}
    assert ("i0", "container-1-request-1") in mappings
    assert ("i1", "container-1-request-1") in mappings


def test_a_sidecar_keeps_its_devices():
    sidecar = wants(1, "side", restart_policy="Always")
    requests, _ = claim_of(wants(1, "main"), init=[sidecar, wants(1, "init")])
    assert requests == {"container-0-request-1": 1, "container-2-request-1": 1}
