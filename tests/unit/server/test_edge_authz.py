"""Rights: RBAC, its bootstrap roles, nodes, claim status, escalation, reviews."""

import time

import pytest

from dray.api.kinds import RBAC
from dray.server.auth import access_reviews, rbac_objects
from dray.server.auth.authentication import ANONYMOUS, Authenticator, parse_token_file
from dray.server.auth.authorization import Attributes, Authorizer, refusal
from dray.server.auth.rbac import RoleIndex, Rule, missing_rights
from dray.server.auth.service_account_tokens import service_account_user
from dray.server.requests.errors import ApiError
from dray.server.requests.messages import Request
from dray.server.requests.users import User

RESOURCE = "resource.k8s.io"
NODE = User("system:node:n1", groups=("system:nodes", "system:authenticated"))
ANN = User("ann", groups=("dev", "system:authenticated"))
ADMIN = User("root", groups=("system:masters",))
SCHEDULER = User("system:kube-scheduler", groups=("system:authenticated",))
CONTROLLERS = User("system:kube-controller-manager", groups=("system:authenticated",))


class Policies:
    """A reader that starts with the bootstrap roles, and its authoriser."""

    def __init__(self):
        self.by_key = {}
        self.authorizer = Authorizer(self)
        for resource, made in rbac_objects.bootstrap_objects():
            self.put(RBAC, resource, made)

    def put(self, group, resource, thing):
        metadata = thing["metadata"]
        key = (group, resource, metadata.get("namespace", ""), metadata["name"])
        old = self.by_key.get(key)
        self.by_key[key] = thing
        self.authorizer.observe(group, resource, old, thing)

    def remove(self, group, resource, namespace, name):
        old = self.by_key.pop((group, resource, namespace, name))
        self.authorizer.observe(group, resource, old, None)

    def get(self, group, resource, namespace, name):
        return self.by_key.get((group, resource, namespace, name))

    def list(self, group, resource, namespace=None):
        return [
            thing
            for (g, r, n, _), thing in self.by_key.items()
            if (g, r) == (group, resource) and namespace in (None, n)
        ]

    def bind(self, role, subject, namespace="", role_kind="ClusterRole", name="test"):
        resource = "rolebindings" if namespace else "clusterrolebindings"
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        reference = {"apiGroup": RBAC, "kind": role_kind, "name": role}
        self.put(RBAC, resource, {"metadata": metadata, "subjects": [subject], "roleRef": reference})

    def can(self, user, verb, target, namespace="", name="", selector=()):
        group, _, resource = target.rpartition(":")
        plural, _, subresource = resource.partition("/")
        asked = Attributes(
            user, verb, group, plural, subresource, namespace, name, field_selector=tuple(selector)
        )
        return self.authorizer.authorize(asked).allowed


@pytest.fixture
def policies():
    return Policies()


ANN_SUBJECT = {"kind": "User", "apiGroup": RBAC, "name": "ann"}


def pod(name="p", node="n1", namespace="default", **spec):
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "serviceAccountName": "builder", **spec},
    }


# --- RBAC ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "verb", "target", "allowed"),
    [
        ("view", "get", "pods", True),
        ("view", "list", f"{RESOURCE}:resourceclaims", True),
        ("view", "get", f"{RESOURCE}:resourceclaims/status", True),
        ("view", "create", f"{RESOURCE}:resourceclaims", False),
        ("view", "get", "secrets", False),
        ("edit", "get", "secrets", True),
        ("edit", "create", f"{RESOURCE}:resourceclaimtemplates", True),
        ("edit", "get", "pods", True),
        ("edit", "create", f"{RBAC}:roles", False),
        ("admin", "create", f"{RBAC}:roles", True),
        ("admin", "delete", f"{RESOURCE}:resourceclaims", True),
        ("admin", "list", f"{RESOURCE}:resourceclaims", True),
        ("admin", "update", f"{RESOURCE}:resourceclaims/binding", False),
    ],
)
def test_the_roles_for_people_nest(policies, role, verb, target, allowed):
    policies.bind(role, ANN_SUBJECT, "default")
    assert policies.can(ANN, verb, target, "default") is allowed
    assert not policies.can(ANN, verb, target, "other"), "a role binding reaches no other namespace"
    assert not policies.can(ANN, verb, target), "nor the whole cluster"


