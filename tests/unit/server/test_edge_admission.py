"""Admission plugins, each through the chain that the server runs."""

from datetime import UTC, datetime, timedelta

import pytest

from dray.api.kinds import kind_of_plural
from dray.server.admission import AdmissionChain
from dray.server.auth.authorization import Authorizer
from dray.server.requests.calls import Call
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request
from dray.server.requests.routing import Route
from dray.server.requests.users import User

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
ADMIN = User("admin", groups=("system:masters",))
ANN = User("ann", groups=("system:authenticated",))
NODE = User("system:node:n1", groups=("system:nodes", "system:authenticated"))
RESOURCE = "resource.k8s.io"


class Server:
    """The writing half of a server: admission around a dictionary."""

    def __init__(self, disabled=()):
        self.by_key, self.clock = {}, NOW
        self.chain = AdmissionChain.standard(self, Authorizer(self), disabled, lambda: self.clock)
        self.put("", "namespaces", {"metadata": {"name": "default"}})

    def get(self, group, resource, namespace, name):
        return self.by_key.get((group, resource, namespace, name))

    def list(self, group, resource, namespace=None):
        return [
            t
            for (g, r, n, _), t in self.by_key.items()
            if (g, r) == (group, resource) and namespace in (None, n)
        ]

    def put(self, group, resource, thing):
        metadata = thing["metadata"]
        key = (group, resource, metadata.get("namespace", ""), metadata["name"])
        old, self.by_key[key] = self.by_key.get(key), thing
        self.chain.observe(group, resource, old, thing)

    def remove(self, group, resource, namespace, name):
        self.chain.observe(group, resource, self.by_key.pop((group, resource, namespace, name)), None)

    def call(self, user, group, resource, namespace, name="", subresource="", query=()):
        kind = kind_of_plural(group, resource)
        return Call(
            Request("POST", "/", query), Route(kind, "v1", "create", namespace, name, subresource), user
        )

    def create(self, thing, resource="pods", group="", user=ADMIN, namespace="default", commit=True, **rest):
        kind = kind_of_plural(group, resource)
        namespace = namespace if kind.namespaced else ""
        call = self.call(user, group, resource, namespace, **rest)
        self.chain.mutate(call, "CREATE", thing, None)
        self.chain.validate(call, "CREATE", thing, None)
        if commit:
            if namespace:
                thing["metadata"]["namespace"] = namespace
            self.put(group, resource, thing)
        return thing

    def update(self, new, old, resource="pods", group="", user=ADMIN, subresource=""):
        metadata = old["metadata"]
        call = self.call(user, group, resource, metadata.get("namespace", ""), metadata["name"], subresource)
        self.chain.mutate(call, "UPDATE", new, old)
        self.chain.validate(call, "UPDATE", new, old)

    def delete(self, resource, name, group="", user=ADMIN, namespace=""):
        old = self.get(group, resource, namespace, name)
        self.chain.validate_delete(self.call(user, group, resource, namespace, name), old)


@pytest.fixture
def server():
    return Server()


def refusal(call, *arguments, **named):
    with pytest.raises(ApiError) as caught:
        call(*arguments, **named)
    return caught.value


def pod(name="p", **spec):
    containers = spec.pop("containers", [container()])
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def container(name="c", requests=None, limits=None):
    resources = {k: v for k, v in (("requests", requests), ("limits", limits)) if v}
    return {"name": name} | ({"resources": resources} if resources else {})


# --- namespaces ---------------------------------------------------------------------------------


def test_nothing_is_created_in_absent_or_terminating_namespaces(server):
    error = refusal(server.create, pod(), namespace="absent")
    assert (error.code, error.message) == (404, 'namespaces "absent" not found')
    server.put("", "namespaces", {"metadata": {"name": "old"}, "status": {"phase": "Terminating"}})
    error = refusal(server.create, pod(), namespace="old")
    assert error.code == 403
    assert error.message == (
        'pods "p" is forbidden: unable to create new content in namespace old because it is being terminated'
    )
    assert error.details["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": "namespace old is being terminated",
            "field": "metadata.namespace",
        }
    ]


def test_the_first_namespaces_stay(server):
    error = refusal(server.delete, "namespaces", "default")
    assert error.message == 'namespaces "default" is forbidden: this namespace may not be deleted'
    server.put("", "namespaces", {"metadata": {"name": "mine"}})
    server.delete("namespaces", "mine")


# --- nodes and tolerations ----------------------------------------------------------------------


