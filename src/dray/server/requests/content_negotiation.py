"""What a client wants to read and what it sent: Accept and Content-Type.

JSON is the language of this server; YAML is another form of it. Kubernetes protobuf is read
(see `protobuf_bodies`), and written for clients that accept nothing else: one that offers JSON
as well gets JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.caching import cached_by_text
from dray.api.kinds import META
from dray.api.media_types import JSON_TYPE, PROTOBUF_TYPE, YAML_TYPE
from dray.server.requests import errors

_READABLE = {JSON_TYPE: JSON_TYPE, YAML_TYPE: YAML_TYPE}
_LISTED = ", ".join(_READABLE)
_ANYTHING = "*/*"


@dataclass(frozen=True, slots=True)
class Representation:
    """How to answer: media type, and whether as a table or as metadata only."""

    media_type: str = JSON_TYPE
    as_kind: str = ""  # "", Table, PartialObjectMetadata or PartialObjectMetadataList
    as_version: str = "v1"
    stream: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether objects go out as they are, in JSON."""
        return not self.as_kind and self.media_type == JSON_TYPE


PLAIN = Representation()


@cached_by_text(maxsize=256, longest=1_000)  # clients send few different headers
def negotiate(
    accept: str, *, kinds: tuple[str, ...] = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
) -> Representation:
    """Choose the first acceptable clause; raises 406 when there is none."""
    if not accept.strip() or accept == JSON_TYPE:
        return PLAIN
    readable = _readable_clauses(accept)
    for media_type, parameters in readable:
        chosen = _READABLE.get(media_type, JSON_TYPE)
        as_kind = parameters.get("as", "")
        if not as_kind:
            return Representation(chosen)
        version = parameters.get("v", "")
        if as_kind in kinds and parameters.get("g") == META and version in ("v1", "v1beta1"):
            return Representation(chosen, as_kind, version)
    if insists_on_protobuf(accept):
        return Representation(PROTOBUF_TYPE)
    listed = f"{_LISTED}, {PROTOBUF_TYPE}" if readable else _LISTED
    problem = errors.not_acceptable(f"only the following media types are accepted: {listed}")
    if all(media_type == _ANYTHING for media_type, _ in readable):
        problem.details = {}  # no format at all, where others ask for a form that this kind does not have
    raise problem


def insists_on_protobuf(accept: str) -> bool:
    """Return whether plain objects in protobuf are acceptable."""
    for clause in accept.split(",", 100)[:100]:
        media_type, *parameters = (piece.strip().lower() for piece in clause.split(";"))
        if media_type == PROTOBUF_TYPE and not any(piece.startswith("as=") for piece in parameters):
            return True
    return False


def _readable_clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    """Return the clauses that this server can serve, best first; a header may have 30,000 others."""
    clauses = []
    for position, clause in enumerate(dict.fromkeys(accept.split(","))):
        media_type = clause.partition(";")[0].strip().lower()
        if media_type not in _READABLE and media_type != _ANYTHING:
            continue
        pieces = (piece.strip() for piece in clause.split(";")[1:])
        parameters = dict(piece.partition("=")[::2] for piece in pieces if piece)
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 1.0
        clauses.append((-quality, position, media_type, parameters))
    return [(media_type, parameters) for _, _, media_type, parameters in sorted(clauses, key=lambda c: c[:2])]


@cached_by_text(maxsize=256, longest=1_000)
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
