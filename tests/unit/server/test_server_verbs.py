"""The verbs on a whole server in memory."""

import json

import pytest
from server_cluster import APPLY, CLAIMS, JSON_PATCH, MERGE, STRATEGIC, claim, pod, running_cluster

from dray.server.store import MemoryStore, WriteConflict

PODS = "/api/v1/namespaces/default/pods"


async def test_a_created_object_has_an_identity_and_defaults() -> None:
    async with running_cluster() as client:
        created = await client.call("POST", CLAIMS, claim())
        assert created.code == 201
        metadata = created.json["metadata"]
        assert metadata["uid"]
        assert metadata["creationTimestamp"] == "2026-03-04T05:06:07Z"
        assert created.json["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
        assert created.json["status"] == {}
        assert (await client.call("GET", CLAIMS + "/c")).json == created.json


async def test_a_taken_name_is_refused() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        again = await client.call("POST", CLAIMS, claim())
        assert (again.code, again.json["reason"]) == (409, "AlreadyExists")


async def test_generated_names_fit_into_63_letters() -> None:
    async with running_cluster() as client:
        made = await client.call("POST", CLAIMS, {**claim(), "metadata": {"generateName": "x" * 70}})
        assert len(made.json["metadata"]["name"]) == 63


async def test_items_of_a_list_do_not_repeat_their_kind() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        listed = (await client.call("GET", CLAIMS)).json
        assert listed["kind"] == "ResourceClaimList"
        assert "kind" not in listed["items"][0]
        assert "apiVersion" not in listed["items"][0]


async def test_pages_continue_at_the_same_version() -> None:
    async with running_cluster() as client:
        for number in range(5):
            await client.call("POST", CLAIMS, claim(f"c{number}"))
        first = (await client.call("GET", CLAIMS + "?limit=2")).json
        assert first["metadata"]["remainingItemCount"] == 3
        await client.call("DELETE", CLAIMS + "/c3")
        token = first["metadata"]["continue"]
        rest = (await client.call("GET", f"{CLAIMS}?limit=5&continue={token}")).json
        assert [item["metadata"]["name"] for item in rest["items"]] == ["c2", "c3", "c4"]


async def test_selectors_choose_by_labels_and_fields() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim("a", labels={"tier": "x"}))
        await client.call("POST", CLAIMS, claim("b", labels={"tier": "y"}))
        by_label = (await client.call("GET", CLAIMS + "?labelSelector=tier%20in%20(x,z)")).json
        by_field = (await client.call("GET", CLAIMS + "?fieldSelector=metadata.name!=a")).json
        assert [item["metadata"]["name"] for item in by_label["items"]] == ["a"]
        assert [item["metadata"]["name"] for item in by_field["items"]] == ["b"]
        assert (await client.call("GET", CLAIMS + "?fieldSelector=spec.x=y")).code == 400


async def test_an_update_at_an_old_version_is_a_conflict() -> None:
    async with running_cluster() as client:
        old = (await client.call("POST", CLAIMS, claim())).json
        await client.call("PATCH", CLAIMS + "/c", {"metadata": {"labels": {"a": "b"}}}, content=MERGE)
        refused = await client.call("PUT", CLAIMS + "/c", old)
        assert (refused.code, refused.json["reason"]) == (409, "Conflict")


async def test_an_update_that_loses_a_race_is_made_anew_from_its_body() -> None:
    async with running_cluster() as client:
        await client.call("POST", PODS, pod())
        store = client.cluster.store
        put, losses = store.put, [1, 2]

        async def contested(key, value, expected):
            if losses and key.endswith("/pods/default/p"):
                losses.pop()
                raise WriteConflict(key, None)
            return await put(key, value, expected)

        store.put = contested
        body = pod()
        body["metadata"]["labels"] = {"a": "b"}
        reply = await client.call("PUT", PODS + "/p", body)
        assert (reply.code, losses) == (200, [])
        managers = [entry["manager"] for entry in reply.json["metadata"]["managedFields"]]
        assert (reply.json["metadata"]["labels"], managers) == ({"a": "b"}, ["tester"])


