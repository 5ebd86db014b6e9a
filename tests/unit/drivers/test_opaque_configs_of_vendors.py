"""Opaque configs of dranet, dra-driver-cpu, AMD, Ascend and HAMi: what is taken, and what is refused with which field."""

import pytest

from dray.api.resource import ResourceClaim
from dray.driver import AllocatedDevice, ClaimRequest, DeviceConfig, DriverError
from dray.drivers.hardware import load_profile
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.drivers.simulated_node import simulated_driver

NET, ASCEND, HAMI = "dra.net", "ascend.project-hami.io", "hami-core-gpu.project-hami.io"
NPU = {"apiVersion": f"{ASCEND}/v1alpha1", "kind": "NpuConfig"}
CPU, AMD = "dra.cpu", "gpu.amd.com"
VFIO = {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "VfioDeviceConfig"}
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
        (
            NET,
            {
                "routes": [
                    {"destination": "fd00::/8", "gateway": "fd00::1", "source": "fd00::2", "table": 100}
                ]
            },
        ),
        (
            NET,
            {"rules": [{"priority": 10, "source": "10.0.0.0/8", "destination": "10.1.0.0/16", "table": 7}]},
        ),
        (
            NET,
            {
                "interface": {
                    "hardwareAddr": "0000.5e00.5301",
                    "arpIgnore": 8,
                    "arpAnnounce": 2,
                    "vrf": {"name": "red"},
                }
            },
        ),
        (CPU, {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "0-3,8,10-11"}, "more": 1}),
        (AMD, VFIO | {"iommu": {"backendPolicy": "PreferIommuFD"}}),
        (AMD, VFIO),
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
        (NET, {"interface": {"name": "a:b"}}, "interface.name", "contains invalid character ':'"),
        (NET, {"interface": {"addresses": ["192.0.2.1"]}}, "interface.addresses[0]", "invalid IP CIDR format '192.0.2.1'"),
        (NET, {"interface": {"addresses": ["192.0.2.1/255.255.255.0"]}}, "interface.addresses[0]", "invalid IP CIDR"),
        (NET, {"interface": {"addresses": ["192.0.2.1/24"], "dhcp": True}}, "interface.dhcp", "mutually exclusive"),
        (NET, {"interface": {"hardwareAddr": "00:00:5e"}}, "interface.hardwareAddr", "invalid Hardware Address"),
        (NET, {"interface": {"gsoMaxSize": 0}}, "interface.gsoMaxSize", "must be positive, got 0"),
        (NET, {"interface": {"arpIgnore": 5}}, "interface.arpIgnore", "one of 0, 1, 2, 3, or 8"),
        (NET, {"interface": {"arpAnnounce": 3}}, "interface.arpAnnounce", "between 0 and 2"),
        (NET, {"interface": {"vrf": {"name": "red", "table": 254}}}, "interface.vrf.table", "reserved table ID 254"),
        (NET, {"routes": [{"gateway": "192.0.2.1"}]}, "routes[0].destination", "cannot be empty"),
        (NET, {"routes": [{"destination": "192.0.2.1", "gateway": "192.0.2.2"}]}, "routes[0].destination", "use /32 or /128"),
        (NET, {"routes": [{"destination": "10.0.0.0/8"}]}, "routes[0].gateway", "for Universe scope routes"),
        (NET, {"routes": [{"destination": "10.0.0.0/8", "gateway": "fd00::1"}]}, "routes[0].gateway", "same IP family"),
        (NET, {"routes": [{"destination": "10.0.0.0/8", "gateway": "10.0.0.1", "scope": 1}]}, "routes[0].scope", "only Link (253)"),
        (NET, {"rules": [{"priority": 40000}]}, "rules[0].priority", "between 0 and 32767"),
        (NET, {"rules": [{"source": "10.0.0.0/8", "destination": "fd00::/8"}]}, "rules[0]", "same IP family"),
        (NET, {"neighbors": [{"destination": "192.0.2.2"}]}, "neighbors[0].hardwareAddr", "cannot be empty"),
        (NET, {"neighbors": [{"destination": "here", "hardwareAddr": "x"}]}, "neighbors[0].destination", "invalid IP address"),
        (CPU, {"apiVersion": "v1"}, "apiVersion", 'unsupported opaque config apiVersion: "v1"'),
        (CPU, {"apiVersion": "v1alpha1", "cpuConfig": {}}, "cpuConfig", "cpuset is empty or missing"),
        (CPU, {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "3-1"}}, "cpuConfig.cpuset", 'failed to parse cpuset "3-1"'),
        (CPU, {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": 3}}, "cpuConfig", "is a text"),
        (CPU, [], "", "not an object"),
        (AMD, VFIO | {"iommu": {"backendPolicy": "Old"}}, "iommu.backendPolicy", "unknown IOMMU backend policy: Old"),
        (AMD, VFIO | {"iommu": {"policy": "x"}}, "iommu.policy", "unknown field"),
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interface": {"mtu": 9000}}, "interface configuration is not supported for RDMA-only devices"),
        ({"routes": [{"destination": "10.0.0.0/8", "gateway": "10.0.0.1"}]}, "routes are not supported"),
    ],
)
async def test_a_device_without_interface_takes_no_settings_of_interfaces(settings, message):
    (pool,) = [each for each in load_profile("eks-p4d").pools("n") if each.driver == NET]
    driver = simulated_driver(pool)
    for device, is_refused in (("pci-0000-10-1b-0", True), ("pci-0000-20-01-0", False)):
        held = AllocatedDevice("nic", "n", device, configs=[DeviceConfig("FromClaim", settings)])
        claim = ClaimRequest("default", "c", "uid-1", [held], ResourceClaim())
        if is_refused:
            with pytest.raises(DriverError, match=message):
                await driver.prepare(claim)
        else:
            await driver.prepare(claim)