def test_new_nodes_are_not_ready_yet(server):
    node = server.create({"metadata": {"name": "n1"}}, "nodes")
    assert node["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    again = server.create(
        {"metadata": {"name": "n2"}, "spec": {"taints": list(node["spec"]["taints"])}}, "nodes"
    )
    assert len(again["spec"]["taints"]) == 1


def test_pods_bear_troubled_nodes_for_five_minutes(server):
    made = server.create(pod())
    assert {t["key"]: t["tolerationSeconds"] for t in made["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready": 300,
        "node.kubernetes.io/unreachable": 300,
    }
    stoic = server.create(pod("q", tolerations=[{"operator": "Exists"}]))
    assert stoic["spec"]["tolerations"] == [{"operator": "Exists"}]


# --- priority -----------------------------------------------------------------------------------


def test_priority_classes_become_numbers(server):
    critical = {"metadata": {"name": "system-node-critical"}, "value": 2000001000}
    server.put("scheduling.k8s.io", "priorityclasses", critical)
    assert server.create(pod())["spec"]["priority"] == 0
    critical = server.create(pod("q", priorityClassName="system-node-critical"))["spec"]
    assert (critical["priority"], critical["preemptionPolicy"]) == (2000001000, "PreemptLowerPriority")
    error = refusal(server.create, pod("r", priorityClassName="none"))
    assert error.message == 'pods "r" is forbidden: no PriorityClass with name none was found'
    assert "computed 0 from" in refusal(server.create, pod("s", priority=7)).message


def test_one_class_may_be_the_default(server):
    default = {"metadata": {"name": "base"}, "value": 5, "globalDefault": True, "preemptionPolicy": "Never"}
    server.create(default, "priorityclasses", "scheduling.k8s.io")
    spec = server.create(pod())["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("base", 5, "Never")
    second = {"metadata": {"name": "other"}, "value": 6, "globalDefault": True}
    error = refusal(server.create, second, "priorityclasses", "scheduling.k8s.io")
    assert "PriorityClass base is already marked as default" in error.message


def test_an_update_keeps_the_priority(server):
    old = server.create(pod(priorityClassName=""))
    new = pod()
    server.update(new, old)
    assert new["spec"]["priority"] == 0


# --- service accounts -----------------------------------------------------------------------------


def test_pods_act_as_an_account(server):
    assert server.create(pod())["spec"]["serviceAccountName"] == "default"
    error = refusal(server.create, pod("q", serviceAccountName="robot"))
    assert error.message.endswith(
        'error looking up service account default/robot: serviceaccount "robot" not found'
    )
    assert "serviceAccountName" not in Server(disabled=["ServiceAccount"]).create(pod())["spec"]


def test_tokens_are_mounted_where_they_can_be_used(server):
    account = {
        "metadata": {"name": "default", "namespace": "default"},
        "imagePullSecrets": [{"name": "pull"}],
    }
    server.put("", "serviceaccounts", account)
    assert "volumes" not in server.create(pod("a"))["spec"], "no CA to mount beside the token"
    server.put("", "configmaps", {"metadata": {"name": "kube-root-ca.crt", "namespace": "default"}})
    spec = server.create(pod("b"))["spec"]
    (volume,) = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"].endswith("/serviceaccount")
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert "volumes" not in server.create(pod("c", automountServiceAccountToken=False))["spec"]


def test_mirror_pods_refer_to_nothing(server):
    mirror = pod(serviceAccountName="robot")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    assert "may not reference service accounts" in refusal(server.create, mirror).message


# --- node restriction -------------------------------------------------------------------------------


def resource_slice(node):
    return {"metadata": {"name": f"slice-{node}"}, "spec": {"nodeName": node, "driver": "d"}}


def test_a_node_creates_and_deletes_only_its_own_slices(server):
    server.create(resource_slice("n1"), "resourceslices", RESOURCE, user=NODE)
    error = refusal(server.create, resource_slice("n2"), "resourceslices", RESOURCE, user=NODE)
    assert "can only create ResourceSlice with the same NodeName" in error.message
    server.create(resource_slice("n2"), "resourceslices", RESOURCE)
    server.delete("resourceslices", "slice-n1", RESOURCE, NODE)
    assert refusal(server.delete, "resourceslices", "slice-n2", RESOURCE, NODE).code == 403


def test_a_node_may_not_steer_pods_to_itself(server):
    def node(labels=None, **spec):
        return {"metadata": {"name": "n1", "labels": labels or {}}, "spec": spec}

    def change(new, old):
        return refusal(server.update, new, old, "nodes", user=NODE).message

    old = server.create(node({"kubernetes.io/hostname": "n1"}), "nodes", user=NODE)
    assert "not allowed to modify taints" in change(node({"kubernetes.io/hostname": "n1"}), old)
    taints = old["spec"]["taints"]
    server.update(node({"kubernetes.io/hostname": "n1", "rack": "7"}, taints=taints), old, "nodes", user=NODE)
    server.update(
        node({"kubernetes.io/hostname": "n1", "x.node.kubernetes.io/y": "z"}, taints=taints),
        old,
        "nodes",
        user=NODE,
    )
    for label in ("node-restriction.kubernetes.io/x", "pool.k8s.io/x", "node-role.kubernetes.io/master"):
        denied = change(node({"kubernetes.io/hostname": "n1", label: ""}, taints=taints), old)
        assert denied.endswith(f"is not allowed to modify labels: {label}")
    other = refusal(server.create, {"metadata": {"name": "n2"}}, "nodes", user=NODE)
    assert 'node "n1" is not allowed to modify node "n2"' in other.message


def test_a_node_reports_status_of_its_own_pods_but_not_their_claims(server):
    old = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "n1"}, "status": {}}
    server.update({**old, "status": {"phase": "Running"}}, old, user=NODE, subresource="status")
    for part, value in (
        ("resourceClaimStatuses", [{"name": "g", "resourceClaimName": "x"}]),
        ("extendedResourceClaimStatus", {"resourceClaimName": "x"}),
        ("nodeAllocatableResourceClaimStatuses", [{"resourceClaimName": "x"}]),
    ):
        assert (
            refusal(
                server.update, {**old, "status": {part: value}}, old, user=NODE, subresource="status"
            ).code
            == 403
        )
    foreign = {**old, "spec": {"nodeName": "n2"}}
    assert refusal(server.update, foreign, foreign, user=NODE, subresource="status").code == 403
    assert refusal(server.update, old, old, user=NODE).code == 403


