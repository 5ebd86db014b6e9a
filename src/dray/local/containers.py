"""End the containers of a system that goes away.

Containers outlive their node agent on purpose, so that an agent can be replaced under
them. When a whole system stops, nobody would come back for them: they would hold
memory and devices of a cluster that no longer exists.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from dray.node.runtime import ContainerId, ProcessRuntime
from dray.node.runtime.runc import RuncRuntime

GRACE_SECONDS = 2.0


async def end_containers(nodes: Path, runtime: str, grace: float = GRACE_SECONDS, *, only: str = "*") -> int:
    """Stop what still runs below `nodes/<name>/containers`; returns how many there were. `only`: of this node."""
    if runtime == "none":
        return 0
    counts = await asyncio.gather(*(_end(root, runtime, grace) for root in sorted(nodes.glob(only))))
    return sum(counts)


async def _end(root: Path, runtime: str, grace: float) -> int:
    def nobody_listens(_id: ContainerId, _code: int, _reason: str) -> None:
        pass

    box = RuncRuntime(root, nobody_listens) if runtime == "runc" else ProcessRuntime(root, nobody_listens)
    try:
        living = [container.id for container in await box.found() if container.exit_code is None]
        await asyncio.gather(*(box.stop(container, grace) for container in living))
    finally:
        await box.close()
    return len(living)
