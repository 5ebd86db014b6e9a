"""Who may call a node's port: subjects, roles and calls, asked of dray's node agent and of kubelet.

The test of the agent compares with tests/recordings/node/access.jsonl, which the recorder `node` writes (tools/recorders).
"""

NODE = "worker"

ROLES = {
    "monitor": [(["get"], ["nodes/metrics", "nodes/stats", "nodes/healthz"])],
    "lister": [(["get"], ["nodes/pods"])],
    "reader": [(["get"], ["nodes/proxy"])],
    "operator": [(["get", "create"], ["nodes/proxy"])],
    "podadmin": [(["*"], ["pods", "pods/log", "pods/exec", "nodes"])],
}

CALLS = [
    ("GET", "/pods"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/containerLogs/default/p/c"),
    ("GET", "/exec/default/p/c?command=id&output=1"),
    ("POST", "/exec/default/p/c?command=id&output=1"),
    ("GET", "/unknown"),
    ("DELETE", "/pods"),
]

# User and groups of a certificate; or a token by the name of its user: `admin`, `guest`, `monitor`, and `wrong`.
SUBJECTS = [
    ("kubernetes-admin", ["system:masters"], ""),
    ("kubeadm-client", ["system:masters"], ""),
    ("", [], "admin"),
    # Nobody, and those whom nobody gave a right.
    ("", [], ""),
    ("", [], "wrong"),
    ("guest", [], ""),
    ("", [], "guest"),
    ("guest", ["system:authenticated", "team-a"], ""),
    # Other parts of the cluster have no business on a node's port, other nodes and this node itself included.
    ("system:node:other", ["system:nodes"], ""),
    (f"system:node:{NODE}", ["system:nodes"], ""),
    ("system:kube-scheduler", [], ""),
    # Controllers may get and delete everything (garbage collection), subresources of nodes included, as upstream.
    ("system:kube-controller-manager", [], ""),
    ("podadmin", [], ""),
    # Rights on subresources, each for itself; nodes/proxy stands in for pods, healthz and configz only.
    ("monitor", [], ""),
    ("", [], "monitor"),
    ("someone", ["system:monitoring"], ""),
    ("lister", [], ""),
    ("reader", [], ""),
    ("operator", [], ""),
]


def subject_name(user: str, groups: list[str], token: str) -> str:
    """Return how a subject is called in recordings."""
    if token:
        return f"token of {token}"
    return f"{user} in {','.join(groups)}" if groups else user or "nobody"


def role(name: str) -> dict:
    """Return a ClusterRole."""
    rules = [{"apiGroups": [""], "verbs": verbs, "resources": resources} for verbs, resources in ROLES[name]]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
    }  # fmt: skip


def binding(name: str, *more_subjects: dict) -> dict:
    """Return the ClusterRoleBinding of a role to the user of its name."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": name}, *more_subjects],
        "roleRef": {"kind": "ClusterRole", "apiGroup": group, "name": name},
    }
