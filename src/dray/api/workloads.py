"""Typed views of workloads: what the small controllers decide on.

The same rules as in `meta`: a view shows some fields, and is never written back whole.
"""

from __future__ import annotations

from typing import Any

from dray.api.meta import Condition, LabelSelector, ObjectMeta, View


class ReplicaSetSpec(View, frozen=True):
    """How many pods of which template."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: dict[str, Any] = {}


class ReplicaSetStatus(View, frozen=True):
    """How many there are."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0


class ReplicaSet(View, frozen=True):
    """A ReplicaSet."""

    api_version: str = "apps/v1"
    kind: str = "ReplicaSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class StatefulSetSpec(View, frozen=True):
    """Which pods belong to it."""

    selector: LabelSelector | None = None


class StatefulSet(View, frozen=True):
    """A StatefulSet, as far as the scheduler looks at it."""

    api_version: str = "apps/v1"
    kind: str = "StatefulSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()


class ServiceSpec(View, frozen=True):
    """Which pods belong to it."""

    selector: dict[str, str] | None = None


class Service(View, frozen=True):
    """A Service, as far as the scheduler looks at it."""

    api_version: str = "v1"
    kind: str = "Service"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class ReplicationController(View, frozen=True):
    """A ReplicationController, as far as the scheduler looks at it."""

    api_version: str = "v1"
    kind: str = "ReplicationController"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class RollingUpdate(View, frozen=True):
    """How fast to roll: counts or percentages."""

    max_unavailable: str | int = "25%"
    max_surge: str | int = "25%"


class DeploymentStrategy(View, frozen=True):
    """Recreate, or RollingUpdate."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate = RollingUpdate()


class DeploymentSpec(View, frozen=True):
    """What should run."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: dict[str, Any] = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    paused: bool = False
    revision_history_limit: int = 10
    min_ready_seconds: int = 0


class DeploymentStatus(View, frozen=True):
    """How far it is."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: list[Condition] = []


class Deployment(View, frozen=True):
    """A Deployment."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class DaemonSetUpdateStrategy(View, frozen=True):
    """Who replaces pods of an older template: the controller, or whoever deletes them (`OnDelete`)."""

    type: str = "RollingUpdate"


class DaemonSetSpec(View, frozen=True):
    """One pod of the template on every fitting node."""

    selector: LabelSelector | None = None
    template: dict[str, Any] = {}
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()


class DaemonSetStatus(View, frozen=True):
    """How many nodes have it."""

    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    observed_generation: int = 0


class DaemonSet(View, frozen=True):
    """A DaemonSet."""

    api_version: str = "apps/v1"
    kind: str = "DaemonSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class JobSpec(View, frozen=True):
    """What to run to the end, how often, how many at a time."""

    parallelism: int = 1
    completions: int | None = None
    backoff_limit: int = 6
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    template: dict[str, Any] = {}


class JobStatus(View, frozen=True):
    """How far it is."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    ready: int | None = None
    start_time: str | None = None
    completion_time: str | None = None
    completed_indexes: str = ""  # "0-3,7"
    conditions: list[Condition] = []


class Job(View, frozen=True):
    """A job."""

    api_version: str = "batch/v1"
    kind: str = "Job"
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
