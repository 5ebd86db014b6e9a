"""Typed views of the metadata that every Kubernetes object carries.

The structs of this package are *views*: they hold the fields that dray decides on,
and decoding skips the others. A view is therefore never written back whole;
loops write with patches or with the plain JSON object they read. The objects of
resource.k8s.io are the exception: `resource` models them completely.

Wire names are camelCase; Python fields are snake_case; msgspec maps them.
"""

from __future__ import annotations

import msgspec


class View(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False, frozen=True):
    """Base of all wire structs: camelCase on the wire, defaults left out."""


class OwnerReference(View, frozen=True):
    """Who owns an object; the garbage collector follows these."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(View, frozen=True):
    """Name, identity and life of an object.

    Not `managedFields`, which are often half of an object's text: nobody decides on them.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None  # RFC 3339, seconds
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []


class Condition(View, frozen=True):
    """metav1.Condition: one observed fact with its reason."""

    type: str = ""
    status: str = ""  # True, False, Unknown
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None


class LabelSelectorRequirement(View, frozen=True):
    """One `key operator values` requirement."""

    key: str = ""
    operator: str = ""
    values: list[str] = []


class LabelSelector(View, frozen=True):
    """matchLabels and matchExpressions, joined by AND."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] = []


class NodeSelectorRequirement(View, frozen=True):
    """One `key operator values` requirement on node labels or fields."""

    key: str = ""
    operator: str = ""  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: list[str] = []


class NodeSelectorTerm(View, frozen=True):
    """Requirements joined by AND; a term without any matches nothing."""

    match_expressions: list[NodeSelectorRequirement] = []
    match_fields: list[NodeSelectorRequirement] = []


class NodeSelector(View, frozen=True):
    """Terms joined by OR."""

    node_selector_terms: list[NodeSelectorTerm] = []
