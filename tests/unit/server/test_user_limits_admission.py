"""Limits of people that are judged when a pod is made: its time, and how many may wait."""

import pytest
from test_user_pods import ANN, CONTROLLER, PLAIN, ROOT, USER
from test_user_pods import Reader as Namespaces

from dray.api.kinds import kind_of_plural
from dray.server.admission.user_limits import UserLimitsPlugin
from dray.server.requests.calls import Call
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request
from dray.server.requests.routing import Route


class Reader(Namespaces):
    def __init__(self, data, phases=()):
        self.data, self.phases = data, phases

    def get(self, group, resource, namespace, name):
        if (resource, namespace, name) == ("configmaps", "kube-system", "dray-user-limits"):
            return {"data": self.data}
        return super().get(group, resource, namespace, name)

    def list(self, group, resource, namespace=None):
        assert (resource, namespace) == ("pods", "user-ann")
        return [{"status": {"phase": phase}} for phase in self.phases]


def admit(plugin, user=USER, **spec):
    kind = kind_of_plural("", "pods")
    call = Call(Request("POST", "/"), Route(kind, "v1", "create", "user-ann", "p", ""), user)
    pod = {"metadata": {"name": "p"}, "spec": {**PLAIN, **spec}}
    plugin.mutate(call, "CREATE", pod, None)
    return pod["spec"].get("activeDeadlineSeconds")


def plugin(data, phases=()):
    return UserLimitsPlugin(Reader(data, phases), {"ann": ANN}.get)


LIMITED = {"group.lab": '{"seconds": 100, "defaultSeconds": 50}', "user.bob": '{"seconds": 1}'}


@pytest.mark.parametrize("user", [USER, CONTROLLER])
def test_the_time_of_a_pod_is_what_it_asks_for_or_the_default(user):
    assert admit(plugin(LIMITED), user) == 50
    assert admit(plugin(LIMITED), user, activeDeadlineSeconds=70) == 70
    with pytest.raises(ApiError, match="limit of ann: the longest time of a job is 1m40s"):
        admit(plugin(LIMITED), user, activeDeadlineSeconds=101)


def test_without_limits_and_for_administrators_nothing_is_set():
    assert admit(plugin({})) is None
    assert admit(plugin({"user.bob": '{"seconds": 1}'})) is None
    assert admit(plugin({"user.ann": "nonsense"})) is None
    assert admit(plugin(LIMITED), ROOT) is None


def test_pods_beyond_the_number_that_may_wait_are_refused():
    data = {"default": '{"waiting": 2}'}
    admit(plugin(data, ["Pending", "Running", "Succeeded"]))
    with pytest.raises(ApiError, match="2 jobs wait already, at most 2 may"):
        admit(plugin(data, ["Pending", "Pending"]))


def test_changed_limits_count_at_once():
    made = plugin({"user.ann": '{"seconds": 10}'})
    assert admit(made) == 10
    made.reader.data = {"user.ann": '{"seconds": 20}'}
    made.observe("", "configmaps", None, {})
    assert admit(made) == 20
