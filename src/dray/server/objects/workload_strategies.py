"""What writing workloads and other small kinds adds: selectors of jobs, template counts, names.

Each function completes a new object in place; `old` is None on creation.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.validation.equality import is_same
from dray.api.well_known import JOB_CONTROLLER_UID_LABEL, JOB_NAME_LABEL

_TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
_JOB_NAME = (JOB_NAME_LABEL, "job-name")
_CONTROLLER_UID = (JOB_CONTROLLER_UID_LABEL, "controller-uid")


def prepare_job(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Give a job a selector that only its own pods match, unless it brings one."""
    spec = new.get("spec") or {}
    if old is not None or spec.get("manualSelector"):
        return
    metadata = new["metadata"]
    template = dict(spec.get("template") or {})
    template_metadata = dict(template.get("metadata") or {})
    given = dict(template_metadata.get("labels") or {})
    labels = {
        **dict.fromkeys(_JOB_NAME, metadata.get("name") or ""),
        **dict.fromkeys(_CONTROLLER_UID, metadata["uid"]),
        **given,
    }
    selector = dict(spec.get("selector") or {})
    matched = {_CONTROLLER_UID[0]: metadata["uid"], **(selector.get("matchLabels") or {})}
    template["metadata"] = {**template_metadata, "labels": labels}
    new["spec"] = {**spec, "template": template, "selector": {**selector, "matchLabels": matched}}
    # A job without labels of its own takes those of its template, also the generated ones.
    if is_same(metadata.get("labels") or {}, given):
        metadata["labels"] = dict(labels)


def prepare_daemon_set(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Count the changes of the template in the annotation that old clients read."""
    count = 1
    if old is not None:
        before = (old["metadata"].get("annotations") or {}).get(_TEMPLATE_GENERATION, "1")
        count = int(before) if before.isdigit() else 1
        templates = [(thing.get("spec") or {}).get("template") for thing in (new, old)]
        count += 0 if is_same(*templates) else 1
    metadata = new["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), _TEMPLATE_GENERATION: str(count)}


def keep_template_generation(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Leave the count of templates alone when only the status is written."""
    before = ((old or {}).get("metadata") or {}).get("annotations") or {}
    metadata = new["metadata"]
    if _TEMPLATE_GENERATION in before:
        kept = {_TEMPLATE_GENERATION: before[_TEMPLATE_GENERATION]}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **kept}


def with_template_generation(daemon_set: JsonObject) -> None:
    """Write the annotation that every daemon set shows."""
    annotations = daemon_set["metadata"].get("annotations") or {}
    daemon_set["metadata"]["annotations"] = {_TEMPLATE_GENERATION: "0", **annotations}


def prepare_limit_range(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Name a limit range that has no name."""
    if old is None and not new["metadata"].get("name"):
        new["metadata"]["name"] = str(uuid.uuid4())


def with_encoded_strings(secret: JsonObject) -> None:
    """Turn the plain texts of a secret into its data, which is all that is kept of them."""
    texts: dict[str, Any] = secret.pop("stringData", None) or {}
    if texts:
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        secret["data"] = {**(secret.get("data") or {}), **encoded}