@pytest.mark.parametrize(
    ("user", "verb", "target", "allowed"),
    [
        (SCHEDULER, "update", f"{RESOURCE}:resourceclaims/status", True),
        (SCHEDULER, "update", f"{RESOURCE}:resourceclaims/binding", True),
        (SCHEDULER, "create", "pods/binding", True),
        (SCHEDULER, "delete", f"{RESOURCE}:resourceslices", False),
        (SCHEDULER, "get", "secrets", False),
        (CONTROLLERS, "create", f"{RESOURCE}:resourceclaims", True),
        (CONTROLLERS, "patch", f"{RESOURCE}:devicetaintrules/status", True),
        (CONTROLLERS, "delete", "apps:replicasets", True),
        (CONTROLLERS, "update", "namespaces/finalize", True),
        (CONTROLLERS, "patch", "pods/status", True),
        (ANN, "create", "authorization.k8s.io:selfsubjectaccessreviews", True),
        (ANN, "list", "pods", False),
        (ADMIN, "anything", "whatever", True),
    ],
)
def test_components_have_what_they_need(policies, user, verb, target, allowed):
    assert policies.can(user, verb, target) is allowed


def test_leases_of_leaders_are_open_to_both_components_in_kube_system(policies):
    for user in (SCHEDULER, CONTROLLERS):
        assert policies.can(user, "update", "coordination.k8s.io:leases", "kube-system", "dray-scheduler")
    assert not policies.can(SCHEDULER, "update", "coordination.k8s.io:leases", "default", "dray-scheduler")


@pytest.mark.parametrize(
    ("user", "path", "allowed"),
    [
        (ANONYMOUS, "/healthz", True),
        (ANONYMOUS, "/livez", True),
        (ANONYMOUS, "/version", True),
        (ANONYMOUS, "/apis", False),
        (ANONYMOUS, "/metrics", False),
        (ANN, "/apis/resource.k8s.io/v1", True),
        (ANN, "/openapi/v3", True),
        (ANN, "/metrics", False),
        (User("prometheus", groups=("system:monitoring",)), "/metrics", True),
    ],
)
def test_paths_are_for_whom_they_are(policies, user, path, allowed):
    assert policies.authorizer.authorize(Attributes(user, "get", path=path)).allowed is allowed
    is_probe = path in ("/healthz", "/livez")
    assert policies.authorizer.authorize(Attributes(ANN, "post", path=path)).allowed is is_probe


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_probes_are_answered_whatever_became_of_the_roles(policies, path):
    policies.by_key.clear()
    bare = Authorizer(policies)  # without a single role or binding
    assert bare.authorize(Attributes(ANONYMOUS, "get", path=path)).allowed
    assert not bare.authorize(Attributes(ANONYMOUS, "get", path=f"{path}/ping")).allowed


def test_revoking_takes_effect_with_the_next_question(policies):
    policies.bind("view", ANN_SUBJECT, "default")
    assert policies.can(ANN, "get", "pods", "default")
    policies.remove(RBAC, "rolebindings", "default", "test")
    assert not policies.can(ANN, "get", "pods", "default")


def test_subjects_may_be_groups_and_service_accounts(policies):
    robot = service_account_user("drivers", "gpu")
    policies.bind("view", {"kind": "ServiceAccount", "name": "gpu"}, "drivers", name="a")
    assert policies.can(robot, "get", "pods", "drivers"), "the namespace defaults to the binding's"
    policies.bind("view", {"kind": "Group", "name": "system:serviceaccounts:drivers"}, name="b")
    assert policies.can(robot, "get", "pods", "elsewhere")
    policies.bind("cluster-admin", {"kind": "ServiceAccount", "name": "gpu"}, name="c")
    assert not policies.can(robot, "get", "secrets"), "a cluster binding must name the namespace"


