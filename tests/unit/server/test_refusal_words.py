"""What clients read when they sent something wrong: the words of kube-apiserver 1.37.1, as it answered the same requests."""

import base64
import json

import pytest
from server_cluster import CLAIMS, JSON_PATCH, MERGE, STRATEGIC, claim, running_cluster

from dray.api.times import TimeError, canonical_microtime
from dray.server.objects.continue_tokens import read_token
from dray.server.requests.errors import ApiError
from dray.server.requests.query_selectors import parse_label_selector

WITHIN = "unable to parse requirement: "
LAYOUT = "2006-01-02T15:04:05.000000Z07:00"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==", "found '==', expected: !, identifier, or 'end of string'"),
        ("()", "found '(', expected: !, identifier, or 'end of string'"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a=x y", "found 'y', expected: ',' or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a,=", "found '=', expected: identifier after ','"),
        ("a in b", WITHIN + "found 'b' expected: '('"),
        ("a notin", WITHIN + "found '' expected: '('"),
        ("a in (b", WITHIN + "found '', expected: ',' or ')'"),
        ("a in (=", WITHIN + "found '=', expected: ',', ')' or identifier"),
        ("!", WITHIN + "found '', expected: identifier"),
        ("a===b", WITHIN + "found '=', expected: identifier"),
        ("a==!b", WITHIN + "found '!', expected: identifier"),
        ("a b", WITHIN + "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("/a", WITHIN + '<nil>: Invalid value: "/a": prefix part must be non-empty'),
        (
            "a<1,b>y",
            WITHIN
            + "values[0]: Invalid value: \"y\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ],
)
def test_a_broken_label_selector(text, words) -> None:
    with pytest.raises(ApiError) as refused:
        parse_label_selector(text)
    assert (refused.value.code, refused.value.message) == (400, words)


def test_every_bad_value_of_a_set_is_named() -> None:
    with pytest.raises(ApiError) as refused:
        parse_label_selector("a in (-,x,-y)")
    assert refused.value.message.startswith(
        WITHIN + '[values[0][a]: Invalid value: "-": a valid label must be'
    )
    assert ', values[1][a]: Invalid value: "-y": a valid label must be' in refused.value.message


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("in in (in)", {"in": "in"}, True),
        ("notin", {"notin": ""}, True),
        ("a in (,)", {"a": ""}, True),
        ("a in ()", {"a": ""}, True),
        ("a in (b,,c)", {"a": ""}, True),
        ("a in (b,,c)", {"a": "d"}, False),
    ],
)
def test_words_that_are_operators_elsewhere_and_empty_values(text, labels, matches) -> None:
    assert all(need.accepts(labels) for need in parse_label_selector(text)) is matches


def encoded(content) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


V1 = "meta.k8s.io/v1"


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("!!!", "illegal base64 data at input byte 0"),
        ("eyJ", "unexpected end of JSON input"),
        (encoded({}), "server does not recognize this encoded version "),
        (encoded(None), "server does not recognize this encoded version "),
        (encoded({"v": "a"}), "server does not recognize this encoded version a"),
        (encoded([]), "json: cannot unmarshal array into Go value of type storage.continueToken"),
        (encoded(123), "json: cannot unmarshal number into Go value of type storage.continueToken"),
        (encoded({"v": V1, "rv": 1}), "encoded start key empty (version meta.k8s.io/v1)"),
        (
            encoded({"v": V1, "rv": "x"}),
            "json: cannot unmarshal string into Go struct field continueToken.rv of type int64",
        ),
        (encoded({"v": V1, "rv": 1, "start": "/etc"}), "invalid start key: /etc"),
    ],
)
def test_a_continue_token_that_is_none_of_ours(token, words) -> None:
    with pytest.raises(ApiError) as refused:
        read_token(token)
    assert refused.value.message == "invalid continue token: continue key is not valid: " + words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2024-05-06T07:08:10.1234567Z", f' as "{LAYOUT}": cannot parse "7Z" as "Z07:00"'),
        ("2024-05-06T07:08:10.123Z", f' as "{LAYOUT}": cannot parse ".123Z" as ".000000"'),
        ("2024-05-06T07:08:10.12345aZ", f' as "{LAYOUT}": cannot parse ".12345aZ" as ".000000"'),
        ("2024-05-06T07:08:10Z", f' as "{LAYOUT}": cannot parse "Z" as ".000000"'),
        ("2024-05-06T07:08:10.123456", f' as "{LAYOUT}": cannot parse "" as "Z07:00"'),
        ("2024-05-06", f' as "{LAYOUT}": cannot parse "" as "T"'),
        ("2024-05-06 07:08:10.123456Z", f' as "{LAYOUT}": cannot parse " 07:08:10.123456Z" as "T"'),
        ("2024-5-6", f' as "{LAYOUT}": cannot parse "5-6" as "01"'),
        ("20240506", f' as "{LAYOUT}": cannot parse "0506" as "-"'),
        ("x", f' as "{LAYOUT}": cannot parse "x" as "2006"'),
        ("2024-13-06T07:08:10.123456Z", ": month out of range"),
        ("2024-02-30T07:08:10.123456Z", ": day out of range"),
        ("2024-05-06T27:08:10.123456Z", ": hour out of range"),
    ],
)
def test_a_time_that_cannot_be_read(text, words) -> None:
    with pytest.raises(TimeError) as refused:
        canonical_microtime(text)
    assert str(refused.value) == f'parsing time "{text}"{words}'


