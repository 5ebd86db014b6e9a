"""Fields whose values are words of a fixed list, as OpenAPI documents tell them.

A line is `schema file.struct.field: words`; a dash stands for the empty text. The
lists are Kubernetes v1.37's, and the same in all versions of a struct. Generators
make enumerations of them, `kubectl explain` prints them; what is really accepted
is decided by validation, which may know more (a newer version's word) or less.
"""

from __future__ import annotations

from functools import cache

_WORDS = """
apiextensions.ValidationRule.reason: FieldValueDuplicate FieldValueForbidden FieldValueInvalid FieldValueRequired
apps.DaemonSetUpdateStrategy.type: OnDelete RollingUpdate
apps.DeploymentStrategy.type: Recreate RollingUpdate
batch.JobSpec.completionMode: Indexed NonIndexed
batch.JobSpec.podReplacementPolicy: Failed TerminatingOrFailed
batch.PodFailurePolicyOnExitCodesRequirement.operator: In NotIn
batch.PodFailurePolicyRule.action: Count FailIndex FailJob Ignore
core.AppArmorProfile.type: Localhost RuntimeDefault Unconfined
core.AzureDiskVolumeSource.cachingMode: None ReadOnly ReadWrite
core.AzureDiskVolumeSource.kind: Dedicated Managed Shared
core.Container.imagePullPolicy: Always IfNotPresent Never
core.Container.terminationMessagePolicy: FallbackToLogsOnError File
core.ContainerPort.protocol: SCTP TCP UDP
core.EphemeralContainer.imagePullPolicy: Always IfNotPresent Never
core.EphemeralContainer.terminationMessagePolicy: FallbackToLogsOnError File
core.GRPCAction.mode: Plaintext TLS
core.HTTPGetAction.protocol: HTTP1 HTTP2
core.HTTPGetAction.scheme: HTTP HTTPS
core.HostPathVolumeSource.type: - BlockDevice CharDevice Directory DirectoryOrCreate File FileOrCreate Socket
core.ImageVolumeSource.pullPolicy: Always IfNotPresent Never
core.NamespaceStatus.phase: Active Terminating
core.NodeSelectorRequirement.operator: DoesNotExist Exists Gt In Lt NotIn
core.NodeStatus.phase: Pending Running Terminated
core.PersistentVolumeClaimSpec.accessModes: ReadOnlyMany ReadWriteMany ReadWriteOnce ReadWriteOncePod
core.PersistentVolumeClaimSpec.volumeMode: Block Filesystem
core.PodSecurityContext.fsGroupChangePolicy: Always OnRootMismatch
core.PodSecurityContext.supplementalGroupsPolicy: Merge Strict
core.PodSpec.dnsPolicy: ClusterFirst ClusterFirstWithHostNet Default None
core.PodSpec.preemptionPolicy: Never PreemptLowerPriority
core.PodSpec.restartPolicy: Always Never OnFailure
core.PodStatus.phase: Failed Pending Running Succeeded Unknown
core.PodStatus.qosClass: BestEffort Burstable Guaranteed
core.ResourceQuotaSpec.scopes: BestEffort CrossNamespacePodAffinity NotBestEffort NotTerminating PriorityClass Terminating VolumeAttributesClass
core.ScopedResourceSelectorRequirement.operator: DoesNotExist Exists In NotIn
core.ScopedResourceSelectorRequirement.scopeName: BestEffort CrossNamespacePodAffinity NotBestEffort NotTerminating PriorityClass Terminating VolumeAttributesClass
core.SeccompProfile.type: Localhost RuntimeDefault Unconfined
core.SecurityContext.procMount: Default Unmasked
core.Taint.effect: NoExecute NoSchedule PreferNoSchedule
core.Toleration.effect: NoExecute NoSchedule PreferNoSchedule
core.Toleration.operator: Equal Exists Gt Lt
core.TopologySpreadConstraint.nodeAffinityPolicy: Honor Ignore
core.TopologySpreadConstraint.nodeTaintsPolicy: Honor Ignore
core.TopologySpreadConstraint.whenUnsatisfiable: DoNotSchedule ScheduleAnyway
core.VolumeHealthCondition.status: DataLoss Degraded Inaccessible
core.VolumeMount.mountPropagation: Bidirectional HostToContainer None
policy.PodDisruptionBudgetSpec.unhealthyPodEvictionPolicy: AlwaysAllow IfHealthyBudget
resource.DeviceAllocationConfiguration.source: FromClaim FromClass
resource.DeviceRequest.allocationMode: All ExactCount
resource.DeviceRequestAllocationResult.skipNodeOperations: * NodePrepareResources NodeUnprepareResources
resource.DeviceSubRequest.allocationMode: All ExactCount
resource.DeviceTaint.effect: NoExecute NoSchedule None
resource.DeviceToleration.effect: NoExecute NoSchedule None
resource.DeviceToleration.operator: Equal Exists
resource.ExactDeviceRequest.allocationMode: All ExactCount
resource.ResourceSliceSpec.skipNodeOperations: * NodePrepareResources NodeUnprepareResources
scheduling.CompositePodGroupTemplate.preemptionPolicy: Never PreemptLowerPriority
scheduling.PodGroupSpec.preemptionPolicy: Never PreemptLowerPriority
scheduling.PodGroupTemplate.preemptionPolicy: Never PreemptLowerPriority
scheduling.PriorityClass.preemptionPolicy: Never PreemptLowerPriority
"""
_PLAIN_SIGNALS = (
    "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS TERM TRAP "
    "TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ"
)


@cache
def enumerations() -> dict[tuple[str, str, str], list[str]]:
    """Return the words by (schema file, struct, field)."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for line in _WORDS.split("\n"):
        place, _, words = line.partition(": ")
        if words:
            file, struct, field = place.split(".")
            found[file, struct, field] = ["" if word == "-" else word for word in words.split()]
    for struct in ("ContainerStatus", "Lifecycle"):
        found["core", struct, "stopSignal"] = _signals()
    return found


def _signals() -> list[str]:
    signals = [f"SIG{name}" for name in _PLAIN_SIGNALS.split()] + ["SIGRTMIN", "SIGRTMAX"]
    signals += [f"SIGRTMIN+{number}" for number in range(1, 16)]
    signals += [f"SIGRTMAX-{number}" for number in range(1, 15)]
    return sorted(signals)