def test_custom_roles_join_aggregated_ones_by_label(policies):
    policies.bind("view", ANN_SUBJECT)
    assert not policies.can(ANN, "get", "example.com:widgets")
    rule = {"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]}
    labels = {f"{RBAC}/aggregate-to-view": "true"}
    policies.put(RBAC, "clusterroles", {"metadata": {"name": "widgets", "labels": labels}, "rules": [rule]})
    assert policies.can(ANN, "get", "example.com:widgets")


def test_rules_match_names_subresources_and_stars():
    rule = Rule.parse(
        {"verbs": ["get"], "apiGroups": [""], "resources": ["*/status", "pods"], "resourceNames": ["a"]}
    )
    assert rule.allows("get", "", "nodes", "status", "a")
    assert rule.allows("get", "", "pods", "", "a")
    assert not rule.allows("get", "", "pods", "", "")
    assert not rule.allows("get", "", "nodes", "", "a")
    assert not rule.allows("get", "apps", "pods", "", "a")


def test_a_repeated_question_costs_microseconds(policies):
    for number in range(300):
        policies.bind("view", {"kind": "User", "name": f"user{number}"}, f"ns{number}", name="v")
    asked = Attributes(ANN, "list", "", "pods", namespace="ns7")
    policies.authorizer.authorize(asked)

    def seconds_each(count=100):
        start = time.perf_counter()
        for _ in range(count):
            policies.authorizer.authorize(asked)
        return (time.perf_counter() - start) / count

    # The quickest of many: whatever else the machine does, it does not do it all the time.
    assert min(seconds_each() for _ in range(20)) < 100e-6


def test_what_strangers_ask_does_not_fill_the_memory(policies):
    for number in range(50):
        policies.authorizer.authorize(Attributes(ANONYMOUS, "get", path=f"/{'x' * 5000}{number}"))
        policies.authorizer.authorize(Attributes(ANONYMOUS, "get", "", "pods", name=f"{'x' * 5000}{number}"))
    assert len(policies.authorizer._answers) == 0


def test_refusals_are_worded_as_kubernetes_words_them(policies):
    asked = Attributes(ANONYMOUS, "list", RESOURCE, "resourceclaims", namespace="default")
    with pytest.raises(ApiError) as caught:
        policies.authorizer.check(asked)
    assert caught.value.message == (
        'resourceclaims.resource.k8s.io is forbidden: User "system:anonymous" cannot list resource "resourceclaims" '
        'in API group "resource.k8s.io" in the namespace "default"'
    )
    named = refusal(Attributes(ANN, "get", "", "pods", "log", name="p<1>"))
    assert named.message == (
        'pods "p<1>" is forbidden: User "ann" cannot get resource "pods/log" in API group "" at the cluster scope'
    )
    path = refusal(Attributes(ANONYMOUS, "get", path="/metrics"))
    assert path.message == 'forbidden: User "system:anonymous" cannot get path "/metrics"'


# --- bootstrap ----------------------------------------------------------------------------------


def test_bootstrap_restores_what_is_lost_and_keeps_what_was_added():
    objects = {
        made["metadata"]["name"]: made
        for resource, made in rbac_objects.bootstrap_objects()
        if resource == "clusterroles"
    }
    wanted = objects["system:kube-scheduler"]
    extra = {"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]}
    damaged = {**wanted, "rules": [*wanted["rules"][3:], extra]}
    repaired = rbac_objects.reconciled(damaged, wanted)
    held = [Rule.parse(rule) for rule in repaired["rules"]]
    assert not missing_rights(held, [Rule.parse(rule) for rule in [*wanted["rules"], extra]])
    assert rbac_objects.reconciled(wanted, wanted) is None
    left_alone = {**damaged, "metadata": {"name": "x", "annotations": {rbac_objects.AUTOUPDATE: "false"}}}
    assert rbac_objects.reconciled(left_alone, wanted) is None


def test_every_binding_refers_to_an_existing_role():
    objects = rbac_objects.bootstrap_objects()
    roles = {(made["kind"], made["metadata"]["name"]) for _, made in objects if "rules" in made}
    bindings = [made for _, made in objects if "roleRef" in made]
    assert len(bindings) > 30
    assert all((made["roleRef"]["kind"], made["roleRef"]["name"]) in roles for made in bindings)


# --- nodes --------------------------------------------------------------------------------------


def test_a_node_reads_only_what_its_pods_refer_to(policies):
    volumes = [{"name": "v", "projected": {"sources": [{"configMap": {"name": "settings"}}]}}]
    policies.put("", "pods", pod(volumes=volumes, resourceClaims=[{"name": "g", "resourceClaimName": "gpu"}]))
    policies.put(
        "", "pods", pod("q", node="n2", resourceClaims=[{"name": "g", "resourceClaimName": "theirs"}])
    )
    for target, name in (
        (f"{RESOURCE}:resourceclaims", "gpu"),
        ("configmaps", "settings"),
        ("serviceaccounts", "builder"),
    ):
        assert policies.can(NODE, "get", target, "default", name)
        assert not policies.can(NODE, "get", target, "other", name)
    assert not policies.can(NODE, "get", f"{RESOURCE}:resourceclaims", "default", "theirs")
    assert not policies.can(NODE, "list", f"{RESOURCE}:resourceclaims", "default")
    assert not policies.can(NODE, "update", f"{RESOURCE}:resourceclaims", "default", "gpu")
    assert policies.can(NODE, "create", "serviceaccounts/token", "default", "builder")
    assert not policies.can(NODE, "create", "serviceaccounts/token", "default", "other")
    policies.remove("", "pods", "default", "p")
    assert not policies.can(NODE, "get", f"{RESOURCE}:resourceclaims", "default", "gpu")


def test_claims_made_from_templates_are_found_through_the_pod_status(policies):
    made = pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    policies.put("", "pods", made)
    assert not policies.can(NODE, "get", f"{RESOURCE}:resourceclaims", "default", "p-gpu-x")
    status = {
        "resourceClaimStatuses": [
            {"name": "gpu", "resourceClaimName": "p-gpu-x"},
            {"name": "unknown-to-the-spec", "resourceClaimName": "stolen"},
        ],
        "extendedResourceClaimStatus": {"resourceClaimName": "p-extended"},
    }
    policies.put("", "pods", made | {"status": status})
    assert policies.can(NODE, "get", f"{RESOURCE}:resourceclaims", "default", "p-gpu-x")
    assert policies.can(NODE, "get", f"{RESOURCE}:resourceclaims", "default", "p-extended")
    assert not policies.can(NODE, "get", f"{RESOURCE}:resourceclaims", "default", "stolen")


def test_a_mirror_pod_opens_nothing_to_the_node_that_made_it(policies):
    mirror = pod(imagePullSecrets=[{"name": "pull"}])
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    policies.put("", "pods", mirror)
    assert not policies.can(NODE, "get", "secrets", "default", "pull")
    assert policies.can(NODE, "get", "pods", "default", "p"), "but the pod itself is the node's"


def test_a_node_touches_only_its_own_slices(policies):
    policies.put(RESOURCE, "resourceslices", {"metadata": {"name": "mine"}, "spec": {"nodeName": "n1"}})
    policies.put(RESOURCE, "resourceslices", {"metadata": {"name": "theirs"}, "spec": {"nodeName": "n2"}})
    slices = f"{RESOURCE}:resourceslices"
    for verb in ("get", "update", "patch", "delete"):
        assert policies.can(NODE, verb, slices, name="mine")
        assert not policies.can(NODE, verb, slices, name="theirs")
        assert not policies.can(NODE, verb, slices, name="absent")
    for verb in ("list", "watch", "deletecollection"):
        assert policies.can(NODE, verb, slices, selector=[("spec.nodeName", "=", "n1")])
        assert not policies.can(NODE, verb, slices, selector=[("spec.nodeName", "=", "n2")])
        assert not policies.can(NODE, verb, slices, selector=[("spec.nodeName", "!=", "n1")])
        assert not policies.can(NODE, verb, slices)
    assert policies.can(NODE, "create", slices)


def test_a_node_sees_its_own_node_pods_and_lease(policies):
    policies.put("", "pods", pod())
    policies.put("", "pods", pod("q", node="n2"))
    assert policies.can(NODE, "get", "nodes", name="n1")
    assert not policies.can(NODE, "get", "nodes", name="n2")
    assert not policies.can(NODE, "list", "nodes")
    assert policies.can(NODE, "patch", "nodes/status", name="n1")
    assert not policies.can(NODE, "delete", "nodes", name="n1")
    assert policies.can(NODE, "get", "pods", "default", "p")
    assert not policies.can(NODE, "get", "pods", "default", "q")
    assert policies.can(NODE, "list", "pods", selector=[("spec.nodeName", "=", "n1")])
    assert not policies.can(NODE, "list", "pods")
    assert policies.can(NODE, "update", "coordination.k8s.io:leases", "kube-node-lease", "n1")
    assert not policies.can(NODE, "update", "coordination.k8s.io:leases", "kube-node-lease", "n2")
    assert not policies.can(NODE, "update", "coordination.k8s.io:leases", "default", "n1")
    assert policies.can(NODE, "create", "events", "default")
    assert not policies.can(NODE, "get", "secrets", "default", "any")


def test_a_refused_node_is_told_why(policies):
    asked = Attributes(NODE, "get", RESOURCE, "resourceslices", name="theirs")
    assert (
        policies.authorizer.authorize(asked).reason
        == "node: no relationship found between node 'n1' and this object"
    )
    assert "field selector" in policies.authorizer.authorize(Attributes(NODE, "list", "", "pods")).reason


# --- status of claims ---------------------------------------------------------------------------

NODE_NAME = "authentication.kubernetes.io/node-name"
DRIVER_USER = User("system:serviceaccount:d:gpu", extra={NODE_NAME: ("n1",)})


def allocation(*nodes):
    requirement = {"key": "metadata.name", "operator": "In", "values": list(nodes)}
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [requirement]}]}}


