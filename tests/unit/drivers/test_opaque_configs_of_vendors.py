"""Opaque configs of dranet, Ascend and HAMi: what these drivers take, and what they refuse with which field."""

import pytest

from dray.drivers.opaque_configs import OpaqueConfigError, check_config

NET, ASCEND, HAMI = "dra.net", "ascend.project-hami.io", "hami-core-gpu.project-hami.io"
NPU = {"apiVersion": f"{ASCEND}/v1alpha1", "kind": "NpuConfig"}
GPU = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


@pytest.mark.parametrize(
    ("driver", "parameters"),
    [
        (NET, None),
        (
            NET,
            {
                "interface": {
                    "name": "dranet0",
                    "mtu": 4321,
                    "addresses": ["192.0.2.1/24"],
                    "gsoIPv4MaxSize": 65536,
                }
            },
        ),
        (NET, {"routes": [{"destination": "0.0.0.0/0", "gateway": "192.0.2.254", "scope": 253}]}),
        (
            NET,
            {
                "interface": {"disableEbpfPrograms": True},
                "ethtool": {"features": {"tcp-segmentation-offload": False}},
            },
        ),
        (
            NET,
            {
                "neighbors": [{"destination": "192.0.2.2", "hardwareAddr": "00:00:5e:00:53:01"}],
                "profile": "fast",
            },
        ),
        (ASCEND, NPU | {"vnpuSpec": {"templateName": "vir01"}}),
        (ASCEND, NPU | {"sharing": {"strategy": "TimeSlicing"}}),
        (HAMI, GPU),
    ],
)
def test_a_config_of_the_driver_is_taken(driver, parameters):
    check_config(driver, parameters)


@pytest.mark.parametrize(
    ("driver", "parameters", "path", "message"),
    [
        (NET, {"interface": {"nam": "x"}}, "interface.nam", 'unknown field "interface.nam"'),
        # dranet's config is not an API object.
        (NET, {"apiVersion": "dra.net/v1", "interface": {}}, "apiVersion", 'unknown field "apiVersion"'),
        (NET, {"interface": {"name": "a-name-that-is-too-long"}}, "interface.name", "maximum length of 15"),
        (NET, {"interface": {"name": "a/b"}}, "interface.name", "cannot contain '/'"),
        (NET, {"interface": {"name": "a b"}}, "interface.name", "whitespace"),
        (NET, {"interface": {"name": ".."}}, "interface.name", "cannot be"),
        (NET, {"interface": {"mtu": 67}}, "interface.mtu", "must be at least 68, got 67"),
        (NET, {"interface": {"mtu": "9000"}}, "interface.mtu", "cannot decode"),
        (NET, {"interface": {"vrf": {"name": "red"}}, "rules": [{"table": 7}]}, "rules", "VRF"),
        (NET, [], "", "cannot decode"),
        (ASCEND, NPU | {"vnpu": {}}, "vnpu", "unknown field"),
        (ASCEND, NPU | {"sharing": {"strategy": "MPS"}}, "sharing.strategy", "unknown NPU sharing strategy: MPS"),
        (ASCEND, NPU | {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Ever"}}},
            "sharing.timeSlicingConfig.interval", "unknown time-slice interval: Ever"),
        (ASCEND, NPU | {"sharing": {"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": -1}}},
            "sharing.spacePartitioningConfig.partitionCount", "invalid partition count: -1"),
        (HAMI, GPU | {"cores": 50}, "cores", "unknown field"),
    ],
)  # fmt: skip
def test_what_the_driver_refuses_is_named_with_its_field(driver, parameters, path, message):
    with pytest.raises(OpaqueConfigError) as refused:
        check_config(driver, parameters)
    assert refused.value.path == path
    assert message in str(refused.value)