def test_a_node_creates_only_mirror_pods_it_owns(server):
    server.put("", "nodes", {"metadata": {"name": "n1", "uid": "u1"}})
    server_without_accounts = Server(disabled=["ServiceAccount"])
    server_without_accounts.put("", "nodes", {"metadata": {"name": "n1", "uid": "u1"}})

    def mirror(**owner):
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": True} | owner
        metadata = {
            "name": "m",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [owner],
        }
        return {"metadata": metadata, "spec": {"nodeName": "n1", "containers": []}}

    server_without_accounts.create(mirror(), user=NODE)
    assert "can only create mirror pods" in refusal(server.create, pod(nodeName="n1"), user=NODE).message
    for wrong, text in (
        ({"uid": "u2"}, "UID mismatch"),
        ({"name": "n2"}, "owner reference"),
        ({"controller": False}, "controller"),
    ):
        assert text in refusal(server.create, mirror(**wrong), user=NODE).message


def test_a_node_gets_tokens_only_for_pods_it_runs(server):
    for name, node in (("mine", "n1"), ("theirs", "n2")):
        server.put(
            "",
            "pods",
            {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": node}},
        )

    def ask(**bound):
        reference = {"apiVersion": "v1", "kind": "Pod"} | bound
        call = server.call(NODE, "", "serviceaccounts", "default", "robot", "token")
        server.chain.mutate(call, "CREATE", {"spec": {"boundObjectRef": reference}}, None)

    ask(name="mine", uid="mine")
    assert "different node" in refusal(ask, name="theirs", uid="theirs").message
    assert "without a uid" in refusal(ask, name="mine").message
    assert "does not match the UID" in refusal(ask, name="mine", uid="old").message
    assert "not bound to a pod" in refusal(ask, kind="Node", name="n1").message
    assert refusal(ask, name="absent", uid="x").code == 404


# --- limits -----------------------------------------------------------------------------------------


def limit_range(**item):
    return {
        "metadata": {"name": "l", "namespace": "default"},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


def test_limit_ranges_fill_in_and_bound(server):
    server.put(
        "",
        "limitranges",
        limit_range(
            default={"cpu": "1"}, defaultRequest={"cpu": "100m"}, max={"cpu": "2"}, min={"cpu": "50m"}
        ),
    )
    made = server.create(pod())
    assert made["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}
    assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    )
    error = refusal(server.create, pod("q", containers=[container(limits={"cpu": "3"})]))
    assert error.message == 'pods "q" is forbidden: maximum cpu usage per Container is 2, but limit is 3'
    error = refusal(server.create, pod("r", containers=[container(requests={"cpu": "10m"})]))
    assert "minimum cpu usage per Container is 50m, but request is 10m" in error.message


def test_bounds_that_come_change_or_go_count_at_once(server):
    greedy = [container(limits={"cpu": "3"})]
    server.create(pod("a", containers=greedy))
    server.put("", "limitranges", limit_range(max={"cpu": "2"}))
    assert "is 2, but limit is 3" in refusal(server.create, pod("b", containers=greedy)).message
    server.put("", "limitranges", limit_range(max={"cpu": "1"}))
    assert "is 1, but limit is 3" in refusal(server.create, pod("b", containers=greedy)).message
    server.remove("", "limitranges", "default", "l")
    server.create(pod("b", containers=greedy))
    server.put("", "resourcequotas", quota(pods="2"))
    assert "exceeded quota" in refusal(server.create, pod("c")).message
    server.remove("", "resourcequotas", "default", "q")
    server.create(pod("c"))


def test_ratios_and_whole_pods_are_bounded_too(server):
    server.put("", "limitranges", limit_range(maxLimitRequestRatio={"memory": "2"}))
    error = refusal(
        server.create, pod(containers=[container(requests={"memory": "1Gi"}, limits={"memory": "3Gi"})])
    )
    assert error.message.endswith(
        "memory max limit to request ratio per Container is 2, but provided ratio is 3.000000"
    )
    server.put("", "limitranges", limit_range(type="Pod", max={"cpu": "2"}))
    two = [container(name, limits={"cpu": "1500m"}) for name in "ab"]
    assert (
        "maximum cpu usage per Pod is 2, but limit is 3"
        in refusal(server.create, pod(containers=two)).message
    )


# --- quota ------------------------------------------------------------------------------------------


def quota(name="q", scopes=None, **hard):
    spec = {"hard": {key.replace("__", "/"): value for key, value in hard.items()}} | (
        {"scopes": scopes} if scopes else {}
    )
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def hard(**named):
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": named["limits"]}}


def claim(name, count=1, mode="ExactCount", class_name="gpu", **rest):
    exactly = {"deviceClassName": class_name, "allocationMode": mode} | (
        {"count": count} if mode != "All" else {}
    )
    return {
        "metadata": {"name": name, **rest},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def test_a_full_quota_refuses_and_names_the_numbers(server):
    server.put("", "resourcequotas", quota(pods="2"))
    server.create(pod("a"))
    server.create(pod("b"))
    error = refusal(server.create, pod("c"))
    assert error.message == (
        'pods "c" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
    )
    server.remove("", "pods", "default", "a")
    server.create(pod("c"))


def test_concurrent_creations_cannot_overshoot(server):
    server.put("", "resourcequotas", quota(pods="1"))
    server.create(pod("first"), commit=False)
    assert refusal(server.create, pod("second"), commit=False).code == 403, (
        "the first is booked though not committed"
    )
    server.create(pod("first"), commit=False)
    server.clock += timedelta(seconds=6)
    server.create(pod("second")), "the booking of a write that never came has lapsed"


def test_a_dry_run_books_nothing(server):
    server.put("", "resourcequotas", quota(pods="1"))
    server.create(pod("dry"), commit=False, query=(("dryRun", "All"),))
    server.create(pod("wet"))


def test_finished_pods_free_their_share(server):
    server.put("", "resourcequotas", quota(pods="1"))
    first = server.create(pod("a"))
    server.put("", "pods", {**first, "status": {"phase": "Succeeded"}})
    server.create(pod("b"))


def test_compute_quotas_need_every_container_to_say(server):
    server.put("", "resourcequotas", hard(limits={"requests.cpu": "1", "limits.memory": "1Gi"}))
    error = refusal(server.create, pod(containers=[container("x", requests={"cpu": "1"}), container("y")]))
    assert error.message.endswith("failed quota: q: must specify limits.memory for: x,y; requests.cpu for: y")
    full = container(requests={"cpu": "600m"}, limits={"memory": "100Mi"})
    server.create(pod("a", containers=[dict(full)]))
    error = refusal(server.create, pod("b", containers=[dict(full)]))
    assert error.message.endswith(
        "requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1"
    )


def test_overhead_counts_under_quota_but_not_under_limit_ranges(server):
    heavy = {
        "containers": [container(requests={"cpu": "1"}, limits={"cpu": "1"})],
        "overhead": {"cpu": "500m"},
    }
    server.put("", "limitranges", limit_range(type="Pod", max={"cpu": "1"}))
    server.put("", "resourcequotas", hard(limits={"requests.cpu": "1200m"}))
    error = refusal(server.create, pod("a", **heavy))
    assert "requested: requests.cpu=1500m" in error.message
    server.create(pod("a", containers=heavy["containers"]))


def test_devices_are_counted_by_class(server):
    server.put("", "resourcequotas", hard(limits={"gpu.deviceclass.resource.k8s.io/devices": "33"}))
    server.create(claim("all", mode="All"), "resourceclaims", RESOURCE)
    server.create(claim("other", 50, class_name="nic"), "resourceclaims", RESOURCE)
    error = refusal(server.create, claim("two", 2), "resourceclaims", RESOURCE)
    assert (
        "requested: gpu.deviceclass.resource.k8s.io/devices=2, used: gpu.deviceclass.resource.k8s.io/devices=32"
        in error.message
    )
    choice = [
        {"name": "a", "deviceClassName": "gpu", "count": 1},
        {"name": "b", "deviceClassName": "gpu", "count": 2},
    ]
    either = {
        "metadata": {"name": "x"},
        "spec": {"devices": {"requests": [{"name": "r", "firstAvailable": choice}]}},
    }
    assert refusal(server.create, either, "resourceclaims", RESOURCE).code == 403, (
        "alternatives cost the dearest"
    )
    server.create(claim("one"), "resourceclaims", RESOURCE)


def test_extended_resources_are_charged_once(server):
    server.put(
        RESOURCE,
        "deviceclasses",
        {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}},
    )
    names = {"requests.example.com/gpu": "2", "requests.deviceclass.resource.kubernetes.io/gpu": "2"}
    server.put("", "resourcequotas", hard(limits=names))
    made = pod("a", containers=[container(requests={"example.com/gpu": "2"})])
    made["metadata"]["uid"] = "pod-a"
    server.create(made)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "pod-a", "controller": True}
    own = claim(
        "made-by-scheduler",
        2,
        annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
        ownerReferences=[owner],
    )
    server.create(own, "resourceclaims", RESOURCE)
    error = refusal(server.create, claim("mine", 3), "resourceclaims", RESOURCE)
    assert "requests.example.com/gpu=3" in error.message
    assert "requests.deviceclass.resource.kubernetes.io/gpu=3" in error.message


def test_objects_are_counted(server):
    server.put("", "resourcequotas", quota(count__configmaps="1", secrets="0"))
    server.create({"metadata": {"name": "a"}}, "configmaps")
    assert "count/configmaps=1" in refusal(server.create, {"metadata": {"name": "b"}}, "configmaps").message
    assert "secrets=0" in refusal(server.create, {"metadata": {"name": "b"}}, "secrets").message


def test_scopes_choose_pods(server):
    server.put("", "resourcequotas", quota("effort", ["BestEffort"], pods="0"))
    server.create(pod("a", containers=[container(requests={"cpu": "1"})]))
    assert refusal(server.create, pod("b")).code == 403
    server.put("", "resourcequotas", quota("effort", ["Terminating"], pods="0"))
    server.create(pod("b"))
    assert refusal(server.create, pod("c", activeDeadlineSeconds=5)).code == 403


def test_a_full_quota_does_not_stop_other_changes(server):
    first = server.create(claim("a", 2), "resourceclaims", RESOURCE)
    server.put("", "resourcequotas", hard(limits={"gpu.deviceclass.resource.k8s.io/devices": "1"}))
    labelled = {**first, "metadata": {**first["metadata"], "labels": {"x": "y"}}}
    server.update(labelled, first, "resourceclaims", RESOURCE)


# --- the chain --------------------------------------------------------------------------------------


def test_roles_are_checked_for_escalation(server):
    role = {
        "metadata": {"name": "r"},
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}],
    }
    error = refusal(server.create, role, "roles", "rbac.authorization.k8s.io", user=ANN)
    assert "not currently held" in error.message
    server.create(role, "roles", "rbac.authorization.k8s.io")


def test_unknown_plugins_are_named_and_needless_ones_ignored():
    with pytest.raises(ValueError, match="unknown admission plugin Priorty"):
        Server(disabled=["Priorty"])
    Server(disabled=["PodSecurity", "Priority"])
