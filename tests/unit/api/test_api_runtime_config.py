"""Which versions are served: settings, gates, and settings that make no sense."""

import doctest

import pytest

from dray.api import runtime_config
from dray.api.features import Features
from dray.api.kinds import GROUP_VERSIONS
from dray.api.runtime_config import RuntimeConfigError, ServedVersions, parse_runtime_config


def versions(*settings, features=None):
    chosen = Features.default() if features is None else features
    return ServedVersions(parse_runtime_config(settings), chosen).group_versions()


def test_the_examples_hold():
    assert doctest.testmod(runtime_config).failed == 0


def test_everything_is_served_without_settings_but_what_a_gate_withholds():
    assert versions() == {**GROUP_VERSIONS, "scheduling.k8s.io": ("v1",)}
    assert versions(features=Features.everything()) == GROUP_VERSIONS
    assert versions("scheduling.k8s.io/v1beta1=true")["scheduling.k8s.io"] == ("v1",)


def test_the_more_specific_setting_decides():
    found = versions("api/all=false,api/ga,resource.k8s.io/v1beta2=true", "batch/v1=false")
    assert found["resource.k8s.io"] == ("v1", "v1beta2")
    assert "batch" not in found
    assert versions("api/beta=false")["resource.k8s.io"] == ("v1", "v1alpha3")
    assert versions("api/alpha=FALSE")["resource.k8s.io"] == ("v1", "v1beta2", "v1beta1")
    assert list(versions("api/all=false,api/v1=true")) == [""]


def test_one_resource_can_be_switched_off():
    served = ServedVersions(parse_runtime_config(["resource.k8s.io/v1/devicetaintrules=false"]))
    assert "DeviceTaintRule" not in {kind.kind for kind in served.kinds_in("resource.k8s.io", "v1")}
    assert "DeviceTaintRule" in {kind.kind for kind in served.kinds_in("resource.k8s.io", "v1beta2")}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("api/all=maybe", "true or false"),
        ("no.such.group/v1=true", "unknown API group no.such.group"),
        ("batch=false", "write group/version"),
        ("batch/v1/jobs/status=false", "write group/version"),
        ("batch/v1/widgets=false", "no resource widgets"),
        ("api/all=false", "cannot be switched off"),
        ("v1/pods=false", "pods of v1 cannot be switched off"),
        ("v1=false", "cannot be switched off"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, words):
    with pytest.raises(RuntimeConfigError, match=words):
        parse_runtime_config([setting])
