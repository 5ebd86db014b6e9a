"""Views of what a node needs to run a pod: commands, environment, volumes, probes.

`core` has what placing a pod needs; these views have the rest, so that schedulers
do not pay for decoding it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.core import (
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSchedulingGroup,
    ResourceRequirements,
)
from dray.api.meta import Condition, ObjectMeta, View


class ObjectFieldSelector(View, frozen=True):
    """A field of the pod itself."""

    field_path: str = ""


class ResourceFieldSelector(View, frozen=True):
    """A request or limit of a container."""

    container_name: str = ""
    resource: str = ""
    divisor: str | int | float = "0"


class KeySelector(View, frozen=True):
    """One key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool | None = None


class EnvVarSource(View, frozen=True):
    """Where a variable's value comes from."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(View, frozen=True):
    """One environment variable."""

    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvSource(View, frozen=True):
    """A ConfigMap or Secret by name."""

    name: str = ""
    optional: bool | None = None


class EnvFromSource(View, frozen=True):
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: EnvSource | None = None
    secret_ref: EnvSource | None = None


class ExecAction(View, frozen=True):
    """Run a command in the container."""

    command: list[str] = []


class HttpHeader(View, frozen=True):
    """A header of a probe."""

    name: str = ""
    value: str = ""


class HttpGetAction(View, frozen=True):
    """Ask an HTTP server; 200 to 399 is success."""

    path: str = ""
    port: int | str = 0
    host: str = ""
    scheme: str = "HTTP"
    http_headers: list[HttpHeader] = []


class TcpSocketAction(View, frozen=True):
    """Open a connection."""

    port: int | str = 0
    host: str = ""


class GrpcAction(View, frozen=True):
    """Ask the gRPC health service."""

    port: int = 0
    service: str | None = None


class Probe(View, frozen=True):
    """How to find out whether a container is well."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    grpc: GrpcAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(View, frozen=True):
    """What to do at a point of a container's life."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    sleep: dict[str, int] | None = None


class Lifecycle(View, frozen=True):
    """Hooks after start and before stop."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


class VolumeMount(View, frozen=True):
    """Where a volume appears in the container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    read_only: bool = False


class RunPort(View, frozen=True):
    """A port that probes may name."""

    name: str = ""
    container_port: int = 0


class SecurityContext(View, frozen=True):
    """As whom a container runs."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    allow_privilege_escalation: bool | None = None
    privileged: bool | None = None


class RunContainer(View, frozen=True):
    """One container, as far as running it needs to know."""

    name: str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    env_from: list[EnvFromSource] = []
    ports: list[RunPort] = []
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: list[VolumeMount] = []
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    restart_policy: str | None = None  # Always on an init container makes it a sidecar
    security_context: SecurityContext | None = None
    tty: bool = False
    stdin: bool = False


class KeyToPath(View, frozen=True):
    """Which key becomes which file."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class ConfigMapVolumeSource(View, frozen=True):
    """A ConfigMap as files."""

    name: str = ""
    items: list[KeyToPath] = []
    optional: bool | None = None


class SecretVolumeSource(View, frozen=True):
    """A Secret as files."""

    name: str = msgspec.field(default="", name="secretName")
    items: list[KeyToPath] = []
    optional: bool | None = None


class HostPathSource(View, frozen=True):
    """A path of the host."""

    path: str = ""
    type: str = ""


class Volume(View, frozen=True):
    """A volume of the pod; kinds that dray cannot provide are in `unknown_kinds`."""

    name: str = ""
    empty_dir: dict[str, Any] | None = None
    host_path: HostPathSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")
    projected: dict[str, Any] | None = None


class PodSecurityContext(View, frozen=True):
    """As whom the containers run, unless they say otherwise."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: list[int] | None = None
    fs_group: int | None = None


class RunPodSpec(View, frozen=True):
    """What is to run."""

    node_name: str = ""
    containers: list[RunContainer] = []
    init_containers: list[RunContainer] = []
    volumes: list[Volume] = []
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    resource_claims: list[PodResourceClaim] = []
    service_account_name: str = ""
    hostname: str = ""
    host_network: bool = False
    security_context: PodSecurityContext | None = None
    scheduling_group: PodSchedulingGroup | None = None


class RunPodStatus(View, frozen=True):
    """What was said of the pod so far; the node adds to it."""

    phase: str = ""
    reason: str = ""
    conditions: list[Condition] = []
    start_time: str | None = None
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class RunPod(View, frozen=True):
    """A pod, as the node that runs it sees it."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: RunPodSpec = RunPodSpec()
    status: RunPodStatus = RunPodStatus()

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def grace_seconds(self) -> int:
        """Return how long the pod may take to end."""
        for seconds in (
            self.metadata.deletion_grace_period_seconds,
            self.spec.termination_grace_period_seconds,
        ):
            if seconds is not None:
                return seconds
        return 30
