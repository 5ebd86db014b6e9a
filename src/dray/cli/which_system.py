"""Which system of `dray up` a command means, and whether it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dray.cli.arguments import DEFAULT_DATA
from dray.cli.output import CommandError
from dray.local.running_system import is_running, read_state, remembered, why_not_read


def current_data(given: Path | None) -> Path:
    """Return the folder of the system that is meant: the given one, else that of the `dray up` started last."""
    if given is not None:
        return given.expanduser().absolute()
    return remembered() or DEFAULT_DATA


def running_state(given: Path | None) -> dict[str, Any]:
    """Return the state of the running system that is meant; raises CommandError (exit code 1) when none runs."""
    data = current_data(given)
    state = read_state(data)
    if state is None or not is_running(state):
        raise CommandError(f"no system runs in {data}", why_not_read(data) or "`dray up` starts one", code=1)
    return state


async def ask_shared_system(path: str) -> Any:
    """Return the answer of the shared system of this machine to a POST; raises CommandError when there is none."""
    from dray.api.parsing import load_json
    from dray.client import Client, Request, error_from
    from dray.local.shared_machine import find_shared_system, shared_socket

    endpoint = find_shared_system()
    if endpoint is None:
        raise CommandError(
            f"no shared system answers at {shared_socket()}",
            "`sudo dray install` or `sudo dray up --shared` starts one",
            code=1,
        )
    async with Client.at(endpoint) as client:
        response = await client.transport.send(Request("POST", path, b"{}"))
    if response.status != 201:
        raise error_from(response.status, response.body)
    return load_json(response.body)
