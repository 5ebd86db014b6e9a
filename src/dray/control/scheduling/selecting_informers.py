"""Services and the owners of pods, followed because their selectors tell which pods are spread over nodes and zones by default.

Kinds that the server does not have, or that may not be listed, count as empty: their pods are then not spread.
"""

from __future__ import annotations

from typing import Any

from dray.api.meta import LabelSelector
from dray.api.workloads import ReplicaSet, ReplicationController, Service, StatefulSet
from dray.client import Client, Informer, Resource, key_of
from dray.client import resources as kinds
from dray.scheduler import Selecting

SERVICES = Resource("", "v1", "services", "Service")
REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")


class SelectingInformers:
    """Keeps the selectors of the snapshot up to date."""

    def __init__(self, client: Client, selecting: Selecting) -> None:
        self._selecting = selecting
        services = Informer(client, SERVICES, Service, optional=True)
        services.add_handler(self._service_changed)
        controllers = Informer(client, REPLICATION_CONTROLLERS, ReplicationController, optional=True)
        controllers.add_handler(self._controller_changed)
        stateful_sets = Informer(client, STATEFUL_SETS, StatefulSet, optional=True)
        stateful_sets.add_handler(self._owner_changed)
        replica_sets = Informer(client, kinds.REPLICA_SETS, ReplicaSet, optional=True)
        replica_sets.add_handler(self._owner_changed)
        self.in_order: list[Informer[Any]] = [services, controllers, stateful_sets, replica_sets]

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        known = new or old
        assert known is not None
        namespace, name = known.metadata.namespace, known.metadata.name
        by_name = self._selecting.services.setdefault(namespace, {})
        if new is not None and new.spec.selector:
            by_name[name] = new.spec.selector
        else:
            by_name.pop(name, None)
            if not by_name:
                del self._selecting.services[namespace]

    def _controller_changed(
        self, old: ReplicationController | None, new: ReplicationController | None
    ) -> None:
        selector = new.spec.selector if new is not None else None
        self._set_owner(old or new, LabelSelector(match_labels=selector) if selector else None)

    def _owner_changed(
        self, old: StatefulSet | ReplicaSet | None, new: StatefulSet | ReplicaSet | None
    ) -> None:
        self._set_owner(old or new, new.spec.selector if new is not None else None)

    def _set_owner(
        self, owner: StatefulSet | ReplicaSet | ReplicationController | None, selector: LabelSelector | None
    ) -> None:
        assert owner is not None
        key = (owner.kind, key_of(owner.metadata))
        if selector is not None:
            self._selecting.owners[key] = selector
        else:
            self._selecting.owners.pop(key, None)
