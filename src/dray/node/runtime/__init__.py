"""Ways to run containers: `process` (no isolation), `runc` (real containers), `none` (states only)."""

from dray.node.runtime.contract import (
    BindMount,
    ContainerId,
    ExecResult,
    FoundContainer,
    Launch,
    Runtime,
    StartError,
)
from dray.node.runtime.none import NoneRuntime
from dray.node.runtime.process import ProcessRuntime

__all__ = [
    "BindMount",
    "ContainerId",
    "ExecResult",
    "FoundContainer",
    "Launch",
    "NoneRuntime",
    "ProcessRuntime",
    "Runtime",
    "StartError",
]