SCHEME = 'in scheme "pkg/api/legacyscheme/scheme.go:30"'


@pytest.mark.parametrize(
    ("kind", "api_version", "words"),
    [
        ("Pod", "v1", 'Pod in version "v1" cannot be handled as a ResourceClaim: converting (v1.Pod) to '
         "(resource.ResourceClaim): unknown conversion"),
        ("ResourceClaimList", "resource.k8s.io/v1", 'ResourceClaimList in version "v1" cannot be handled as a '
         "ResourceClaim: converting (v1.ResourceClaimList) to (resource.ResourceClaim): unknown conversion"),
        ("DeleteOptions", "resource.k8s.io/v1", 'DeleteOptions in version "v1" cannot be handled as a ResourceClaim: '
         "converting (v1.DeleteOptions) to (resource.ResourceClaim): unknown conversion"),
        ("Status", "v1", 'Status in version "v1" cannot be handled as a ResourceClaim: converting (v1.Status) to '
         "(resource.ResourceClaim): unknown conversion"),
        ("Claim", "resource.k8s.io/v1", 'Claim in version "v1" cannot be handled as a ResourceClaim: no kind "Claim" is '
         f'registered for version "resource.k8s.io/v1" {SCHEME}'),
        ("ResourceClaim", "resource.k8s.io/v9", 'ResourceClaim in version "v9" cannot be handled as a ResourceClaim: '
         f'no kind "ResourceClaim" is registered for version "resource.k8s.io/v9" {SCHEME}'),
        ("ResourceClaim", "resource.k8s.io/v1beta1", "the API version in the data (resource.k8s.io/v1beta1) does not "
         "match the expected API version (resource.k8s.io/v1)"),
    ],
)  # fmt: skip
async def test_a_body_of_another_kind(kind, api_version, words) -> None:
    async with running_cluster() as client:
        answer = await client.call("POST", CLAIMS, {**claim(), "kind": kind, "apiVersion": api_version})
        assert (answer.code, answer.json["message"]) == (400, words)


async def test_an_api_version_that_cannot_be_one_shows_the_body() -> None:
    async with running_cluster() as client:
        answer = await client.call("POST", CLAIMS, {"kind": "ResourceClaim", "apiVersion": "a/b/c"})
        assert answer.code == 400
        assert answer.json["message"].startswith(
            "the object provided is unrecognized (must be of type ResourceClaim): unexpected GroupVersion string: a/b/c ({"
        )


async def test_options_of_a_deletion_of_another_kind() -> None:
    async with running_cluster() as client:
        answer = await client.call("DELETE", CLAIMS + "/c", {"kind": "Pod"})
        assert answer.code == 400
        assert answer.json["message"].startswith(
            'no kind "Pod" is registered for version "meta.k8s.io/v1" in scheme '
        )


