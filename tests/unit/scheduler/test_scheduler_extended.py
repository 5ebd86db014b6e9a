"""Extended resources: which class, which nodes, which requests, who reuses whose devices."""

import itertools

import msgspec
from scheduler_builders import SmallCluster, container, device_class, node, pod

from dray.api.core import PodExtendedResourceClaimStatus
from dray.scheduler import (
    ExtendedResources,
    choose_special,
    serves,
    special_claim,
    special_name,
    special_owner,
    variants,
)

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


# --- the claim on the server ------------------------------------------------------------------


def incarnation(name, uid, **spec):
    """A pod with a uid of its own."""
    found = pod(name, **spec)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, uid=uid))


def made(owner, name, *, created="2026-01-01T00:00:00Z", is_dying=False, count=1):
    """A claim as the server has it, made for the extended resources of a pod."""
    found, _ = special_claim(
        incarnation(owner.metadata.name, owner.metadata.uid, containers=[wants(count)]),
        frozenset({GPU}),
        classes("gpu").class_of,
    )
    meta = msgspec.structs.replace(
        found.metadata,
        name=name,
        uid=f"uid of {name}",
        creation_timestamp=created,
        deletion_timestamp="2026-01-02T00:00:00Z" if is_dying else None,
    )
    return msgspec.structs.replace(found, metadata=meta)


def naming(owner, claim_name):
    """The pod, with this claim in its status."""
    noted = PodExtendedResourceClaimStatus(resource_claim_name=claim_name)
    status = msgspec.structs.replace(owner.status, extended_resource_claim_status=noted)
    return msgspec.structs.replace(owner, status=status)


def chosen(owner, *claims):
    found, leftovers = choose_special(owner, claims)
    return found and found.metadata.name, [each.metadata.name for each in leftovers]


def test_the_name_follows_from_the_pod_and_from_nothing_else():
    first, namesake = incarnation("p", "1"), incarnation("p", "2")
    assert special_name(first) == special_name(incarnation("p", "1")) != special_name(namesake)
    assert special_name(first).startswith("p-extended-resources-")
    long = special_name(incarnation("x" * 253, "1"))
    assert len(long) == 63 and long != special_name(incarnation("x" * 253, "2"))


def test_only_claims_with_the_annotation_belong_to_extended_resources():
    owner = incarnation("p", "1")
    claim = made(owner, "c")
    assert special_owner(claim) == "1"
    plain = msgspec.structs.replace(claim.metadata, annotations=None)
    assert special_owner(msgspec.structs.replace(claim, metadata=plain)) is None


def test_everybody_goes_on_with_the_same_claim():
    owner = incarnation("p", "1")
    right = made(owner, special_name(owner), created="2026-01-03T00:00:00Z")
    old, young = made(owner, "b"), made(owner, "a", created="2026-01-02T00:00:00Z")
    assert chosen(owner) == (None, [])
    for claims in itertools.permutations((right, old, young)):
        assert chosen(owner, *claims) == (special_name(owner), ["b", "a"])
        assert chosen(naming(owner, "a"), *claims) == ("a", [special_name(owner), "b"])
    assert chosen(owner, young, old) == ("b", ["a"])


def test_a_claim_that_is_being_deleted_is_of_no_use_even_if_the_pod_names_it():
    owner = naming(incarnation("p", "1"), "a")
    assert chosen(owner, made(owner, "a", is_dying=True)) == (None, ["a"])
    assert chosen(owner, made(owner, "a", is_dying=True), made(owner, "b")) == ("b", ["a"])


def test_a_claim_serves_when_it_asks_for_the_same():
    owner = incarnation("p", "1")
    assert serves(made(owner, "a"), made(owner, "b"))
    assert not serves(made(owner, "a"), made(owner, "b", count=2))
