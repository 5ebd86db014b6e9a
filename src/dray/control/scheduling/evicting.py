"""Preempt: delete the victims, after the node was nominated for the more important pod (see `nominating`).

Each victim first gets the condition DisruptionTarget, so that people and controllers can
see why it ended; then it is deleted by its uid, so that a namesake is never hit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from dray.api.core import Pod
from dray.api.times import format_time
from dray.client import STRATEGIC_PATCH, Client, ClientError, Conflict, EventRecorder, NotFound
from dray.client import resources as kinds
from dray.scheduler import PodUse, Preemption, public_name

log = logging.getLogger("dray.scheduler")


async def evict(
    client: Client,
    recorder: EventRecorder,
    pod: Pod,
    plan: Preemption,
    name: str,
    now: Callable[[], datetime],
) -> list[PodUse]:
    """Delete the victims; return those of whom we do not know that they will go."""
    left: list[PodUse] = []
    reference = pod.spec.scheduling_group
    is_gang = len(plan.nominations) > 1 and reference is not None
    kind, by = "pod", f"{pod.metadata.namespace}/{pod.metadata.name}"
    if is_gang and reference is not None:
        kind, by = "pod group", f"{pod.metadata.namespace}/{reference.pod_group_name}"
    where = "" if is_gang else f" on node {plan.node}"
    for victim in plan.victims:
        meta = victim.pod.metadata
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{name}: preempting to accommodate a higher priority {'pod group' if is_gang else 'pod'}",
            "lastTransitionTime": format_time(now()),
        }
        try:
            path = kinds.PODS.path(meta.namespace, meta.name, "status")
            body: dict[str, Any] = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
            await client.call("PATCH", path, body, content_type=STRATEGIC_PATCH, view=None)
            await client.delete(kinds.PODS, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            continue  # it is gone already, or another pod has its name
        except ClientError as error:
            log.info("cannot evict %s: %s", meta.name, error)
            left.append(victim)
            continue
        # The victim's owner reads it, who need not know the names of others.
        known = public_name(by, meta.namespace)
        text = f"{kind} {known}" if known == by else f"a {kind} of {known}"
        recorder.record(kinds.PODS, meta, "Normal", "Preempted", f"Preempted by {text}{where}")
    return left
