"""Pods of people of the machine: they run as that person, and nothing that a pod asks for goes beyond it."""

import copy

import pytest

from dray.api.kinds import kind_of_plural
from dray.host.accounts import Account
from dray.server.admission.user_pods import _FORBIDDEN, _FORBIDDEN_IN_CONTAINERS, UserPods
from dray.server.requests.calls import Call
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request
from dray.server.requests.routing import Route
from dray.server.requests.users import User

ANN = Account("ann", 1001, 1001, ((44, "video"), (1001, "ann"), (2000, "lab")), "/home/ann", "/bin/sh")
USER = User("ann", groups=("dray:users", "unix:lab"))
CONTROLLER = User("system:kube-controller-manager")
ROOT = User("root", groups=("system:masters",))


class Reader:
    def get(self, group, resource, namespace, name):
        if (resource, name) == ("namespaces", "user-ann"):
            return {"metadata": {"name": name, "annotations": {"dray.dev/user-name": "ann"}}}
        return None

    def list(self, group, resource, namespace=None):
        return []


def admit(spec, user=USER, namespace="user-ann", operation="CREATE", subresource="", name="ann"):
    plugin = UserPods(Reader(), {name: ANN}.get)
    kind = kind_of_plural("", "pods")
    call = Call(Request("POST", "/"), Route(kind, "v1", "create", namespace, "p", subresource), user)
    pod = {"metadata": {"name": "p"}, "spec": copy.deepcopy(spec)}
    plugin.mutate(call, operation, pod, None)
    return pod["spec"]


PLAIN = {"containers": [{"name": "main", "image": "x"}]}


@pytest.mark.parametrize("user", [USER, CONTROLLER])
def test_a_pod_gets_the_identity_of_its_person(user):
    assert admit(PLAIN, user)["securityContext"] == {
        "runAsUser": 1001,
        "runAsGroup": 1001,
        "supplementalGroups": [44, 2000],
    }


def test_pods_of_administrators_and_of_other_namespaces_are_not_touched():
    assert admit(PLAIN, ROOT) == PLAIN
    assert admit(PLAIN, CONTROLLER, "default") == PLAIN


def test_an_administrator_with_an_account_runs_as_that_account():
    admin = User("ann", groups=("dray:users",))  # cluster-admin by a binding
    assert admit(PLAIN, admin, "kube-system")["securityContext"]["runAsUser"] == 1001


def test_fewer_groups_and_another_own_group_are_allowed():
    asked = {"runAsGroup": 2000, "supplementalGroups": [44], "fsGroup": 2000}
    assert admit({**PLAIN, "securityContext": asked})["securityContext"] == {**asked, "runAsUser": 1001}


def test_somebody_without_an_account_cannot_run_anything():
    with pytest.raises(ApiError, match="has no account on this machine"):
        admit(PLAIN, name="bob")


def nested(path, value):
    for part in reversed(path):
        value = {part: value}
    return value


def container(**fields):
    return {"containers": [{"name": "main", "image": "x", **fields}]}


VOLUMES = (
    "hostPath",
    "persistentVolumeClaim",
    "nfs",
    "iscsi",
    "csi",
    "ephemeral",
    "image",
    "flexVolume",
    "local",
)
REFUSED = [
    # (spec, words of the refusal)
    ({"securityContext": {"runAsUser": 0}}, "runAsUser: 0 is not the uid of ann"),
    ({"securityContext": {"runAsUser": 1002}}, "runAsUser: 1002"),
    ({"securityContext": {"runAsGroup": 0}}, "not in the group 0"),
    ({"securityContext": {"supplementalGroups": [44, 0]}}, "supplementalGroups: ann is not in the group 0"),
    ({"securityContext": {"fsGroup": 27}}, "fsGroup: ann is not in the group 27"),
    (container(securityContext={"runAsUser": 0}), r"spec.containers\[main\].securityContext.runAsUser: 0"),
    (container(securityContext={"runAsGroup": 27}), "not in the group 27"),
    ({"initContainers": [{"name": "i", "securityContext": {"runAsUser": 0}}]}, r"initContainers\[i\]"),
    ({"serviceAccountName": "driver"}, "service account default only"),
    ({"priorityClassName": "system-node-critical"}, "classes of the system"),
    *[(nested(path, [{"name": "x"}]), "may not be set") for path in _FORBIDDEN],
    *[(container(**nested(path, ["x"])), "may not be set") for path in _FORBIDDEN_IN_CONTAINERS],
    *[({"volumes": [{"name": "v", kind: {}}]}, f"may not use {kind} volumes") for kind in VOLUMES],
]


@pytest.mark.parametrize(("spec", "why"), REFUSED, ids=[str(spec)[:70] for spec, _ in REFUSED])
@pytest.mark.parametrize("user", [USER, CONTROLLER], ids=["user", "controller"])
def test_what_a_pod_of_a_user_may_not_ask_for(spec, why, user):
    with pytest.raises(ApiError, match=why) as refusal:
        admit({**PLAIN, **spec}, user)
    assert refusal.value.code == 403


def test_ephemeral_containers_are_judged_when_they_are_added():
    added = {
        **PLAIN,
        "nodeName": "n1",
        "ephemeralContainers": [{"name": "e", "securityContext": {"runAsUser": 0}}],
    }
    with pytest.raises(ApiError, match="ephemeralContainers"):
        admit(added, operation="UPDATE", subresource="ephemeralcontainers")
    added["ephemeralContainers"] = [{"name": "e"}]
    admit(added, operation="UPDATE", subresource="ephemeralcontainers")


def test_volumes_of_the_cluster_are_allowed():
    volumes = [{"name": k, k: {}} for k in ("configMap", "downwardAPI", "emptyDir", "projected", "secret")]
    assert admit({**PLAIN, "volumes": volumes, "hostNetwork": False})["volumes"] == volumes