def device(driver, **rest):
    return {"driver": driver, "pool": "p", "device": "d", **rest}


def status_attributes(user, verb="update"):
    return Attributes(user, verb, RESOURCE, "resourceclaims", "status", "default", "claim")


def test_allocation_and_reservation_need_the_right_to_bind(policies):
    new = {"allocation": allocation("n1")}
    assert policies.authorizer.check_claim_status(status_attributes(SCHEDULER), new, {}) == []
    (complaint,) = policies.authorizer.check_claim_status(status_attributes(DRIVER_USER), new, {})
    assert complaint.cause()["reason"] == "FieldValueForbidden"
    assert 'resource="resourceclaims/binding", verb="update"' in complaint.message()
    assert (
        policies.authorizer.check_claim_status(status_attributes(DRIVER_USER), {"reservedFor": []}, {}) == []
    )


def test_a_driver_writes_its_own_devices_on_its_own_node(policies):
    role = rbac_objects.driver_role("gpu.example")
    policies.put(RBAC, "clusterroles", role)
    policies.bind("dray:driver:gpu.example", {"kind": "ServiceAccount", "namespace": "d", "name": "gpu"})
    check = policies.authorizer.check_claim_status
    old = {"allocation": allocation("n1")}
    own = old | {"devices": [device("gpu.example")]}
    assert check(status_attributes(DRIVER_USER), own, old) == []
    assert check(status_attributes(DRIVER_USER, "patch"), old, own) == [], "removing is writing too"
    foreign = old | {"devices": [device("gpu.example"), device("nic.example")]}
    (complaint,) = check(status_attributes(DRIVER_USER), foreign, own)
    assert 'verb="[associated-node:update arbitrary-node:update]"' in complaint.message()
    elsewhere = {"allocation": allocation("n2")}
    (complaint,) = check(
        status_attributes(DRIVER_USER), elsewhere | {"devices": [device("gpu.example")]}, elsewhere
    )
    assert 'verb="[arbitrary-node:update]"' in complaint.message()
    both = {"allocation": allocation("n1", "n2")}
    assert check(status_attributes(DRIVER_USER), both | {"devices": [device("gpu.example")]}, both)


