"""What remembers texts of clients is bounded in bytes: long texts are computed every time and not kept."""

import gc
import weakref

import pytest

from dray.api.caching import BoundedMap, cached_by_text
from dray.api.semver import parse_semver
from dray.api.validation.formats import dns_subdomain, label_key
from dray.server.requests.content_negotiation import negotiate
from dray.server.requests.messages import Request
from dray.server.requests.query_options import write_options
from dray.server.requests.routing import split_path


class Text(str):
    """A text of which one can see whether anybody holds it."""

    __slots__ = ("__weakref__",)


def is_kept(make, function):
    text = Text(make)
    holder = weakref.ref(text)
    function(text)
    del text
    gc.collect()
    return holder() is not None


def test_short_texts_are_remembered_and_long_ones_are_not():
    calls = []

    @cached_by_text(maxsize=4, longest=3)
    def count(text):
        calls.append(text)
        return len(text)

    assert [count("abc"), count("abc"), count("abcd"), count("abcd")] == [3, 3, 4, 4]
    assert calls == ["abc", "abcd", "abcd"]


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("/api/v1/namespaces/default/pods/" + "a" * 60_000, split_path),
        ("application/json;a=" + "a" * 60_000, negotiate),
        ("a" * 1_000_000, label_key),
        ("1.0.0-" + "a" * 1_000, lambda text: parse_semver(text)),
        ("a" * 60_000, lambda text: write_options(Request("", "", (("x", text),)), "CreateOptions")),
    ],
    ids=["paths", "headers", "label keys", "versions", "queries"],
)
def test_long_texts_of_clients_are_not_kept(text, function):
    assert not is_kept(text, function)


def test_names_far_beyond_every_limit_are_refused_without_a_look_at_each_character():
    problems = dns_subdomain("a." * 1_500_000)
    assert problems[0] == "must be no more than 253 characters"
    assert len(problems) == 2


def test_a_bounded_map_drops_its_oldest_entry_and_use_makes_one_the_newest():
    known = BoundedMap[str, int](limit=2)
    known["a"], known["b"] = 1, 2
    assert known.use("a") == 1 and known.use("x") is None
    known["c"] = 3
    assert list(known.items()) == [("a", 1), ("c", 3)]


def test_an_entry_of_a_bounded_map_that_is_set_again_keeps_its_age():
    known = BoundedMap[str, None](limit=2)
    for key in "abac":
        known[key] = None
    assert list(known) == ["b", "c"]