async def test_a_request_never_changes_the_object_that_readers_share() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim(finalizers=["a.test/x"], labels={"a": "b"}))
        objects = client.cluster.objects
        for method, path, body, content in (
            ("PATCH", "/c", {"metadata": {"labels": {"a": "c"}}}, STRATEGIC),
            ("PATCH", "/c", {"metadata": {"labels": {"d": "e"}}}, MERGE),
            ("PATCH", "/c?fieldManager=m&force=true", {**claim(), "spec": None}, APPLY),
            ("PUT", "/c", claim(finalizers=["a.test/x"], labels={"f": "g"}), ""),
            ("PUT", "/c/status", {**claim(), "status": {}}, ""),
            ("DELETE", "/c", None, ""),
            ("PATCH", "/c", {"metadata": {"finalizers": None}}, MERGE),
        ):
            shared = objects.get("resource.k8s.io", "resourceclaims", "default", "c")
            before = json.dumps(shared)
            await client.call(method, CLAIMS + path, body, content=content)
            assert json.dumps(shared) == before, (method, path, content)


async def test_an_update_that_changes_nothing_is_not_written() -> None:
    async with running_cluster() as client:
        before = (await client.call("POST", CLAIMS, claim())).json
        after = (await client.call("PUT", CLAIMS + "/c", claim())).json
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_status_and_spec_have_separate_writers() -> None:
    async with running_cluster() as client:
        await client.call("POST", PODS, pod())
        await client.call("PATCH", PODS + "/p", {"status": {"phase": "Running"}}, content=MERGE)
        assert (await client.call("GET", PODS + "/p")).json["status"]["phase"] == "Pending"
        change = {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}}
        await client.call("PATCH", PODS + "/p/status", change, content=MERGE)
        found = (await client.call("GET", PODS + "/p")).json
        assert (found["status"]["phase"], found["spec"].get("nodeName")) == ("Running", None)


async def test_the_namespace_of_a_cluster_scoped_object_is_dropped() -> None:
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    async with running_cluster() as client:
        made = await client.call("POST", classes, {"metadata": {"name": "x", "namespace": "n"}, "spec": {}})
        assert (made.code, made.json["metadata"].get("namespace")) == (201, None)
        written = await client.call(
            "PUT", classes + "/x", {"metadata": {"name": "x", "namespace": "n"}, "spec": {}}
        )
        assert (written.code, written.json["metadata"].get("namespace")) == (200, None)


async def test_generation_counts_changes_of_what_is_wanted() -> None:
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    async with running_cluster() as client:
        body = {"metadata": {"name": "x"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
        assert (await client.call("POST", classes, body)).json["metadata"]["generation"] == 1
        labelled = await client.call(
            "PATCH", classes + "/x", {"metadata": {"labels": {"a": "b"}}}, content=MERGE
        )
        assert labelled.json["metadata"]["generation"] == 1
        changed = await client.call("PATCH", classes + "/x", {"spec": {"selectors": None}}, content=MERGE)
        assert changed.json["metadata"]["generation"] == 2


async def test_unknown_fields_are_warned_about_refused_or_ignored() -> None:
    async with running_cluster() as client:
        wrong = {**claim("a"), "bogus": 1}
        assert (await client.call("POST", CLAIMS + "?fieldValidation=Strict", wrong)).code == 400
        assert (await client.call("POST", CLAIMS + "?fieldValidation=Ignore", wrong)).warnings == []
        warned = await client.call("POST", CLAIMS, {**claim("b"), "bogus": 1})
        assert warned.warnings == ['299 - "unknown field \\"bogus\\""']


async def test_patches_of_three_kinds_change_labels() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim(labels={"a": "1"}))
        merged = await client.call(
            "PATCH", CLAIMS + "/c", {"metadata": {"labels": {"b": "2"}}}, content=MERGE
        )
        steps = [{"op": "replace", "path": "/metadata/labels/a", "value": "3"}]
        replaced = await client.call("PATCH", CLAIMS + "/c", steps, content=JSON_PATCH)
        directive = {"metadata": {"labels": {"$patch": "replace", "z": "9"}}}
        strategic = await client.call("PATCH", CLAIMS + "/c", directive, content=STRATEGIC)
        assert merged.json["metadata"]["labels"] == {"a": "1", "b": "2"}
        assert replaced.json["metadata"]["labels"] == {"a": "3", "b": "2"}
        assert strategic.json["metadata"]["labels"] == {"z": "9"}


async def test_a_claim_spec_cannot_be_patched() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        refused = await client.call(
            "PATCH", CLAIMS + "/c", {"spec": {"devices": {"requests": []}}}, content=MERGE
        )
        assert (refused.code, refused.fields) == (422, ["spec"])


async def test_apply_creates_conflicts_and_can_be_forced() -> None:
    async with running_cluster() as client:
        mine = claim(labels={"owner": "me"})
        assert (await client.call("PATCH", CLAIMS + "/c?fieldManager=me", mine, content=APPLY)).code == 201
        # Without the spec: its list of requests is one field, and defaults changed it already.
        yours = {**claim(labels={"owner": "you"}), "spec": {}}
        conflict = await client.call("PATCH", CLAIMS + "/c?fieldManager=you", yours, content=APPLY)
        assert (conflict.code, conflict.fields) == (409, [".metadata.labels.owner"])
        forced = await client.call("PATCH", CLAIMS + "/c?fieldManager=you&force=true", yours, content=APPLY)
        assert forced.json["metadata"]["labels"] == {"owner": "you"}
        nothing = {**claim(), "spec": {}}
        less = await client.call("PATCH", CLAIMS + "/c?fieldManager=you", nothing, content=APPLY)
        assert "labels" not in less.json["metadata"], "what nobody applies any more goes"


async def test_finalizers_hold_a_deleted_object() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim(finalizers=["a.test/hold"]))
        dying = (await client.call("DELETE", CLAIMS + "/c")).json
        assert dying["metadata"]["deletionTimestamp"]
        assert dying["metadata"]["deletionGracePeriodSeconds"] == 0
        taken = await client.call("POST", CLAIMS, claim())
        assert taken.json["message"].startswith("object is being deleted:")
        await client.call("PATCH", CLAIMS + "/c", {"metadata": {"finalizers": None}}, content=MERGE)
        assert (await client.call("GET", CLAIMS + "/c")).code == 404