def test_a_driver_for_arbitrary_nodes_needs_no_node(policies):
    policies.put(RBAC, "clusterroles", rbac_objects.driver_role("net.example", arbitrary_nodes=True))
    policies.bind("dray:driver:net.example", ANN_SUBJECT)
    old = {"allocation": allocation("n9")}
    assert (
        policies.authorizer.check_claim_status(
            status_attributes(ANN), old | {"devices": [device("net.example")]}, old
        )
        == []
    )


# --- escalation ---------------------------------------------------------------------------------


def role(*rules, name="r", **more):
    return {"metadata": {"name": name}, "rules": list(rules), **more}


READ_SECRETS = {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}
READ_PODS = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}


def test_nobody_grants_what_they_lack(policies):
    check = policies.authorizer.check_escalation
    policies.bind("admin", ANN_SUBJECT, "default")
    check(ANN, "roles", "default", role(READ_PODS), None)
    check(ADMIN, "clusterroles", "", role({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}), None)
    with pytest.raises(ApiError) as caught:
        check(ANN, "roles", "other", role(READ_SECRETS), None)
    assert caught.value.code == 403
    assert caught.value.message.endswith(
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )
    with pytest.raises(ApiError, match="aggregationRule"):
        check(
            ANN,
            "clusterroles",
            "",
            role(aggregationRule={"clusterRoleSelectors": [{"matchLabels": {}}]}),
            None,
        )


