"""Find jobs by name for the commands around `dray run`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dray.api.json_types import JsonObject
from dray.cli.arguments import add_flags, did_you_mean
from dray.cli.output import CommandError
from dray.workbench.jobs import JobState, job_states

if TYPE_CHECKING:
    from dray.client import Client


def add_job_arguments(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """Add the job's name and the flags that say where it is."""
    if many:
        parser.add_argument(
            "names", nargs="+", metavar="JOB", help="names of jobs, as `dray ps` lists them, or of arrays"
        )
    else:
        parser.add_argument("name", metavar="JOB", help="name of the job, as `dray ps` lists it")
    add_flags(parser, "--namespace", "--kubeconfig", "--context")


async def list_jobs(client: Client, namespace: str | None) -> list[JobState]:
    """Return the jobs of a namespace, or of all of them (None)."""
    from dray.client.resources import CLAIMS, PODS

    pods = (await client.list(PODS, namespace)).items
    return job_states(pods, (await client.list(CLAIMS, namespace)).items)


async def visible_jobs(client: Client) -> list[JobState]:
    """Return the jobs of everybody; of one's own namespace where the user may not see more."""
    from dray.client import Forbidden

    try:
        return await list_jobs(client, None)
    except Forbidden:
        return await list_jobs(client, client.namespace)


async def get_pod(client: Client, namespace: str, name: str) -> JsonObject:
    """Return the pod of a job; a name that does not exist is an error with the nearest one."""
    from dray.client import NotFound
    from dray.client.resources import PODS

    try:
        pod: JsonObject = await client.get(PODS, name, namespace)
    except NotFound:
        known = [job.name for job in await list_jobs(client, namespace)]
        raise CommandError(
            f"there is no job {namespace}/{name}",
            did_you_mean(name, known) or "`dray ps -a` lists jobs; -n names another namespace",
        ) from None
    return pod


async def named_jobs(client: Client, namespace: str, names: Sequence[str]) -> list[str]:
    """Return the jobs that are named; the name of an array stands for all of its jobs. Raises as `get_pod` does."""
    known = [job.name for job in await list_jobs(client, namespace)]
    found: dict[str, None] = {}
    for name in names:
        members = members_of_array(name, known)
        if name not in known and not members:
            await get_pod(client, namespace, name)
        found |= dict.fromkeys([name] if name in known or not members else members)
    return list(found)


def members_of_array(name: str, known: Iterable[str]) -> list[str]:
    """Return the jobs of an array, in the order of their numbers.

    >>> members_of_array("sweep", ["sweep-10", "sweep-9", "sweeper-1", "sweep-x", "other"])
    ['sweep-9', 'sweep-10']
    """
    numbers = (each.removeprefix(f"{name}-") for each in known if each.startswith(f"{name}-"))
    return [f"{name}-{number}" for number in sorted(filter(_is_number, numbers), key=int)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and str(int(text)) == text
