"""Runs OCI hooks where no OCI runtime does: the state on standard input, a failure with the hook's own words."""

from __future__ import annotations

import asyncio

from dray.api.cdi import Hook
from dray.node.runtime.contract import StartError

MAX_MESSAGE = 2000
DEFAULT_SECONDS = 60.0


async def run_hook(hook: Hook, state: bytes) -> None:
    """Run one hook; raise StartError when it fails or takes too long."""
    arguments = hook.args or [hook.path]
    try:
        process = await asyncio.create_subprocess_exec(
            arguments[0],
            *arguments[1:],
            executable=hook.path,
            env=dict(variable.split("=", 1) for variable in hook.env if "=" in variable),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise StartError("RunContainerError", f"hook {hook.path} cannot be run: {error.strerror}") from error
    try:
        async with asyncio.timeout(float(hook.timeout or DEFAULT_SECONDS)):
            _, errors = await process.communicate(state)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise StartError("RunContainerError", f"hook {hook.path} did not end in time") from None
    if process.returncode != 0:
        message = errors.decode(errors="replace").strip()[-MAX_MESSAGE:]
        raise StartError(
            "RunContainerError",
            f"hook {hook.path} failed with exit code {process.returncode}"
            + (f": {message}" if message else ""),
        )