def test_nobody_binds_what_they_lack_without_the_verb_bind(policies):
    policies.bind("admin", ANN_SUBJECT, "default")

    def binding(name):
        return {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        }

    policies.authorizer.check_escalation(ANN, "rolebindings", "default", binding("view"), None)
    with pytest.raises(ApiError, match="not currently held"):
        policies.authorizer.check_escalation(ANN, "rolebindings", "default", binding("cluster-admin"), None)
    with pytest.raises(ApiError) as caught:
        policies.authorizer.check_escalation(ANN, "rolebindings", "default", binding("absent"), None)
    assert caught.value.code == 404
    right = {
        "verbs": ["bind"],
        "apiGroups": [RBAC],
        "resources": ["clusterroles"],
        "resourceNames": ["cluster-admin"],
    }
    policies.put(RBAC, "clusterroles", role(right, name="binder"))
    policies.bind("binder", ANN_SUBJECT, name="binder")
    policies.authorizer.check_escalation(ANN, "rolebindings", "default", binding("cluster-admin"), None)


def test_the_verb_escalate_and_unchanged_rules_pass(policies):
    old = role(READ_SECRETS)
    touched = old | {"metadata": {"name": "r", "finalizers": ["x/y"]}}
    policies.authorizer.check_escalation(ANN, "clusterroles", "", touched, old)
    with pytest.raises(ApiError):
        policies.authorizer.check_escalation(ANN, "clusterroles", "", role(READ_SECRETS, READ_PODS), old)
    right = {"verbs": ["escalate"], "apiGroups": [RBAC], "resources": ["clusterroles"]}
    policies.put(RBAC, "clusterroles", role(right, name="escalator"))
    policies.bind("escalator", ANN_SUBJECT)
    policies.authorizer.check_escalation(ANN, "clusterroles", "", role(READ_SECRETS, READ_PODS), old)


# --- reviews and impersonation --------------------------------------------------------------------


def ask(**attributes):
    return {"spec": {"resourceAttributes": attributes}}


