"""HorizontalPodAutoscalers: how many replicas a workload has follows what its pods report.

`replica_counts` and `scaling_decision` are pure, `reported_metrics` says where values come from, `controller` acts.
"""

from dray.control.pod_autoscaling.controller import PodAutoscalerController

__all__ = ["PodAutoscalerController"]