async def test_preconditions_protect_from_deleting_the_wrong_object() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        wrong = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}}
        assert (await client.call("DELETE", CLAIMS + "/c", wrong)).code == 409
        assert (await client.call("GET", CLAIMS + "/c")).code == 200


async def test_a_bound_pod_dies_with_grace_and_an_unbound_one_at_once() -> None:
    async with running_cluster() as client:
        await client.call("POST", PODS, pod("free"))
        await client.call("DELETE", PODS + "/free")
        assert (await client.call("GET", PODS + "/free")).code == 404
        await client.call("POST", PODS, pod("bound", nodeName="n"))
        dying = (await client.call("DELETE", PODS + "/bound")).json
        assert dying["metadata"]["deletionGracePeriodSeconds"] == 30
        await client.call("DELETE", PODS + "/bound?gracePeriodSeconds=0")
        assert (await client.call("GET", PODS + "/bound")).code == 404


async def _delete_while(client, path, *meanwhile):
    """Delete a pod at once, and let others write to it between its mark and its end."""
    store, writes = client.cluster.store, list(meanwhile)
    delete = store.delete

    async def slow_delete(key, expected):
        if writes:
            await writes.pop(0)()
        return await delete(key, expected)

    store.delete = slow_delete
    return await client.call("DELETE", path + "?gracePeriodSeconds=0")


async def test_a_pod_that_a_late_writer_finished_off_was_deleted_all_the_same() -> None:
    async with running_cluster() as client:
        await client.call("POST", PODS, pod("p"))

        async def label():
            await client.call("PATCH", PODS + "/p", {"metadata": {"labels": {"a": "b"}}}, content=MERGE)

        answer = await _delete_while(client, PODS + "/p", label)
        assert answer.code == 200 and answer.json["metadata"]["name"] == "p"
        assert (await client.call("GET", PODS + "/p")).code == 404


async def test_a_pod_that_was_replaced_while_it_went_is_not_deleted_with_it() -> None:
    async with running_cluster() as client:
        first = (await client.call("POST", PODS, pod("p"))).json["metadata"]["uid"]

        async def replace():
            await client.call("PATCH", PODS + "/p", {"metadata": {"labels": {"a": "b"}}}, content=MERGE)
            await client.call("POST", PODS, pod("p"))

        answer = await _delete_while(client, PODS + "/p", replace)
        assert answer.code == 200 and answer.json["metadata"]["uid"] == first
        assert (await client.call("GET", PODS + "/p")).json["metadata"]["uid"] != first


async def test_a_dry_run_writes_nothing() -> None:
    async with running_cluster() as client:
        dry = await client.call("POST", CLAIMS + "?dryRun=All", claim())
        assert dry.code == 201
        assert "resourceVersion" not in dry.json["metadata"]
        assert (await client.call("GET", CLAIMS + "/c")).code == 404


async def test_collections_are_deleted_by_selector() -> None:
    async with running_cluster() as client:
        for name, tier in (("a", "x"), ("b", "y")):
            await client.call("POST", CLAIMS, claim(name, labels={"tier": tier}))
        gone = (await client.call("DELETE", CLAIMS + "?labelSelector=tier%3Dx")).json
        assert [item["metadata"]["name"] for item in gone["items"]] == ["a"]
        left = (await client.call("GET", CLAIMS)).json["items"]
        assert [item["metadata"]["name"] for item in left] == ["b"]