def test_access_reviews_answer_for_oneself_and_for_others(policies):
    policies.bind("view", ANN_SUBJECT, "default")
    own = access_reviews.self_subject_access_review(
        policies.authorizer, ANN, ask(verb="get", resource="pods", namespace="default")
    )
    assert own["status"]["allowed"] is True
    assert own["status"]["reason"].startswith(
        'RBAC: allowed by RoleBinding "test/default" of ClusterRole "view" to User'
    )
    question = ask(verb="get", resource="secrets", namespace="default")
    question["spec"]["user"] = "ann"
    assert access_reviews.subject_access_review(policies.authorizer, question)["status"] == {"allowed": False}
    assert access_reviews.local_subject_access_review(policies.authorizer, "default", question)["status"] == {
        "allowed": False
    }
    admin = access_reviews.self_subject_access_review(policies.authorizer, ADMIN, ask(verb="*", resource="*"))
    assert admin["status"] == {"allowed": True}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda a: access_reviews.self_subject_access_review(a, ANN, {"spec": {}}), "spec"),
        (lambda a: access_reviews.subject_access_review(a, ask(verb="get", resource="pods")), "spec.user"),
        (
            lambda a: access_reviews.local_subject_access_review(
                a,
                "here",
                {"spec": {"user": "x", "resourceAttributes": {"verb": "get", "namespace": "there"}}},
            ),
            "spec.resourceAttributes.namespace",
        ),
    ],
)
def test_incomplete_questions_are_invalid(policies, call, field):
    with pytest.raises(ApiError) as caught:
        call(policies.authorizer)
    assert caught.value.code == 422
    assert [cause["field"] for cause in caught.value.details["causes"]] == [field]


def test_rules_reviews_list_rights(policies):
    policies.bind("view", ANN_SUBJECT, "default")
    answer = access_reviews.self_subject_rules_review(
        policies.authorizer, ANN, {"spec": {"namespace": "default"}}
    )
    assert any("pods" in rule["resources"] for rule in answer["status"]["resourceRules"])
    assert any("/apis" in rule["nonResourceURLs"] for rule in answer["status"]["nonResourceRules"])
    everything = access_reviews.self_subject_rules_review(
        policies.authorizer, ADMIN, {"spec": {"namespace": "default"}}
    )
    assert everything["status"]["resourceRules"][0]["resources"] == ["*"]
    assert access_reviews.self_subject_rules_review(policies.authorizer, NODE, {"spec": {"namespace": "x"}})[
        "status"
    ]["incomplete"]


def test_token_reviews_know_good_and_bad_tokens():
    authenticator = Authenticator(lambda: None, parse_token_file('good,ann,7,"dev"'))
    good = access_reviews.token_review(authenticator, {"spec": {"token": "good"}})
    assert good["status"]["user"] == {
        "username": "ann",
        "uid": "7",
        "groups": ["dev", "system:authenticated"],
    }
    bad = access_reviews.token_review(authenticator, {"spec": {"token": "bad"}})
    assert "authenticated" not in bad["status"]
    assert bad["status"]["error"] == "invalid bearer token"
    with pytest.raises(ApiError, match="token is required"):
        access_reviews.token_review(authenticator, {})


def test_who_am_i_tells_name_groups_and_extra():
    answer = access_reviews.self_subject_review(DRIVER_USER, {}, "2026-11-16T12:00:00Z")
    assert answer["status"]["userInfo"]["username"] == "system:serviceaccount:d:gpu"
    assert answer["status"]["userInfo"]["extra"] == {NODE_NAME: ["n1"]}


def acting(policies, sender, path="/api/v1/nodes", method="GET", **headers):
    named = {f"impersonate-{key.replace('_', '-')}": value for key, value in headers.items()}
    return access_reviews.impersonated(Request(method, path, headers=named), sender, policies.authorizer)


def test_impersonation_completes_the_user(policies):
    assert acting(policies, ANN) is ANN
    bob = acting(policies, ADMIN, user="bob", group="dev, ops", extra_team="a", uid="9")
    assert (bob.name, bob.groups, bob.extra, bob.uid) == (
        "bob",
        ("dev", "ops", "system:authenticated"),
        {"team": ("a",)},
        "9",
    )
    robot = acting(policies, ADMIN, user="system:serviceaccount:d:gpu")
    assert robot.groups == ("system:serviceaccounts", "system:serviceaccounts:d", "system:authenticated")
    assert acting(policies, ADMIN, user="system:anonymous").groups == ("system:unauthenticated",)
    assert acting(policies, ADMIN, user="system:node:n1").groups == ("system:nodes", "system:authenticated")


