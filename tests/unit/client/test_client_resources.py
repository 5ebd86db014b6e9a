"""Resources come from the table of kinds, and everything keyed by a plural refers to that table."""

import pytest

from dray.api.kinds import KINDS
from dray.client import resources
from dray.client.resources import Resource, resource_of
from dray.server.objects import selection, write_strategies
from dray.server.tables import kind_columns as tables

SERVED = {(kind.group, kind.plural) for kind in KINDS}


def defined():
    return {name: value for name, value in vars(resources).items() if isinstance(value, Resource)}


@pytest.mark.parametrize("name", sorted(defined()))
def test_a_resource_has_the_names_and_the_scope_of_its_kind(name):
    resource = defined()[name]
    [kind] = [kind for kind in KINDS if (kind.group, kind.kind) == (resource.group, resource.kind)]
    assert resource.plural == kind.plural
    assert resource.version == kind.versions[0]
    assert resource.namespaced == kind.namespaced
    assert resource.path() == kind.path()


def test_paths_are_those_of_kubernetes():
    assert resources.PODS.path("default", "p") == "/api/v1/namespaces/default/pods/p"
    assert resources.TAINT_RULES.path() == "/apis/resource.k8s.io/v1/devicetaintrules"
    assert (
        resources.POOL_STATUS_REQUESTS.path() == "/apis/resource.k8s.io/v1alpha3/resourcepoolstatusrequests"
    )
    assert (
        resources.POD_GROUPS.path("a", "g", "status")
        == "/apis/scheduling.k8s.io/v1beta1/namespaces/a/podgroups/g/status"
    )


def test_a_kind_that_is_not_served_has_no_resource():
    with pytest.raises(LookupError, match="Service"):
        resource_of("", "Service")


@pytest.mark.parametrize("table", [write_strategies._STRATEGIES, tables.LAYOUTS, selection._FIELDS])
def test_tables_keyed_by_plural_have_only_resources_that_are_served(table):
    assert {key[:2] for key in table} <= SERVED
