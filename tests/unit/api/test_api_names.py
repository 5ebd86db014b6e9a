"""Well-known names and media types: valid, and written down in one module only."""

import re
from pathlib import Path

import pytest

import dray
from dray.api import media_types, well_known

SOURCES = Path(dray.__file__).parent
# Modules that still define some of the names for themselves.
ELSEWHERE = {
    "allocator/device_choice.py",
    "control/taint_eviction.py",
}


def constants(module):
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def written(text):
    """Modules that have this text as a whole string literal."""
    found = re.compile(rf"(?<![\w])[\"']{re.escape(text)}[\"']")
    return {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if found.search(path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("text", sorted(constants(media_types).values()))
def test_a_media_type_is_written_once(text):
    assert written(text) - ELSEWHERE == {"api/media_types.py"}


@pytest.mark.parametrize(
    "text", sorted(value for value in constants(well_known).values() if value not in ("orphan",))
)
def test_a_well_known_name_is_written_once(text):
    assert written(text) - ELSEWHERE == {"api/well_known.py"}


def test_well_known_names_are_qualified_names():
    for name, value in constants(well_known).items():
        if name.endswith(("_LABEL", "_ANNOTATION", "_KEY", "_EXTRA")) or "/" in value:
            assert re.fullmatch(r"(/var/run/secrets/)?[a-z.]+/[A-Za-z.-]*", value), name
    # The scheduling gate of a job that waits is called like the annotation that names the other job.
    others = {name: value for name, value in constants(well_known).items() if name != "AFTER_GATE"}
    assert len(set(others.values())) == len(others)


def test_media_types_are_types_and_subtypes():
    assert all(re.fullmatch(r"application/[a-z.+-]+", value) for value in constants(media_types).values())
