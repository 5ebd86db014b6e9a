"""Field sets and typed values: the ground that server-side apply stands on."""

from hypothesis import given
from hypothesis import strategies as st

from dray.api.schema import schema_of
from dray.server.patch.field_sets import (
    difference,
    insert,
    intersection,
    path_text,
    paths,
    union,
    without,
)
from dray.server.patch.typed_merge import compare, fields_of, merge, remove

POD = schema_of("", "v1", "Pod")
STEPS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}'])
PATHS = st.lists(st.lists(STEPS, min_size=1, max_size=3).map(tuple), max_size=6)


def made(of) -> dict:
    fields: dict = {}
    for path in of:
        insert(fields, path)
    return fields


@given(PATHS, PATHS)
def test_the_algebra_is_that_of_sets_of_paths(one, other) -> None:
    a, b = made(one), made(other)
    assert set(paths(a)) == set(one)
    assert set(paths(union(a, b))) == set(one) | set(other)
    assert set(paths(difference(a, b))) == set(one) - set(other)
    assert set(paths(intersection(a, b))) == set(one) & set(other)
    below = {path for path in one if any(path[: len(prefix)] == prefix for prefix in other)}
    assert set(paths(without(a, b))) == set(one) - below


def test_paths_read_like_the_fields_they_mean() -> None:
    assert (
        path_text(("f:spec", "f:containers", 'k:{"name":"a"}', "f:image"))
        == '.spec.containers[name="a"].image'
    )
    assert path_text(("f:metadata", "f:finalizers", 'v:"x"')) == '.metadata.finalizers[="x"]'


def pod(*containers: dict, **metadata: object) -> dict:
    return {"metadata": metadata, "spec": {"containers": list(containers)}}


def test_a_configuration_owns_what_it_names() -> None:
    fields = fields_of(pod({"name": "a", "image": "1"}, labels={"x": "1"}), POD)
    assert set(paths(fields)) == {
        ("f:metadata", "f:labels", "f:x"),
        ("f:spec", "f:containers", 'k:{"name":"a"}'),
        ("f:spec", "f:containers", 'k:{"name":"a"}', "f:name"),
        ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image"),
    }


def test_comparing_tells_added_removed_and_modified_apart() -> None:
    old = pod({"name": "a", "image": "1"}, {"name": "b"}, labels={"x": "1"})
    new = pod({"name": "a", "image": "2"}, {"name": "c"}, labels={"x": "1", "y": "2"})
    found = compare(old, new, POD)
    assert list(paths(found.modified)) == [("f:spec", "f:containers", 'k:{"name":"a"}', "f:image")]
    assert ("f:metadata", "f:labels", "f:y") in set(paths(found.added))
    assert ("f:spec", "f:containers", 'k:{"name":"c"}') in set(paths(found.added))
    assert ("f:spec", "f:containers", 'k:{"name":"b"}') in set(paths(found.removed))


def test_merging_keeps_live_items_between_their_neighbours() -> None:
    live = pod({"name": "a"}, {"name": "x"}, {"name": "b"})
    config = pod({"name": "b", "image": "2"}, {"name": "a"})
    names = [item["name"] for item in merge(live, config, POD)["spec"]["containers"]]
    assert names == ["x", "b", "a"]


def test_removing_leaves_the_rest() -> None:
    value = pod({"name": "a", "image": "1"}, labels={"x": "1", "y": "2"})
    left = remove(value, made([("f:metadata", "f:labels", "f:x")]), POD)
    assert left["metadata"]["labels"] == {"y": "2"}
    assert left["spec"] == value["spec"]
