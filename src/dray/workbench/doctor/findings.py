"""What `dray doctor` says: a finding has a code, a severity, its subject, the evidence and a fix.

`CODES` is the one table of codes; docs/doctor.md lists the same, and a test compares the two and shows
each code by a fault that causes it (tests/unit/workbench/test_doctor_findings.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

# code -> (severity, what it means)
CODES: dict[str, tuple[Severity, str]] = {
    # --- the API
    "api-not-served": ("error", "the API server does not serve resource.k8s.io"),
    "api-beta-only": ("error", "the API server serves resource.k8s.io only in beta versions"),
    "gate-off": ("error", "DynamicResourceAllocation is switched off"),
    "optional-gate-off": ("info", "optional DRA features are switched off"),
    # --- nodes
    "node-not-ready": ("error", "a node that publishes devices is not Ready"),
    "kubelet-too-old": ("error", "the kubelet of a node that publishes devices does not speak DRA v1"),
    "kubelet-skew": ("warning", "a kubelet is newer than the API server, or more than three minors older"),
    "runtime-without-cdi": ("error", "the container runtime of a node cannot inject CDI devices"),
    "runtime-cdi-by-setting": ("warning", "the container runtime injects CDI devices only when told to"),
    # --- drivers and what they publish
    "no-devices": ("warning", "no driver publishes devices"),
    "pool-incomplete": ("error", "slices of a pool's newest generation are missing"),
    "pool-of-unknown-node": ("warning", "a pool is published for a node that does not exist"),
    "devices-all-tainted": ("warning", "every device of a pool is tainted"),
    "driver-pod-failing": ("error", "a driver's pod does not run"),
    "driver-publishes-nothing": ("error", "a driver's pod runs, but its node has no slices of any driver"),
    "driver-versions-differ": ("info", "a driver reports different versions on different nodes"),
    # --- classes and claims
    "no-classes": ("error", "devices are published, but there is no DeviceClass"),
    "class-does-not-compile": ("error", "a selector of a DeviceClass does not compile"),
    "class-selects-nothing": ("info", "no published device satisfies a DeviceClass"),
    "driver-without-class": ("warning", "no DeviceClass selects the devices of a driver"),
    "extended-resource-twice": ("warning", "two DeviceClasses offer the same extended resource"),
    "claim-device-gone": ("warning", "a claim is allocated a device that is no longer published"),
    "claim-deletion-stuck": ("warning", "a claim has been waiting for its deletion for minutes"),
    "claim-not-created": ("error", "no controller creates the claims of templates"),
    "pods-waiting": ("info", "pods with claims wait for a node"),
    # --- schedulers and the guard
    "scheduler-absent": ("error", "pods wait for a scheduler that does not run"),
    "two-schedulers-no-guard": (
        "warning",
        "two schedulers allocate the same devices and no guard is installed",
    ),
    "guard-inactive": ("warning", "the guard is installed but has never judged: nothing is guarded"),
    "guard-unavailable": ("error", "the guard is registered but not available: nothing can be allocated"),
    # --- this machine
    "kubelet-gate-off": ("error", "DynamicResourceAllocation is switched off in kubelet's configuration"),
    "registry-missing": ("warning", "kubelet's plugin registration directory does not exist"),
    "plugin-socket-dead": ("error", "nobody listens on a driver's registration socket"),
    "plugin-endpoint-dead": ("error", "a registered driver does not listen on its DRA socket"),
    "plugin-api-too-old": ("warning", "a driver does not offer DRA v1"),
    "containerd-cdi-off": ("error", "CDI is switched off in containerd's configuration"),
    "cdi-spec-invalid": ("error", "a CDI spec cannot be used"),
    "cdi-device-twice": ("error", "two CDI specs define the same device"),
    "cdi-path-missing": ("error", "a CDI spec names a device node or mount that does not exist"),
    "kernel-driver-missing": ("warning", "an accelerator has no kernel driver"),
    "cgroup-v1": ("warning", "the machine uses cgroup v1"),
    "part-not-running": ("error", "a component of `dray up` is not running"),
    # --- the examination itself
    "not-permitted": ("info", "something could not be examined for lack of permission"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    code: str
    subject: str  # the object, by name
    evidence: str  # what was seen
    fix: str  # what to do

    @property
    def severity(self) -> Severity:
        """Return how serious it is."""
        return CODES[self.code][0]

    def data(self) -> dict[str, str]:
        """Return it for JSON and YAML."""
        return {"severity": self.severity, **asdict(self)}


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, errors first, otherwise in the order in which they were found."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def limited(findings: Iterator[Finding], most: int = 50) -> Iterator[Finding]:
    """Yield at most so many findings of one check: a broken fleet must not bury the others."""
    for count, finding in enumerate(findings):
        if count >= most:
            return
        yield finding
