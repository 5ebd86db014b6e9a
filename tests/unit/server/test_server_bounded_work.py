"""Work per request is bounded: what a body asks for grows with its size, and no faster."""

import time
from typing import Any

import pytest
from server_cluster import APPLY, JSON_PATCH, MERGE, STRATEGIC, running_cluster

from dray.api.validation.fields import Path
from dray.api.validation.metadata import validate_annotations, validate_labels
from dray.server.patch.json_patch import (
    MAX_COPIED_BYTES,
    MAX_OPERATIONS,
    MAX_SHIFTED_ITEMS,
    PatchError,
    apply_json_patch,
)
from dray.server.requests.calls import MAX_LONG_WARNING, MAX_WARNING_CHARACTERS, MAX_WARNINGS
from dray.server.requests.errors import MAX_MESSAGE

CONFIGS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
SECRETS = "/api/v1/namespaces/default/secrets"


def config(name: str = "c", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **more}


def pod_with(**container: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x", **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


# --- warnings ------------------------------------------------------------------------


async def test_many_unknown_fields_are_named_once_and_only_the_first_of_them() -> None:
    body = config(**{f"x{number}": 1 for number in range(20_000)})
    async with running_cluster() as client:
        answer = await client.call("POST", CONFIGS, body)
        assert answer.code == 201
        assert len(answer.warnings) == MAX_WARNINGS
        assert answer.warnings[0] == '299 - "unknown field \\"x0\\""'
        strict = await client.call("POST", f"{CONFIGS}?fieldValidation=Strict", body)
        assert strict.code == 400
        assert strict.json["message"].count("unknown field") == 100


async def test_many_repeated_fields_are_named_once_and_only_the_first_of_them() -> None:
    pairs = ",".join(f'"k{number}":"a","k{number}":"b"' for number in range(20_000))
    body = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{' + pairs + "}}"
    async with running_cluster() as client:
        answer = await client.call("POST", CONFIGS, body.encode())
        assert (answer.code, len(answer.warnings)) == (201, MAX_WARNINGS)
        patched = await client.call(
            "PATCH", f"{CONFIGS}/c", ('{"data":{' + pairs + "}}").encode(), content=MERGE
        )
        assert (patched.code, len(patched.warnings)) == (200, MAX_WARNINGS)


async def test_long_warnings_are_shortened_and_stop_at_a_total() -> None:
    async with running_cluster() as client:
        few = await client.call("POST", CONFIGS, config("few", **{"y" * 3000: 1}))
        assert len(few.warnings) == 1
        assert "y" * 3000 in few.warnings[0]
        many = await client.call(
            "POST", CONFIGS, config("many", **{f"{number}{'y' * 1000}": 1 for number in range(90)})
        )
        texts = [text.removeprefix('299 - "').removesuffix('"') for text in many.warnings]
        assert all(len(text.replace("\\", "")) <= MAX_LONG_WARNING for text in texts)
        assert len(texts) == MAX_WARNING_CHARACTERS // MAX_LONG_WARNING


# --- JSON patches ------------------------------------------------------------------------


def test_copies_of_a_patch_are_bounded_together() -> None:
    bomb = [{"op": "copy", "from": "/spec", "path": f"/spec/c{number}"} for number in range(40)]
    start = time.perf_counter()
    with pytest.raises(PatchError, match=f"accumulated size increase of copy .* limit {MAX_COPIED_BYTES}"):
        apply_json_patch({"spec": {"a": ["x" * 20] * 100}}, bomb)
    assert time.perf_counter() - start < 5
    fine = apply_json_patch({"a": ["x" * 1000] * 1000}, [{"op": "copy", "from": "/a", "path": "/b"}] * 2)
    assert fine["b"] == fine["a"]
    assert fine["b"] is not fine["a"]


async def test_a_copy_bomb_is_refused_as_kube_apiserver_refuses_it() -> None:
    bomb = [{"op": "copy", "from": "/data", "path": f"/data/c{number}"} for number in range(40)]
    async with running_cluster() as client:
        await client.call("POST", CONFIGS, config(data={"a": "x" * 100}))
        answer = await client.call("PATCH", f"{CONFIGS}/c", bomb, content=JSON_PATCH)
        assert answer.code == 422
        assert answer.json["message"] == "the server rejected our request due to an error in our request"


async def test_a_patch_has_at_most_so_many_operations() -> None:
    step = {"op": "add", "path": "/data/a", "value": "b"}
    async with running_cluster() as client:
        await client.call("POST", CONFIGS, config(data={"z": "1"}))
        answer = await client.call("PATCH", f"{CONFIGS}/c", [step] * MAX_OPERATIONS, content=JSON_PATCH)
        assert (answer.code, answer.json["data"]) == (200, {"a": "b", "z": "1"})
        answer = await client.call("PATCH", f"{CONFIGS}/c", [step] * (MAX_OPERATIONS + 1), content=JSON_PATCH)
        assert answer.code == 413
        assert answer.json["message"].endswith(
            "The allowed maximum operations in a JSON patch is 10000, got 10001"
        )


@pytest.mark.parametrize("kind", ["copy", "move"])
def test_a_patch_cannot_nest_without_end(kind: str) -> None:
    if kind == "copy":
        steps = [{"op": "copy", "from": "/a", "path": "/a/b"}] * 1000
    else:
        steps = [
            {"op": "move", "from": "/a", "path": "/x"},
            {"op": "add", "path": "/a", "value": {}},
            {"op": "move", "from": "/x", "path": "/a/b"},
        ] * 3000
    with pytest.raises(PatchError):
        apply_json_patch({"a": {}}, steps)


def test_a_patch_moves_only_so_many_list_items() -> None:
    size = 200_000
    steps = [{"op": "add", "path": "/a/0", "value": 1}, {"op": "remove", "path": "/a/0"}] * 5000
    with pytest.raises(PatchError, match="list items"):
        apply_json_patch({"a": [0] * size}, steps)
    n_allowed = MAX_SHIFTED_ITEMS // size - 2
    assert len(apply_json_patch({"a": [0] * size}, steps[:n_allowed])["a"]) == size


# --- no work that grows with the square ---------------------------------------------------


def _owners(n: int) -> list[tuple[str, str, Any, str]]:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": f"u{at}"} for at in range(n)]
    return [("POST", CONFIGS, {**config(), "metadata": {"name": "c", "ownerReferences": owners}}, "")]


def _managers(n: int) -> list[tuple[str, str, Any, str]]:
    entries = [
        {"manager": f"m{at}", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
         "fieldsV1": {"f:data": {f"f:k{at}": {}}}}
        for at in range(n)
    ]  # fmt: skip
    return [("POST", CONFIGS, {**config(), "metadata": {"name": "c", "managedFields": entries}}, "")]


def _finalizers(n: int) -> list[tuple[str, str, Any, str]]:
    def some(prefix: str) -> list[str]:
        return [f"example.com/{prefix}{at}" for at in range(n)]

    order = {"$setElementOrder/finalizers": some("a"), "finalizers": some("c")}
    return [
        ("POST", CONFIGS, {**config(), "metadata": {"name": "c", "finalizers": some("a")}}, ""),
        ("PATCH", f"{CONFIGS}/c", {"metadata": {"finalizers": some("b")}}, STRATEGIC),
        ("PATCH", f"{CONFIGS}/c", {"metadata": order}, STRATEGIC),
        (
            "PATCH",
            f"{CONFIGS}/c",
            {"metadata": {"$deleteFromPrimitiveList/finalizers": some("b")}},
            STRATEGIC,
        ),
    ]


def _environment(n: int) -> list[tuple[str, str, Any, str]]:
    def some(prefix: str, **more: Any) -> list[dict[str, Any]]:
        return [{"name": f"{prefix}{at}", **(more or {"value": "x"})} for at in range(n)]

    def patch(env: list[dict[str, Any]]) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "c", "env": env}]}}

    return [
        ("POST", PODS, pod_with(env=some("A")), ""),
        ("PATCH", f"{PODS}/p", patch(some("B")), STRATEGIC),
        ("PATCH", f"{PODS}/p", patch(some("A", **{"$patch": "delete"})), STRATEGIC),
        ("PATCH", f"{PODS}/p?fieldManager=a", pod_with(env=some("B")), APPLY),
    ]