def test_impersonation_needs_rights_and_a_user(policies):
    with pytest.raises(ApiError) as caught:
        acting(policies, ANN, user="bob")
    assert caught.value.message == (
        'nodes is forbidden: User "ann" cannot impersonate-on:user-info:list resource "nodes" in API group "" '
        "at the cluster scope"
    )
    with pytest.raises(ApiError) as caught:
        acting(policies, ADMIN, group="dev")
    assert caught.value.code == 400
    assert (
        'Groups:[]string{"dev"}, Extra:map[string][]string(nil)} without impersonating'
        in caught.value.message
    )


def grant(policies, *rules, name="granted"):
    policies.put(RBAC, "clusterroles", role(*rules, name=name))
    policies.bind(name, ANN_SUBJECT, name=name)


def test_the_old_right_to_impersonate_covers_every_request(policies):
    grant(
        policies,
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]},
    )
    assert acting(policies, ANN, user="bob").name == "bob"
    assert acting(policies, ANN, "/api/v1/secrets", user="bob").name == "bob"
    for headers in ({"user": "eve"}, {"user": "bob", "group": "dev"}, {"user": "bob", "uid": "1"}):
        with pytest.raises(ApiError):
            acting(policies, ANN, **headers)


def test_constrained_impersonation_is_for_named_requests_only(policies):
    users = {
        "verbs": ["impersonate:user-info"],
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["users"],
    }
    lists = {"verbs": ["impersonate-on:user-info:list"], "apiGroups": [""], "resources": ["nodes"]}
    grant(policies, users, lists)
    assert acting(policies, ANN, user="bob").name == "bob"
    with pytest.raises(ApiError):
        acting(policies, ANN, "/api/v1/nodes/n1", user="bob")
    with pytest.raises(ApiError):
        acting(policies, ANN, user="system:serviceaccount:d:gpu")


def test_a_service_account_may_act_for_its_own_node(policies):
    subject = {"kind": "ServiceAccount", "namespace": "d", "name": "gpu"}
    nodes = {
        "verbs": ["impersonate:associated-node"],
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["nodes"],
    }
    gets = {"verbs": ["impersonate-on:associated-node:get"], "apiGroups": [""], "resources": ["pods"]}
    policies.put(RBAC, "clusterroles", role(nodes, gets, name="agent"))
    policies.bind("agent", subject, name="agent")
    pod_path = "/api/v1/namespaces/default/pods/p"
    assert acting(policies, DRIVER_USER, pod_path, user="system:node:n1").groups == (
        "system:nodes",
        "system:authenticated",
    )
    with pytest.raises(ApiError):
        acting(policies, DRIVER_USER, pod_path, user="system:node:n2")
    with pytest.raises(ApiError):
        acting(policies, DRIVER_USER, pod_path, user="system:node:n1", group="extra")


def test_a_binding_and_a_role_of_twenty_thousand_lines_are_read_quickly():
    many = 20_000
    subjects = [{"kind": "User", "name": f"u{number}"} for number in range(many)]
    rules = [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": [f"p{number}"]}
        for number in range(many)
    ]
    objects = {
        "clusterroles": [{"metadata": {"name": "r"}, "rules": rules}],
        "clusterrolebindings": [
            {"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": subjects}
        ],
    }

    class Objects:
        def list(self, _group, plural):
            return objects.get(plural, [])

    def plain_work():  # the same number of small objects, as a measure of this machine at this moment
        return [[subject["name"], dict(rule)] for subject, rule in zip(subjects * 2, rules * 2, strict=True)]

    def fastest(work):
        times = []
        for _ in range(5):
            began = time.thread_time()
            work()
            times.append(time.thread_time() - began)
        return min(times)

    index = RoleIndex.read(Objects())
    # It takes less than half of that; ten times as long when texts and rules were made for everybody.
    assert fastest(lambda: RoleIndex.read(Objects())) < 3 * fastest(plain_work)
    granted = index.rules_for(User("u7"), "")
    assert len(granted) == many
    assert index.rules_for(User("nobody"), "") == []
    assert (
        'ClusterRoleBinding "b" of ClusterRole "r" to User "u7"'
        in next(iter(index.grants(User("u7"), ""))).source
    )
