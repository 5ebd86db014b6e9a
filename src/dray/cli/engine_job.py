"""What a job of `dray hold` or `dray run --image` runs: a container engine, with the job's devices in its flags.

    python -m dray.cli.engine_job podman run IMAGE COMMAND …

The node agent puts what CDI says of the job's devices into the variable DRAY_DEVICE_EDITS, because the pod asks for
it (`dray.dev/tell-edits`). This program becomes the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

from dray.api.cdi import ContainerEdits
from dray.api.parsing import ParseError, load_json
from dray.api.user_names import EDITS_VARIABLE
from dray.workbench.container_engines import EngineError, not_carried_out, with_devices

_NOT_STARTED = 127


def main(words: Sequence[str]) -> int:
    """Become the engine; returns only when that cannot be."""
    text = os.environ.pop(EDITS_VARIABLE, "")
    try:
        edits = msgspec.convert(load_json(text), ContainerEdits) if text else ContainerEdits()
        line = with_devices(words, edits)
    except (ParseError, msgspec.ValidationError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _NOT_STARTED
    for what in not_carried_out(edits):
        print(f"warning: no flag of {words[0]} carries out {what}", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execvp(line[0], line)  # noqa: S606  # that is what this is for
    except OSError as error:
        print(f"error: cannot start {line[0]}: {error.strerror}", file=sys.stderr)
    return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
