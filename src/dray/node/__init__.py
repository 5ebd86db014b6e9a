"""The node agent: registers drivers, prepares claims, runs containers that really get their devices."""

from dray.node.agent import Agent, AgentSettings, running_agent
from dray.node.cdi import DEFAULT_DIRS, CdiRegistry, apply_edits, read_spec

__all__ = [
    "DEFAULT_DIRS",
    "Agent",
    "AgentSettings",
    "CdiRegistry",
    "apply_edits",
    "read_spec",
    "running_agent",
]
