"""What a client wants to read and what it sent: Accept and Content-Type.

JSON is the language of this server; YAML is JSON in other clothes. Kubernetes
protobuf is read (see `protobuf`) but not written: a client that offers JSON as
well gets JSON, one that insists gets 406.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.kinds import META
from dray.api.media_types import JSON_TYPE, PROTOBUF_TYPE
from dray.api.media_types import YAML_TYPE as YAML_TYPE  # for `bodies`
from dray.api.text_cache import remembers_short_texts
from dray.server import errors

_READABLE = {JSON_TYPE: JSON_TYPE, YAML_TYPE: YAML_TYPE}
_LISTED = ", ".join(_READABLE)


@dataclass(frozen=True, slots=True)
class Representation:
    """How to answer: media type, and whether as a table or as metadata only."""

    media_type: str = JSON_TYPE
    as_kind: str = ""  # "", Table, PartialObjectMetadata or PartialObjectMetadataList
    as_version: str = "v1"
    stream: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether objects go out as they are, in JSON."""
        return not self.as_kind and self.media_type == JSON_TYPE


PLAIN = Representation()


@remembers_short_texts(maxsize=256, longest=1_000)  # clients send few different headers
def negotiate(
    accept: str, *, kinds: tuple[str, ...] = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
) -> Representation:
    """Choose the first acceptable clause; raises 406 when there is none."""
    if not accept.strip() or accept == JSON_TYPE:
        return PLAIN
    for media_type, parameters in _clauses(accept):
        if media_type == "*/*":
            media_type = JSON_TYPE
        chosen = _READABLE.get(media_type)
        if chosen is None:
            continue
        as_kind = parameters.get("as", "")
        if not as_kind:
            return Representation(chosen)
        version = parameters.get("v", "")
        if as_kind in kinds and parameters.get("g") == META and version in ("v1", "v1beta1"):
            return Representation(chosen, as_kind, version)
    problem = errors.not_acceptable(f"only the following media types are accepted: {_LISTED}")
    if not any(media_type in _READABLE for media_type, _ in _clauses(accept)):
        problem.details = {}  # no format at all, where others ask for a form that this kind does not have
    raise problem


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    clauses = []
    for position, clause in enumerate(accept.split(",")):
        media_type, *rest = (piece.strip() for piece in clause.split(";"))
        parameters = dict(piece.partition("=")[::2] for piece in rest if piece)
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 1.0
        clauses.append((-quality, position, media_type.lower(), parameters))
    return [(media_type, parameters) for _, _, media_type, parameters in sorted(clauses, key=lambda c: c[:2])]


@remembers_short_texts(maxsize=256, longest=1_000)
def body_type(content_type: str) -> str:
    """Return the media type of a request body; nothing said means JSON; raises 415."""
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type:
        return JSON_TYPE
    if media_type == PROTOBUF_TYPE:
        return PROTOBUF_TYPE
    chosen = _READABLE.get(media_type)
    if chosen is None:
        raise unsupported(media_type)
    return chosen


def unsupported(media_type: str) -> errors.ApiError:
    """Return 415 for a body in a format that is not read."""
    return errors.unsupported_media_type(
        f"the body of the request was in an unknown format - accepted media types include: {_LISTED}"
    )
