"""Selectors, paths and options: what a URL says."""

import time

import pytest

from dray.server.objects.get_and_list import parse_version
from dray.server.requests.content_negotiation import negotiate
from dray.server.requests.errors import ApiError, bad_request
from dray.server.requests.messages import Request
from dray.server.requests.query_options import delete_options, list_options, write_options
from dray.server.requests.query_selectors import matches_labels, parse_label_selector
from dray.server.requests.routing import split_path, verb_of


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b,c!=d", {"a": "b"}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a notin (b)", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": "x"}, False),
        ("n>3", {"n": "10"}, True),
        ("n<3", {"n": "x"}, False),
        ("a=", {"a": ""}, True),
        ("x.test/a=b", {"x.test/a": "b"}, True),
    ],
)
def test_label_selectors(text, labels, expected) -> None:
    assert matches_labels(parse_label_selector(text), labels) is expected


@pytest.mark.parametrize("text", ["a=b=c", "a in (b", "=b", "a b", "a/b/c", "-a", "a>x", "a,", "a in b"])
def test_broken_label_selectors_are_refused(text) -> None:
    with pytest.raises(ApiError) as refused:
        parse_label_selector(text)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/api/v1/nodes/n", ("", "v1", "", "nodes", "n", "")),
        ("/api/v1/namespaces/a", ("", "v1", "a", "namespaces", "a", "")),
        ("/api/v1/namespaces/a/status", ("", "v1", "a", "namespaces", "a", "status")),
        ("/api/v1/namespaces/a/pods/p/log", ("", "v1", "a", "pods", "p", "log")),
        ("/apis/apps/v1/deployments/", ("apps", "v1", "", "deployments", "", "")),
        ("/apis/apps/v1", ("apps", "v1", "", "", "", "")),
    ],
)
def test_paths_are_taken_apart(path, parts) -> None:
    found = split_path(path)
    assert found is not None
    assert (
        found.group,
        found.version,
        found.namespace,
        found.resource,
        found.name,
        found.subresource,
    ) == parts


def test_other_paths_are_none_of_its_business() -> None:
    assert [split_path(path) for path in ("/", "/version", "/api", "/apis/apps")] == [None] * 4


@pytest.mark.parametrize(
    ("watch", "verb"), [("true", "watch"), ("maybe", "watch"), ("0", "list"), ("False", "list")]
)
def test_a_watch_is_what_does_not_say_false(watch, verb) -> None:
    path = split_path("/api/v1/pods")
    assert path is not None
    assert verb_of(Request("GET", "/api/v1/pods", (("watch", watch),)), path) == verb


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ((("limit", "two"),), 400),
        ((("resourceVersionMatch", "Exact"),), 422),
        ((("resourceVersionMatch", "Exact"), ("resourceVersion", "0")), 422),
        ((("sendInitialEvents", "true"),), 422),
    ],
)
def test_impossible_list_options_are_refused(query, code) -> None:
    with pytest.raises(ApiError) as refused:
        list_options(Request("GET", "/", query), watch=False)
    assert refused.value.code == code


def test_write_and_delete_options_are_checked() -> None:
    with pytest.raises(ApiError, match="dryRun"):
        write_options(Request("POST", "/", (("dryRun", "Some"),)), "CreateOptions")
    with pytest.raises(ApiError, match="fieldManager"):
        write_options(Request("PATCH", "/"), "PatchOptions", is_patch=True, is_apply=True)
    with pytest.raises(ApiError, match="propagationPolicy"):
        delete_options(Request("DELETE", "/"), {"propagationPolicy": "Weird"})
    with pytest.raises(ApiError, match="cannot unmarshal"):
        delete_options(Request("DELETE", "/"), {"gracePeriodSeconds": "soon"})


def test_the_first_acceptable_form_is_chosen() -> None:
    table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    assert negotiate(table).as_kind == "Table"
    assert negotiate("application/vnd.kubernetes.protobuf,application/json").is_plain
    assert negotiate("application/json;q=0.1,application/yaml").media_type == "application/yaml"
    assert not negotiate(
        "application/vnd.kubernetes.protobuf"
    ).is_plain  # only who takes nothing else gets it
    for refused in ("application/*", "text/html"):
        with pytest.raises(ApiError):
            negotiate(refused)


def test_white_space_in_selectors_is_read_once():
    began = time.process_time()
    assert parse_label_selector(" " * 60_000) == ()
    assert len(parse_label_selector("a" + " " * 30_000 + "=" + " " * 30_000 + "b")) == 1
    assert time.process_time() - began < 2, (
        "it took 20 s when every blank was looked at from every blank before it"
    )


@pytest.mark.parametrize("text", ["9" * 5_000, "18446744073709551616", "0" * 60_000 + "x", "²", "-1"])
def test_versions_that_are_not_numbers_of_64_bits_are_refused_in_words(text):
    with pytest.raises(ApiError, match=r"resourceVersion: Invalid value"):
        parse_version(text, bad_request)


def test_leading_zeros_of_a_version_do_not_count():
    assert parse_version("0" * 60_000 + "7", bad_request) == 7
