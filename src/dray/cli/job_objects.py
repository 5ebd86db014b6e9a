"""The objects of a job of `dray run`: a pod, and the claim that it owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.api.json_types import JsonObject
from dray.cli.output import CommandError, say
from dray.workbench.run_manifests import Job, claim_manifest, pod_manifest

if TYPE_CHECKING:
    from dray.client import Client


async def create_job(client: Client, job: Job, spec: JsonObject | None) -> None:
    """Create the pod and its claim, or neither."""
    from dray.client import AlreadyExists, ApiError
    from dray.client.resources import CLAIMS, PODS

    try:
        created = await client.create(PODS, pod_manifest(job), job.namespace)
    except AlreadyExists:
        raise CommandError(
            f"job {job.namespace}/{job.name} exists already", "choose another --name"
        ) from None
    if spec is None:
        return
    claim = claim_manifest(job.name, job.namespace, spec, created["metadata"]["uid"])
    try:
        await client.create(CLAIMS, claim, job.namespace)
    except ApiError as error:
        await delete_job(client, job)
        raise CommandError(f"the server refused the claim: {error}", code=1) from error


async def delete_job(client: Client, job: Job, grace_seconds: int | None = None) -> None:
    """Delete the pod and its claim; what is gone already is not an error."""
    from dray.client import ClientError, NotFound
    from dray.client.resources import CLAIMS, PODS

    # The claim goes with the pod that owns it; it is named here for a pod that never was.
    for resource in (PODS, CLAIMS) if job.has_devices else (PODS,):
        try:
            await client.delete(resource, job.name, job.namespace, grace_seconds=grace_seconds)
        except NotFound:
            continue
        except ClientError as error:
            say(f"{resource.kind} {job.namespace}/{job.name} could not be deleted: {error}")
