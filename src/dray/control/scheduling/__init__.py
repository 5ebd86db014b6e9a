"""The scheduler as a process: informers, queue, commits, reports.

Decisions are made by the pure package `dray.scheduler`; here is only what talks to a server.
"""

from dray.control.scheduling.loop import SchedulingLoop
from dray.control.scheduling.options import TOPOLOGY, SchedulerOptions
from dray.control.scheduling.statistics import Statistics

__all__ = ["TOPOLOGY", "SchedulerOptions", "SchedulingLoop", "Statistics"]
