"""The scheduler as a process: caches, queue, decisions, commits, reports.

Decisions are made in the pure room `dray.scheduler`; here is only what touches a server.
"""

from dray.control.scheduling.loop import SchedulerOptions, SchedulingLoop, Statistics

__all__ = ["SchedulerOptions", "SchedulingLoop", "Statistics"]
