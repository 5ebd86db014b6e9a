"""Waiting for something that another task, thread or process does: for the condition itself, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOK_AGAIN = 0.005  # seconds


async def until(happened: Callable[[], object], seconds: float = 120.0) -> None:
    """Return as soon as the condition holds; raise TimeoutError when it never does."""
    async with asyncio.timeout(seconds):
        while not happened():
            await asyncio.sleep(_LOOK_AGAIN)


async def forever(*_: object) -> None:
    """Never return: for peers that do not answer."""
    await asyncio.Event().wait()
