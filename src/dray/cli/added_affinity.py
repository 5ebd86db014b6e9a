"""The node affinity that a scheduler adds to every pod, from a file with the fields of `spec.affinity.nodeAffinity`."""

from __future__ import annotations

from pathlib import Path

from dray.api.codec import to_view
from dray.api.core import NodeAffinity
from dray.api.parsing import ParseError, load_yaml
from dray.api.reading import read
from dray.api.scalars import DecodeError
from dray.api.schema import struct_of
from dray.api.validation import Path as FieldPath
from dray.api.validation.pod_scheduling import validate_affinity
from dray.cli.output import CommandError
from dray.client.bounded_files import read_file

_HINT = "write the fields of spec.affinity.nodeAffinity of a pod, as YAML or JSON"


def load_added_affinity(name: str | None) -> NodeAffinity | None:
    """Read and check the file; None when no file is named. Raises CommandError."""
    if not name:
        return None
    try:
        content = load_yaml(read_file(Path(name)))
        if not isinstance(content, dict | None):
            raise CommandError(f"added affinity {name}: must be an object", _HINT)
        document, complaints = read(struct_of("core", "v1", "NodeAffinity"), content)
    except (OSError, ParseError, DecodeError) as error:
        raise CommandError(f"added affinity {name}: {' '.join(str(error).split())}", _HINT) from error
    found = validate_affinity({"nodeAffinity": document}, FieldPath("affinity"))
    errors = complaints or [each.message() for each in found]
    if errors:
        raise CommandError(f"added affinity {name}: {'; '.join(errors[:3])}", _HINT)
    if not document:
        raise CommandError(f"added affinity {name}: the file says nothing", _HINT)
    return to_view(NodeAffinity, document)