def _claims_of_pod(n: int) -> list[tuple[str, str, Any, str]]:
    body = pod_with(resources={"claims": [{"name": f"r{at}"} for at in range(n)]})
    body["spec"]["resourceClaims"] = [{"name": f"r{at}", "resourceClaimName": "x"} for at in range(n)]
    return [("POST", PODS, body, "")]


def _applies(n: int) -> list[tuple[str, str, Any, str]]:
    def wanted(prefix: str) -> dict[str, Any]:
        return config(data={f"{prefix}{at}": prefix for at in range(n)})

    target = f"{CONFIGS}/c?fieldManager="
    return [
        ("PATCH", f"{target}a", wanted("x"), APPLY),
        ("PATCH", f"{target}b", config(data={f"x{at}": "other" for at in range(n)}), APPLY),
        ("PATCH", f"{target}b&force=true", wanted("x"), APPLY),
        ("PATCH", f"{target}a", wanted("y"), APPLY),
    ]


@pytest.mark.parametrize(
    "steps",
    [_owners, _managers, _finalizers, _environment, _claims_of_pod, _applies],
    ids=lambda made: made.__name__.strip("_"),
)
async def test_work_grows_with_the_body_and_not_with_its_square(steps: Any) -> None:
    async def seconds(n: int) -> float:
        async with running_cluster() as client:
            requests = steps(n)
            start = time.process_time()  # what other programs do does not count
            for method, target, body, content in requests:
                answer = await client.call(method, target, body, content=content)
                assert answer.code < 500, answer.body[:300]
            return time.process_time() - start

    small = min([await seconds(500), await seconds(500)])
    # Sixteen times the body: linear work takes 16 times as long, quadratic work 256 times.
    assert await seconds(8000) < 80 * small + 0.1


