"""Tables: columns, cells and ages as kubectl expects them."""

import doctest
import json
import re
import time
from datetime import UTC, datetime
from importlib import import_module

import pytest
from shared_data import shared

from dray.api.kinds import KINDS, Kind, kind_of_plural
from dray.server.tables import Tables, human_duration
from dray.server.tables.json_path import find

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
AN_HOUR_AGO = "2026-11-16T11:00:00Z"
AGE = re.compile(r"^(\d+[smhdy])+( \(.*\))?$|^<invalid>$")


def table(resource, *things, group="", include="Metadata", tables=None, version="v1"):
    made = [
        {**thing, "metadata": {"creationTimestamp": AN_HOUR_AGO, **thing.get("metadata", {})}}
        for thing in things
    ]
    kind = kind_of_plural(group, resource)
    return (tables or Tables(lambda: NOW)).to_table(kind, version, made, {}, include, "v1")


def row(resource, thing, group=""):
    shown = table(resource, {"metadata": {"name": "x"}, **thing}, group=group)
    names = [column["name"] for column in shown["columnDefinitions"]]
    return dict(zip(names, shown["rows"][0]["cells"], strict=True))


@pytest.mark.parametrize("module", ["ages", "kind_columns", "workload_cells", "json_path"])
def test_the_examples_hold(module):
    assert doctest.testmod(import_module(f"dray.server.tables.{module}")).failed == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (119, "119s"), (120, "2m"), (599, "9m59s"), (600, "10m"), (10799, "179m"), (10800, "3h"),
     (8 * 3600, "8h"), (48 * 3600, "2d"), (8 * 86400, "8d"), (730 * 86400, "2y"), (3000 * 86400, "8y")],
)  # fmt: skip
def test_durations_have_at_most_two_units(seconds, text):
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "list" in kind.verbs], ids=lambda kind: kind.plural
)
def test_every_kind_has_as_many_cells_as_columns(kind):
    shown = Tables(lambda: NOW).to_table(
        kind, kind.versions[0], [{"metadata": {"name": "x"}}], {}, "None", "v1"
    )
    assert len(shown["rows"][0]["cells"]) == len(shown["columnDefinitions"])
    assert "x" in shown["rows"][0]["cells"]


def test_rows_carry_as_much_of_their_object_as_is_asked_for():
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {}}}
    whole = table("resourceclaims", claim, group="resource.k8s.io", include="Object")["rows"][0]["object"]
    assert whole["spec"] == {"devices": {}}
    partial = table("resourceclaims", claim, group="resource.k8s.io")["rows"][0]["object"]
    assert (partial["kind"], partial["apiVersion"], "spec" in partial) == (
        "PartialObjectMetadata",
        "meta.k8s.io/v1",
        False,
    )
    assert (
        table("resourceclaims", claim, group="resource.k8s.io", include="None")["rows"][0]["object"] is None
    )


@pytest.mark.parametrize(
    ("status", "deleted", "state"),
    [
        ({}, False, "pending"),
        ({"allocation": {}}, False, "allocated"),
        ({"allocation": {}, "reservedFor": [{"name": "p"}]}, False, "allocated,reserved"),
        ({}, True, "deleted"),
        ({"allocation": {}}, True, "deleted,allocated"),
    ],
)
def test_the_state_of_a_claim(status, deleted, state):
    metadata = {"name": "c"} | ({"deletionTimestamp": AN_HOUR_AGO} if deleted else {})
    assert (
        row("resourceclaims", {"metadata": metadata, "status": status}, "resource.k8s.io")["State"] == state
    )


def running(name="c", **rest):
    return {"name": name, "ready": True, "restartCount": 0, "state": {"running": {}}, **rest}


def ended(code=0, reason="", **rest):
    return {
        "name": "c",
        "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason}},
        **rest,
    }


READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("spec", "status", "metadata", "ready", "state"),
    [
        ({}, {"phase": "Pending"}, {}, "0/1", "Pending"),
        ({}, {"phase": "Running", "containerStatuses": [running()]}, {}, "1/1", "Running"),
        ({}, {"phase": "Failed", "reason": "Evicted"}, {}, "0/1", "Evicted"),
        ({}, {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}, {}, "0/1", "SchedulingGated"),
        ({}, {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, {}, "0/1", "ImagePullBackOff"),
        ({}, {"phase": "Succeeded", "containerStatuses": [ended(reason="Completed")]}, {}, "0/1", "Completed"),
        ({}, {"phase": "Failed", "containerStatuses": [ended(3)]}, {}, "0/1", "ExitCode:3"),
        ({}, {"phase": "Running", "conditions": [READY], "containerStatuses": [ended(reason="Completed"), running()]}, {}, "1/1", "Running"),
        ({}, {"phase": "Running", "containerStatuses": [ended(reason="Completed"), running()]}, {}, "1/1", "NotReady"),
        ({}, {"phase": "Running", "containerStatuses": [running()]}, {"deletionTimestamp": AN_HOUR_AGO}, "1/1", "Terminating"),
        ({}, {"phase": "Running", "reason": "NodeLost"}, {"deletionTimestamp": AN_HOUR_AGO}, "0/1", "Unknown"),
        ({"initContainers": [{"name": "i"}]}, {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}, {}, "0/1", "Init:0/1"),
        ({"initContainers": [{"name": "i"}]}, {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}]}, {}, "0/1", "Init:Error"),
        ({"initContainers": [{"name": "s", "restartPolicy": "Always"}]}, {"phase": "Running", "initContainerStatuses": [{"name": "s", "started": True, "ready": True, "state": {"running": {}}}], "containerStatuses": [running()]}, {}, "2/2", "Running"),
    ],
)  # fmt: skip
def test_the_state_of_a_pod(spec, status, metadata, ready, state):
    shown = row(
        "pods",
        {"metadata": {"name": "p", **metadata}, "spec": {"containers": [{}], **spec}, "status": status},
    )
    assert (shown["Ready"], shown["Status"]) == (ready, state)


def test_restarts_tell_when_the_last_one_was():
    last = {"terminated": {"finishedAt": "2026-11-16T11:58:30Z"}}
    statuses = [running(restartCount=3, lastState=last)]
    shown = row(
        "pods", {"spec": {"containers": [{}]}, "status": {"phase": "Running", "containerStatuses": statuses}}
    )
    assert shown["Restarts"] == "3 (90s ago)"


def test_finished_pods_are_marked():
    (marked,) = table("pods", {"metadata": {"name": "p"}, "status": {"phase": "Succeeded"}})["rows"]
    assert marked["conditions"][0]["reason"] == "Succeeded"
    (plain,) = table("pods", {"metadata": {"name": "p"}, "status": {"phase": "Running"}})["rows"]
    assert "conditions" not in plain


def test_nodes_show_state_roles_and_addresses():
    labels = {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "worker"}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {"kernelVersion": "6.1", "architecture": "amd64", "kubeletVersion": "v1.37"},
    }
    shown = row(
        "nodes",
        {"metadata": {"name": "n", "labels": labels}, "spec": {"unschedulable": True}, "status": status},
    )
    assert shown["Status"] == "NotReady,SchedulingDisabled"
    assert shown["Roles"] == "control-plane,worker"
    assert (shown["Internal-IP"], shown["External-IP"], shown["Kernel-Version"]) == (
        "10.0.0.1",
        "<none>",
        "6.1 (amd64)",
    )


