"""What the CNCF AI conformance checklists of Kubernetes v1.34 to v1.36 ask for, and which of it is checked here.

Names, order and levels are those of the checklists; the texts are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSIONS = ("v1.34", "v1.35", "v1.36")
NEWEST = VERSIONS[-1]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One entry of a checklist."""

    category: str
    id: str
    text: str
    levels: dict[str, str]  # version -> MUST or SHOULD; versions that do not ask for it are missing
    why_not: str = ""  # why it is not checked; empty means: there is a check


def _since(first: str, level: str) -> dict[str, str]:
    return {version: level for version in VERSIONS if version >= first}


REQUIREMENTS = (
    Requirement(
        "accelerators",
        "dra_support",
        "Claims of resource.k8s.io/v1 with CEL selectors are allocated and reach a container.",
        {"v1.34": "MUST", "v1.35": "MUST"},
    ),
    Requirement(
        "accelerators",
        "driver_runtime_management",
        "Drivers and container runtimes of nodes with accelerators can be verified; versions are published through DRA.",
        _since("v1.35", "SHOULD"),
    ),
    Requirement(
        "accelerators",
        "gpu_sharing",
        "An accelerator can be shared or partitioned, and its parts are requested through DRA.",
        _since("v1.35", "SHOULD"),
    ),
    Requirement(
        "accelerators",
        "virtualized_accelerator",
        "Virtualised accelerators (vGPU) are exposed and managed.",
        _since("v1.35", "SHOULD"),
        "no driver publishes virtualised accelerators through DRA yet",
    ),
    Requirement(
        "networking",
        "ai_inference",
        "An implementation of the Gateway API manages traffic of inference services.",
        _since("v1.34", "MUST"),
        "not a matter of devices: use the conformance suite of the Gateway API",
    ),
    Requirement(
        "networking",
        "advanced_inference_ingress",
        "An implementation of the Gateway API Inference Extension routes requests to models.",
        _since("v1.36", "SHOULD"),
        "not a matter of devices: use the conformance suite of the Inference Extension",
    ),
    Requirement(
        "networking",
        "high_performance_networking",
        "Network devices are published with their characteristics and given to pods through DRA.",
        _since("v1.36", "SHOULD"),
    ),
    Requirement(
        "networking",
        "disaggregated_inference",
        "An inference server with separate instances for its phases can be installed and run.",
        _since("v1.36", "SHOULD"),
        "needs a model server with its models",
    ),
    Requirement(
        "schedulingOrchestration",
        "gang_scheduling",
        "A group of pods is placed as a whole or not at all.",
        _since("v1.34", "MUST"),
    ),
    Requirement(
        "schedulingOrchestration",
        "cluster_autoscaling",
        "Nodes with an accelerator are added for pods that wait for it, and removed when idle.",
        _since("v1.34", "MUST"),
        "nodes may cost money: --autoscaling tries it",
    ),
    Requirement(
        "schedulingOrchestration",
        "pod_autoscaling",
        "A HorizontalPodAutoscaler scales pods that use accelerators by custom metrics.",
        _since("v1.34", "MUST"),
        "needs a metrics adapter, which clusters choose themselves",
    ),
    Requirement(
        "observability",
        "accelerator_metrics",
        "Utilisation and memory of each accelerator are served in a standard format.",
        _since("v1.34", "MUST"),
    ),
    Requirement(
        "observability",
        "ai_service_metrics",
        "A monitoring system collects metrics of workloads.",
        _since("v1.34", "MUST"),
        "not a matter of devices: show it with the monitoring system of the cluster",
    ),
    Requirement(
        "security",
        "secure_accelerator_access",
        "A container sees the devices of its claim, and no other container does.",
        _since("v1.34", "MUST"),
    ),
    Requirement(
        "operator",
        "robust_controller",
        "An AI operator with custom resources and webhooks can be installed and works.",
        _since("v1.34", "MUST"),
        "needs an operator of the cluster's choice (Ray, Kubeflow)",
    ),
)


def requirements_of(version: str) -> list[Requirement]:
    """Return the requirements of a version, in the order of its checklist."""
    return [each for each in REQUIREMENTS if version in each.levels]
