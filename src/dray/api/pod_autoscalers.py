"""Typed views of HorizontalPodAutoscalers (autoscaling/v2): what the controller decides on.

The same rules as in `meta`: a view shows some fields, and is never written back whole.
"""

from __future__ import annotations

from typing import Any

from dray.api.meta import Condition, LabelSelector, ObjectMeta, View
from dray.api.resource import QuantityValue


class ObjectReference(View, frozen=True):
    """An object by kind and name, in the same namespace."""

    kind: str = ""
    name: str = ""
    api_version: str = ""


class MetricTarget(View, frozen=True):
    """Which value a metric should have."""

    type: str = ""  # Value, AverageValue, Utilization
    value: QuantityValue | None = None
    average_value: QuantityValue | None = None
    average_utilization: int | None = None  # percent of the requests


class MetricIdentifier(View, frozen=True):
    """A metric by name."""

    name: str = ""
    selector: LabelSelector | None = None


class MetricSource(View, frozen=True):
    """Where one metric comes from; each type of metric has some of the fields."""

    target: MetricTarget = MetricTarget()
    metric: MetricIdentifier = MetricIdentifier()  # Pods, Object, External
    described_object: ObjectReference = ObjectReference()  # Object
    name: str = ""  # Resource, ContainerResource: of the resource
    container: str = ""  # ContainerResource


class MetricSpec(View, frozen=True):
    """One metric to scale by; the field named like its type is set."""

    type: str = ""  # Pods, Object, External, Resource, ContainerResource
    pods: MetricSource | None = None
    object: MetricSource | None = None
    external: MetricSource | None = None
    resource: MetricSource | None = None
    container_resource: MetricSource | None = None

    @property
    def source(self) -> MetricSource:
        """Return the field that belongs to the type."""
        field = "container_resource" if self.type == "ContainerResource" else self.type.lower()
        found = getattr(self, field, None)
        return found if isinstance(found, MetricSource) else MetricSource()


class ScalingPolicy(View, frozen=True):
    """How much may change within a period."""

    type: str = "Pods"  # Pods, Percent
    value: int = 0
    period_seconds: int = 0


class ScalingRules(View, frozen=True):
    """How fast to scale in one direction."""

    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"  # Max, Min, Disabled
    policies: list[ScalingPolicy] = []
    tolerance: QuantityValue | None = None


class Behavior(View, frozen=True):
    """How fast to scale."""

    scale_up: ScalingRules = ScalingRules()
    scale_down: ScalingRules = ScalingRules()


class HorizontalPodAutoscalerSpec(View, frozen=True):
    """What to scale, by what, and between which bounds."""

    scale_target_ref: ObjectReference = ObjectReference()
    min_replicas: int | None = None  # None means: 1
    max_replicas: int = 0
    metrics: list[MetricSpec] = []
    behavior: Behavior | None = None


class HorizontalPodAutoscalerStatus(View, frozen=True):
    """What the controller last decided."""

    observed_generation: int | None = None
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_metrics: list[dict[str, Any]] | None = None
    conditions: list[Condition] = []


class HorizontalPodAutoscaler(View, frozen=True):
    """A HorizontalPodAutoscaler."""

    api_version: str = "autoscaling/v2"
    kind: str = "HorizontalPodAutoscaler"
    metadata: ObjectMeta = ObjectMeta()
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()
