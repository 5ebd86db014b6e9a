"""The table of kinds: complete, consistent, and easy to ask."""

import pytest

from dray.api.kinds import (
    GROUP_VERSIONS,
    KINDS,
    kind_of,
    kind_of_plural,
    kinds_in,
    split_api_version,
)


def test_resource_k8s_io_serves_its_kinds_per_version():
    def names(version):
        return [kind.kind for kind in kinds_in("resource.k8s.io", version)]

    five = ["DeviceClass", "DeviceTaintRule", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"]
    assert names("v1") == names("v1beta2") == five
    assert names("v1beta1") == ["DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"]
    assert names("v1alpha3") == ["DeviceTaintRule", "ResourcePoolStatusRequest"]
    assert GROUP_VERSIONS["resource.k8s.io"] == ("v1", "v1beta2", "v1beta1", "v1alpha3")


def test_storage_versions_are_upstreams():
    assert kind_of("resource.k8s.io", "DeviceTaintRule").storage_version == "v1beta2"
    assert kind_of("resource.k8s.io", "ResourcePoolStatusRequest").storage_version == "v1alpha3"
    assert kind_of("resource.k8s.io", "ResourceSlice").storage_version == "v1"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.group_resource)
def test_every_row_is_consistent(kind):
    assert kind.storage_version in kind.versions
    assert set(kind.versions) <= set(GROUP_VERSIONS[kind.group])
    assert kind_of(kind.group, kind.kind) is kind
    assert kind_of_plural(kind.group, kind.plural) is kind
    names = [subresource.name for subresource in kind.subresources]
    assert names == sorted(set(names))
    assert list(kind.verbs) == sorted(kind.verbs)


def test_every_group_version_serves_something():
    for group, versions in GROUP_VERSIONS.items():
        assert all(kinds_in(group, version) for version in versions)


def test_paths():
    claim = kind_of("resource.k8s.io", "ResourceClaim")
    assert claim.path() == "/apis/resource.k8s.io/v1/resourceclaims"
    assert claim.path(version="v1beta1", namespace="n", name="c", subresource="status") == (
        "/apis/resource.k8s.io/v1beta1/namespaces/n/resourceclaims/c/status"
    )
    assert kind_of("", "Node").path(namespace="ignored", name="n1") == "/api/v1/nodes/n1"


def test_names_derive_from_the_kind():
    device_class = kind_of("resource.k8s.io", "DeviceClass")
    assert (device_class.singular, device_class.list_kind) == ("deviceclass", "DeviceClassList")
    assert device_class.group_resource == "deviceclasses.resource.k8s.io"
    assert kind_of("", "Pod").group_resource == "pods"
    assert kind_of("", "Pod").subresource("eviction").group == "policy"
    assert kind_of("", "Pod").subresource("none") is None
    assert not kind_of("", "Binding").is_stored
    assert kind_of("", "Widget") is None


def test_api_versions_split_into_group_and_version():
    assert split_api_version("v1") == ("", "v1")
    assert split_api_version("resource.k8s.io/v1beta1") == ("resource.k8s.io", "v1beta1")