async def test_old_versions_show_the_same_object_in_their_shape() -> None:
    async with running_cluster() as client:
        await client.call("POST", CLAIMS, claim())
        old = await client.call("GET", CLAIMS.replace("/v1/", "/v1beta1/") + "/c")
        assert old.json["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu"
        assert "deprecated in v1.35+" in old.warnings[0]


async def test_raw_parameters_are_kept_byte_by_byte() -> None:
    async with running_cluster() as client:
        body = (
            b'{"metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"x"}}],'
            b'"config":[{"opaque":{"driver":"d.test","parameters":{"b": 1.0,"a":2}}}]}}}'
        )
        assert (await client.call("POST", CLAIMS, body)).code == 201
        assert (await client.call("PUT", CLAIMS + "/c", body)).code == 200
        # A patch starts from the compact form, which is not what was sent.
        refused = await client.call(
            "PATCH", CLAIMS + "/c", {"metadata": {"labels": {"a": "b"}}}, content=MERGE
        )
        assert (refused.code, refused.fields) == (422, ["spec"])


async def test_anonymous_and_guests_are_refused_and_wrong_tokens_unknown() -> None:
    async with running_cluster() as client:
        assert (await client.call("GET", CLAIMS, token="")).code == 403
        assert (await client.call("GET", CLAIMS, token="guest")).code == 403
        assert (await client.call("GET", "/version", token="wrong")).code == 401
        assert (await client.call("GET", "/version", token="")).code == 200


async def test_binding_assigns_a_pod_once() -> None:
    async with running_cluster() as client:
        await client.call("POST", PODS, pod())
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
        assert (await client.call("POST", PODS + "/p/binding", binding)).code == 201
        assert (await client.call("GET", PODS + "/p")).json["spec"]["nodeName"] == "n"
        assert (await client.call("POST", PODS + "/p/binding", binding)).code == 409


async def test_broken_bodies_are_the_clients_fault() -> None:
    async with running_cluster() as client:
        for body in (
            b"{",
            b"[]",
            b'"x"',
            b"[" * 20_000,
            b'{"metadata":[]}',
            b'{"metadata":{"name":5}}',
            b"\xff\xfe",
        ):
            for method, target in (("POST", CLAIMS), ("PUT", CLAIMS + "/c")):
                assert 400 <= (await client.call(method, target, body)).code < 500, (method, body[:20])


@pytest.mark.parametrize(
    "entry",
    [
        {"manager": "m", "operation": "Update", "apiVersion": "resource.k8s.io/v1", "fieldsV1": {"f:a": "x"}},
        {"manager": "m", "operation": "Update", "apiVersion": "resource.k8s.io/v1", "fieldsV1": {"a": {}}},
        {"manager": "m", "operation": "Update", "apiVersion": "resource.k8s.io/v1", "fieldsV1": {"k:{": {}}},
        {"manager": "m", "operation": "Update", "apiVersion": "resource.k8s.io/v1", "fieldsV1": {"k:1": {}}},
        {"manager": "m", "operation": "Update", "apiVersion": "resource.k8s.io/v1", "fieldsV1": {"i:x": {}}},
    ],
)
async def test_managed_fields_that_make_no_sense_are_not_kept(entry) -> None:
    async with running_cluster() as client:
        made = await client.call("POST", CLAIMS, claim(managedFields=[{**entry, "fieldsType": "FieldsV1"}]))
        assert made.code == 201
        assert all(each["manager"] != "m" for each in made.json["metadata"]["managedFields"])
        patched = await client.call(
            "PATCH", CLAIMS + "/c", {"metadata": {"labels": {"a": "b"}}}, content=MERGE
        )
        assert patched.code == 200


async def test_a_server_that_cannot_write_is_neither_ready_nor_live_and_says_why(monkeypatch) -> None:
    trouble = [""]
    monkeypatch.setattr(MemoryStore, "trouble", lambda self: trouble[0])
    async with running_cluster() as client:
        assert (await client.call("GET", "/readyz", token="")).code == 200
        trouble[0] = "database or disk is full"
        for path in ("/readyz", "/livez", "/healthz"):
            reply = await client.call("GET", path, token="")
            assert reply.code == 500
            assert b"[-]etcd failed: database or disk is full" in reply.body
        assert (await client.call("GET", "/livez/etcd")).code == 500
        assert (await client.call("GET", "/livez?exclude=etcd")).code == 200
        assert (await client.call("GET", "/livez/ping")).code == 200
        trouble[0] = ""
        assert (await client.call("GET", "/readyz", token="")).code == 200