def test_pool_status_sums_its_pools():
    pools = [
        {"totalDevices": 4, "availableDevices": 3, "allocatedDevices": 1},
        {"totalDevices": 2, "validationError": "x"},
    ]
    done = {"type": "Complete", "status": "True", "lastTransitionTime": AN_HOUR_AGO}
    thing = {"spec": {"driver": "d"}, "status": {"poolCount": 3, "pools": pools, "conditions": [done]}}
    shown = row("resourcepoolstatusrequests", thing, "resource.k8s.io")
    assert (shown["Total"], shown["Available"], shown["Errors"], shown["Pools"]) == ("6", "3", "1", 3)
    assert (shown["Status"], shown["Completed"]) == ("Complete (2/3 pools)", "60m")
    assert (
        row("resourcepoolstatusrequests", {"spec": {"driver": "d"}}, "resource.k8s.io")["Status"] == "Pending"
    )


def test_workloads_jobs_quotas_and_budgets():
    template = {
        "spec": {
            "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}],
            "nodeSelector": {"x": "y"},
        }
    }
    selector = {"matchLabels": {"app": "web"}}
    deployment = row(
        "deployments",
        {"spec": {"replicas": 3, "template": template, "selector": selector}, "status": {"readyReplicas": 1}},
        "apps",
    )
    assert (deployment["Ready"], deployment["Images"], deployment["Selector"]) == ("1/3", "i,j", "app=web")
    daemon_set = row(
        "daemonsets", {"spec": {"template": template}, "status": {"desiredNumberScheduled": 2}}, "apps"
    )
    assert (daemon_set["Desired"], daemon_set["Node Selector"], daemon_set["Selector"]) == (
        2,
        "x=y",
        "<none>",
    )
    job = row(
        "jobs",
        {"spec": {"completions": 2}, "status": {"succeeded": 1, "startTime": "2026-11-16T11:59:00Z"}},
        "batch",
    )
    assert (job["Status"], job["Completions"], job["Duration"]) == ("Running", "1/2", "60s")
    quota = row(
        "resourcequotas", {"status": {"hard": {"pods": "2", "limits.cpu": "1000m"}, "used": {"pods": "1"}}}
    )
    assert (quota["Request"], quota["Limit"]) == ("pods: 1/2", "limits.cpu: 0/1")
    budget = row("poddisruptionbudgets", {"spec": {"minAvailable": "50%"}}, "policy")
    assert (budget["Min Available"], budget["Max Unavailable"]) == ("50%", "N/A")


def test_bindings_events_and_definitions():
    subjects = [{"kind": "User", "name": "ann"}, {"kind": "ServiceAccount", "namespace": "d", "name": "gpu"}]
    binding = row(
        "rolebindings",
        {"roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects},
        "rbac.authorization.k8s.io",
    )
    assert (binding["Role"], binding["Users"], binding["ServiceAccounts"]) == ("Role/r", "ann", "d/gpu")
    event = row(
        "events",
        {
            "regarding": {"kind": "Pod", "name": "p"},
            "note": " hi ",
            "reportingController": "k",
            "reportingInstance": "n1",
            "eventTime": "2026-11-16T11:59:50.000000Z",
            "series": {"count": 4, "lastObservedTime": "2026-11-16T11:59:55.000000Z"},
        },
        "events.k8s.io",
    )
    assert (event["Object"], event["Message"], event["Source"], event["Count"]) == ("pod/p", "hi", "k, n1", 4)
    assert (event["First Seen"], event["Last Seen"]) == ("10s", "5s")
    versions = [{"name": "v1", "served": True, "storage": True}, {"name": "v0", "served": False}]
    definition = row(
        "customresourcedefinitions",
        {"spec": {"versions": versions, "scope": "Cluster"}},
        "apiextensions.k8s.io",
    )
    assert (definition["Versions"], definition["Established"]) == ("v1(storage)", False)


WIDGET = Kind("example.com", "Widget", "widgets", ("v1",), "v1", True)


def test_custom_kinds_bring_their_own_columns():
    defined = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {
            "name": "Ready",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
            "priority": 1,
        },
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Gone", "type": "string", "jsonPath": ".spec.gone"},
    ]
    tables = Tables(lambda: NOW, lambda kind, version: defined)
    thing = {
        "metadata": {"name": "w", "creationTimestamp": AN_HOUR_AGO},
        "spec": {"size": 4},
        "status": {"conditions": [READY]},
    }
    shown = tables.to_table(WIDGET, "v1", [thing], {}, "None", "v1")
    assert shown["rows"][0]["cells"] == ["w", 4, "True", "60m", None]
    assert [column["priority"] for column in shown["columnDefinitions"]] == [0, 0, 1, 0, 0]
    plain = Tables(lambda: NOW, lambda kind, version: []).to_table(WIDGET, "v1", [thing], {}, "None", "v1")
    assert plain["rows"][0]["cells"] == ["w", "60m"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".list[-1]", [3]),
        (".list[*]", [1, 2, 3]),
        (r".labels.x\.y/z", ["dotted"]),
        (".labels['x.y/z']", ["dotted"]),
        (".missing.deep", []),
        (".list[9]", []),
        ("nonsense", []),
        (".a[?(@.b", []),
    ],
)
def test_simple_json_paths(path, found):
    assert list(find(path, {"a": {"b": 1}, "list": [1, 2, 3], "labels": {"x.y/z": "dotted"}})) == found


