"""Semantic versions: strict text, forgiving text, order."""

from itertools import pairwise

import pytest

from dray.api.semver import Semver, SemverError, parse_semver


def test_the_standards_own_example_is_in_order():
    ordered = "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0 2.0.0"
    versions = [parse_semver(text) for text in ordered.split()]
    versions.sort(key=str)
    assert [str(version) for version in sorted(versions)] == ordered.split()
    versions.sort()
    assert [a.compare(b) for a, b in pairwise(versions)] == [-1] * 8


def test_build_metadata_counts_for_nothing():
    assert parse_semver("1.2.3+a") == parse_semver("1.2.3+b")
    assert hash(parse_semver("1.2.3+a")) == hash(parse_semver("1.2.3"))
    assert str(parse_semver("1.2.3-rc.1+b.7")) == "1.2.3-rc.1+b.7"


def test_parts_are_readable():
    version = parse_semver("1.2.3-rc.1+b7")
    assert (version.major, version.minor, version.patch) == (1, 2, 3)
    assert version.prerelease == ("rc", 1)
    assert version.build == ("b7",)
    with pytest.raises(AttributeError):
        version.major = 2


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "v1.2.3", "01.2.3", "1.02.3", "1.2.03", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a_b", "1.2.x", "1..3",
     "1.2.3+é", "99999999999999999999.0.0", "1.2.3-" + "9" * 5000],
)  # fmt: skip
def test_strict_parsing_refuses(text):
    with pytest.raises(SemverError):
        Semver.parse(text)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("v1", "1.0.0"),
        ("1.2", "1.2.0"),
        ("01.002.0003", "1.2.3"),
        ("v1.2.3-rc.1", "1.2.3-rc.1"),
        ("0", "0.0.0"),
        ("00.0", "0.0.0"),
    ],
)
def test_normalizing_forgives(text, meaning):
    assert str(Semver.parse(text, normalize=True)) == meaning


@pytest.mark.parametrize("text", ["", "v", "1-rc", "1.2+b", "vv1.2.3", "1.2.3-01", " 1.2.3"])
def test_normalizing_does_not_forgive_everything(text):
    with pytest.raises(SemverError):
        Semver.parse(text, normalize=True)
