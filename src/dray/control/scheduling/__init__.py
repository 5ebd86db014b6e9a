"""The scheduler as a process: caches, queue, decisions, commits, reports.

Decisions are made in the pure room `dray.scheduler`; here is only what touches a server.
"""

from dray.control.scheduling.loop import TOPOLOGY, SchedulerOptions, SchedulingLoop, Statistics

__all__ = ["TOPOLOGY", "SchedulerOptions", "SchedulingLoop", "Statistics"]
