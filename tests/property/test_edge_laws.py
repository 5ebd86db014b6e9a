"""Laws of rights, and that nothing a stranger sends makes the edge of the server stumble."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.server.auth.authentication import Authenticator, bearer_token
from dray.server.auth.rbac import Rule, missing_rights
from dray.server.http.flow_control import describe
from dray.server.openapi.discovery import AGGREGATED_TYPE, YAML_TYPE, negotiate
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request
from dray.server.tables import human_duration
from dray.server.tables.json_path import find

VERBS, GROUPS, RESOURCES, NAMES = (
    ("get", "list", "*"),
    ("", "apps", "*"),
    ("pods", "pods/log", "*/log", "*"),
    ("a", "b"),
)
PATHS = ("/apis", "/apis/*", "/api", "/*", "*")


def subsets(values, least=1):
    return st.sets(st.sampled_from(values), min_size=least).map(frozenset)


RESOURCE_RULES = st.builds(
    Rule, verbs=subsets(VERBS), groups=subsets(GROUPS), resources=subsets(RESOURCES), names=subsets(NAMES, 0)
)
PATH_RULES = st.builds(Rule, verbs=subsets(VERBS), paths=subsets(PATHS))
RULES = st.lists(RESOURCE_RULES | PATH_RULES, max_size=4)
REQUESTS = [
    (verb, group, resource, subresource, name)
    for verb in ("get", "list", "delete")
    for group in ("", "apps", "batch")
    for resource in ("pods", "nodes")
    for subresource in ("", "log", "exec")
    for name in ("", "a", "c")
]
URLS = ("/apis", "/apis/apps", "/api", "/metrics")


@settings(max_examples=150)
@given(RULES, RULES)
def test_who_lacks_nothing_may_do_all_that_is_granted(held, wanted):
    if missing_rights(held, wanted):
        return
    for request in REQUESTS:
        if any(rule.allows(*request) for rule in wanted):
            assert any(rule.allows(*request) for rule in held)
    for verb in ("get", "delete"):
        for url in URLS:
            if any(rule.allows_path(verb, url) for rule in wanted):
                assert any(rule.allows_path(verb, url) for rule in held)


@given(RULES)
def test_everybody_holds_what_they_hold(rules):
    assert missing_rights(rules, rules) == []


@given(RULES, RULES, RULES)
def test_more_rights_never_lack_more(held, more, wanted):
    assert len(missing_rights([*held, *more], wanted)) <= len(missing_rights(held, wanted))


@given(st.text() | st.text(alphabet="applicationjsq/*;,=.0 "))
def test_any_accept_header_has_an_answer(accept):
    assert negotiate(accept, aggregates=True) in (None, "application/json", AGGREGATED_TYPE, YAML_TYPE)


@given(st.text() | st.text(alphabet="Bbearer .\t"))
def test_any_authorization_header_is_a_user_or_401(header):
    authenticator, request = (
        Authenticator(lambda: None, {}),
        Request("GET", "/", headers={"authorization": header}),
    )
    if bearer_token(header):
        with pytest.raises(ApiError, match="Unauthorized"):
            authenticator.authenticate(request)
    else:
        assert authenticator.authenticate(request).name == "system:anonymous"


@given(st.text(), st.text(alphabet="/apisv1namespecdwtch?=."))
def test_any_path_can_be_counted(method, path):
    describe(Request(method, path))


@given(
    st.text() | st.text(alphabet=".[]?(@='\"*ab01\\"),
    st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)),
)
def test_any_json_path_finds_something_or_nothing(path, value):
    assert isinstance(list(find(path, value)), list)


@given(st.integers(0, 10**10), st.integers(0, 10**10))
def test_durations_are_short_and_never_blank(one, other):
    for seconds in (one, other):
        assert 2 <= len(human_duration(seconds)) <= 6
