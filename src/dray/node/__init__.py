"""The node agent: registers drivers, prepares claims, runs containers that really get their devices."""

from dray.node.agent import Agent, AgentSettings, running_agent
from dray.node.cdi import CdiRegistry, apply_edits

__all__ = ["Agent", "AgentSettings", "CdiRegistry", "apply_edits", "running_agent"]