def nested(depth):
    value = "x"
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        (".spec" + "[*]" * 50, nested(12)),  # looks at 8,192 values and finds nothing
        ('.spec[?(@.a=="b")]', [{"a": "c"}] * 100_000),
        ('.spec[?(@.a=="b")]', [{"a": ["c"] * 10_000}] * 100),
        (".spec" * 200_000, {}),
        (".spec", {"a": "x" * 1_000_000}),
        (".spec.a", {"a": "x" * 1_000_000}),
    ],
)
def test_the_work_for_the_columns_of_one_object_is_bounded(path, spec):
    columns = [{"name": f"C{n}", "type": "string", "jsonPath": path} for n in range(2_000)]
    tables = Tables(lambda: NOW, lambda kind, version: columns)
    thing = {"metadata": {"name": "w"}, "spec": spec}
    began = time.process_time()
    cells = tables.to_table(WIDGET, "v1", [thing], {}, "None", "v1")["rows"][0]["cells"]
    assert time.process_time() - began < 1.0  # about 30 ms; 10 s and more without a budget
    assert sum(len(cell) for cell in cells if cell) < 5_000_000


def test_a_path_of_many_steps_needs_no_deep_stack():
    value = 1
    for _ in range(1_500):
        value = {"a": value}
    assert list(find(".a" * 1_500, value)) == [1]


def test_tables_agree_with_the_recorded_ones():
    recorded = {
        s["story"]: s
        for s in map(json.loads, shared("vectors/api/recorded/visible.jsonl").read_text().splitlines())
    }
    corpus = [
        json.loads(line) for line in shared("vectors/api/corpus/visible.jsonl").read_text().splitlines()
    ]
    compared = 0
    for story in corpus:
        if story["theme"] != "table":
            continue
        first, answers = story["steps"][0], recorded[story["story"]]["answers"]
        group = first["path"].split("/")[2] if first["path"].startswith("/apis") else ""
        resource = first["path"].split("/")[-1]
        thing = json.loads(json.dumps(first["json"]).replace("@id@", "zqmask"))
        if resource == "pods":
            thing["status"] = {"phase": "Pending"}
        for answer in answers[1:]:
            body = answer["body"]
            if not isinstance(body, dict) or body.get("kind") != "Table" or not body["rows"]:
                continue
            shown = table(resource, thing, group=group)
            definitions = [
                {k: v for k, v in c.items() if k != "description"} for c in shown["columnDefinitions"]
            ]
            assert definitions == body["columnDefinitions"]
            ours = ["<age>" if isinstance(c, str) and AGE.match(c) else c for c in shown["rows"][0]["cells"]]
            theirs = [
                re.sub(r"zqmask-\w{6}", "zqmask", c) if isinstance(c, str) else c
                for c in body["rows"][0]["cells"]
            ]
            assert ours == theirs, story["story"]
            compared += 1
    assert compared >= 20