# --- bodies that are not what they should be ---------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"preconditions": "A"}, "cannot unmarshal string into Go struct field DeleteOptions.preconditions of type"),
        ({"preconditions": {"uid": 1}}, "cannot unmarshal number into Go struct field Preconditions"),
        ({"preconditions": []}, "cannot unmarshal array into Go struct field DeleteOptions.preconditions of type"),
        ({"dryRun": "All"}, "cannot unmarshal string into Go struct field DeleteOptions.dryRun of type []string"),
        ({"dryRun": [1]}, "cannot unmarshal number into Go struct field DeleteOptions.dryRun of type"),
        ({"gracePeriodSeconds": "x"}, "cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds"),
    ],
)  # fmt: skip
async def test_delete_options_of_wrong_types_are_a_bad_request(body: Any, message: str) -> None:
    async with running_cluster() as client:
        await client.call("POST", CONFIGS, config())
        answer = await client.call("DELETE", f"{CONFIGS}/c", body)
        assert answer.code == 400, answer.body
        assert message in answer.json["message"]
        assert (await client.call("GET", f"{CONFIGS}/c")).code == 200


@pytest.mark.parametrize(
    "text", ["é", "YQ==é", "YQ=", "a b", "=", "\ud800".encode("utf-8", "replace").decode(), "YQ==YQ=="]
)
async def test_text_that_is_not_base64_is_a_bad_request(text: str) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": text}}
    async with running_cluster() as client:
        answer = await client.call("POST", SECRETS, body)
        assert answer.code == 400
        assert "illegal base64 data at input byte" in answer.json["message"]


async def test_the_answer_about_many_problems_is_bounded() -> None:
    n = 3000
    body = pod_with(resources={"claims": [{"name": f"missing{at}"} for at in range(n)]})
    body["spec"]["resourceClaims"] = [{"name": f"r{at}", "resourceClaimName": "x"} for at in range(n)]
    async with running_cluster() as client:
        answer = await client.call("POST", PODS, body)
        assert answer.code == 422
        assert len(answer.body) < 5 * MAX_MESSAGE  # each problem names all claims of the pod
        assert answer.json["message"].endswith(" more]")


@pytest.mark.parametrize(
    ("method", "target", "body", "content", "message"),
    [
        ("POST", CONFIGS, b'{"a"', "", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; "
         'json parse error: unexpected end of JSON input ({"a")'),
        ("POST", CONFIGS, b"", "", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; "
         "json parse error: unexpected end of JSON input (<empty>)"),
        ("POST", CONFIGS, b"[" * 40_000, "application/yaml", "the object provided is unrecognized (must be of type ConfigMap): "
         f"yaml: exceeded max depth of 200 ({'5b' * 30} ...)"),
        ("DELETE", f"{CONFIGS}/c", b'{"a"', "", "couldn't get version/kind; json parse error: unexpected end of JSON input"),
        ("PATCH", f"{CONFIGS}/c", b'{"a"', MERGE, "invalid JSON patch"),
        ("PATCH", f"{CONFIGS}/c", b"[" * 40_000, JSON_PATCH, "invalid JSON patch"),
        ("PATCH", f"{CONFIGS}/c", b"[1]", MERGE,
         "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"),
        ("PATCH", f"{CONFIGS}/c?fieldManager=m", b"[" * 40_000, APPLY, "error encoding patch: yaml: exceeded max depth of 200"),
    ],
)  # fmt: skip
async def test_bodies_that_cannot_be_read_are_answered_in_kube_apiservers_words(
    method: str, target: str, body: bytes, content: str, message: str
) -> None:
    async with running_cluster() as client:
        await client.call("POST", CONFIGS, config())
        answer = await client.call(method, target, body, content=content)
        assert (answer.code, answer.json["message"]) == (400, message)


@pytest.mark.parametrize(
    ("text", "place"), [("é", 0), ("YQ=", 3), ("YQ==x", 4), ("YQ", 0), ("YQx", 0), ("YWJj!", 4), ("Y=Q=", 1), ("YQ=x", 2)]
)  # fmt: skip
async def test_the_place_where_base64_breaks_is_gos(text: str, place: int) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": text}}
    async with running_cluster() as client:
        answer = await client.call("POST", SECRETS, body)
        assert answer.json["message"].endswith(f"illegal base64 data at input byte {place}")


@pytest.mark.parametrize(
    "accept", ["," * 60_000, ",".join(f"a/{n}" for n in range(9_000)), "a/b;q=1," * 7_000]
)
def test_an_accept_header_full_of_clauses_takes_little_time(accept):
    from dray.server.requests.content_negotiation import negotiate
    from dray.server.requests.errors import ApiError

    began = time.thread_time()
    with pytest.raises(ApiError):
        negotiate(accept)
    assert time.thread_time() - began < 0.1, "0.35 s when every clause was taken apart"
    assert negotiate(accept + ",application/json").is_plain


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_mistakes_in_one_map_are_not_collected_without_end(field: str) -> None:
    keys = {f"-{number}": "-" for number in range(50_000)}
    validate = validate_labels if field == "labels" else validate_annotations
    found = validate(keys, Path("metadata").child(field))
    assert 10_000 <= len(found) <= 10_003  # both of the last label, and the size of annotations