@pytest.mark.parametrize(
    ("media_type", "patch", "why"),
    [
        (STRATEGIC, {"metadata": {"labels": "x"}}, "cannot restore map from string"),
        (STRATEGIC, {"metadata": "x"}, "cannot restore struct from: string"),
        (STRATEGIC, {"metadata": {"finalizers": "x"}}, "cannot restore slice from string"),
        (STRATEGIC, {"metadata": {"labels": {"a": 3}}}, "cannot convert int64 to string"),
        (MERGE, {"metadata": {"labels": "x"}},
         "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string"),
        (MERGE, {"kind": "Pod"}, f'no kind "Pod" is registered for version "resource.k8s.io/v1" {SCHEME}'),
        (MERGE, {"kind": 3}, "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct "
         "field .kind of type string"),
        (MERGE, {"apiVersion": "x/y/z"}, "unexpected GroupVersion string: x/y/z"),
        (JSON_PATCH, [{"op": "add", "path": "/metadata/labels", "value": {"a": {}}}],
         "json: cannot unmarshal object into Go struct field ObjectMeta.metadata.labels of type string"),
    ],
)  # fmt: skip
async def test_a_patch_whose_result_cannot_be_read(media_type, patch, why) -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        answer = await client.call("PATCH", CLAIMS + "/c", patch, content=media_type)
        assert answer.code == 422
        assert answer.json["message"].startswith(' "" is invalid: patch: Invalid value: "')
        assert answer.json["message"].endswith(f'": {why}')


async def test_the_result_of_a_patch_is_shown_with_sorted_members_where_the_patch_went() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        answer = await client.call(
            "PATCH", CLAIMS + "/c?fieldValidation=Strict",
            [{"op": "add", "path": "/spec/colour", "value": {"z": 1, "a": "<"}}], content=JSON_PATCH,
        )  # fmt: skip
        shown = json.loads(
            json.loads('"' + answer.json["message"].split('Invalid value: "')[1].rpartition('": ')[0] + '"')
        )
        assert list(shown) == sorted(shown)
        assert list(shown["metadata"])[:3] == ["name", "namespace", "uid"]  # the order of the schema
        assert list(shown["spec"]) == ["colour", "devices"]
        assert list(shown["spec"]["colour"]) == ["z", "a"]  # as the patch has it
        assert "\\\\u003c" in answer.json["message"]


async def test_a_template_that_may_not_change_is_shown_as_it_is_kept() -> None:
    templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    template = {**claim(), "kind": "ResourceClaimTemplate", "spec": {"spec": claim()["spec"]}}
    async with running_cluster() as client:
        made = (await client.call("POST", templates, template)).json
        made["spec"] = {"metadata": {"labels": {"a": "b"}}, "spec": {}}
        answer = await client.call("PUT", templates + "/c", made)
        assert (
            'spec: Invalid value: {"labels":{"a":"b"},"Spec":{"Devices":{"Requests":null,"Constraints":null,"Config":null}}}: '
            "field is immutable"
        ) in answer.json["message"]


async def test_a_wrong_uid_names_the_place_in_the_store() -> None:
    async with running_cluster() as client:
        made = (await client.call("POST", CLAIMS, claim())).json
        made["metadata"] |= {"uid": "99999999-0000-4000-8000-000000000000"}
        answer = await client.call("PUT", CLAIMS + "/c", made)
        assert (
            "Code: 4, Key: /registry/resourceclaims/default/c, ResourceVersion: 0" in answer.json["message"]
        )


async def test_a_resource_version_that_is_not_a_number() -> None:
    async with running_cluster() as client:
        made = (await client.call("POST", CLAIMS, claim())).json
        made["metadata"]["resourceVersion"] = "abc"
        answer = await client.call("PUT", CLAIMS + "/c", made)
        assert (answer.code, answer.json["message"]) == (
            500,
            'strconv.ParseUint: parsing "abc": invalid syntax',
        )


async def test_one_object_and_a_list_are_not_the_same_form() -> None:
    form = "application/json;as=PartialObjectMetadata%s;g=meta.k8s.io;v=v1"
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        many = await client.call("GET", CLAIMS, accept=form % "")
        assert (many.code, many.json["message"]) == (
            406,
            "you requested PartialObjectMetadata, but the requested object is a list (*resource.ResourceClaimList)",
        )
        one = await client.call("GET", CLAIMS + "/c", accept=form % "List")
        assert one.json["message"] == (
            "you requested PartialObjectMetadataList, but the requested object is not a list (*resource.ResourceClaim)"
        )


@pytest.mark.parametrize("media_type", ["application/odd", "application/json", "text/plain"])
async def test_a_patch_in_an_unknown_form(media_type) -> None:
    async with running_cluster() as client:
        answer = await client.call("PATCH", f"{CLAIMS}/a", {}, content=media_type)
        assert answer.code == 415
        assert answer.json["message"] == "415: Unsupported Media Type"
        assert not answer.json["details"]
