"""Talk to any Kubernetes API server: verbs, transports, list-watch caches, leader election, events.

The names that the package exports; docs/client.md has a tour.
"""

from dray.api.json_types import JsonObject
from dray.api.media_types import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from dray.client.api_client import Client, ListOf, WatchEvent, revision_of
from dray.client.endpoint import local_endpoint
from dray.client.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    ClientError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeconfigError,
    NotFound,
    ServerFailed,
    TooManyRequests,
    TransportError,
    Unauthorized,
    error_from,
)
from dray.client.events import EventRecorder
from dray.client.informer import Handler, HasMetadata, Informer, key_of
from dray.client.kubeconfig import Endpoint, load_endpoint, load_in_cluster, load_kubeconfig
from dray.client.leader_election import LeaderElection
from dray.client.metadata_changes import change_metadata
from dray.client.resources import Resource
from dray.client.transport import HttpTransport, Request, Response, Transport

__all__ = [
    "APPLY_PATCH",
    "JSON_PATCH",
    "MERGE_PATCH",
    "STRATEGIC_PATCH",
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "Client",
    "ClientError",
    "Conflict",
    "Endpoint",
    "EventRecorder",
    "Forbidden",
    "Gone",
    "Handler",
    "HasMetadata",
    "HttpTransport",
    "Informer",
    "Invalid",
    "JsonObject",
    "KubeconfigError",
    "LeaderElection",
    "ListOf",
    "NotFound",
    "Request",
    "Resource",
    "Response",
    "ServerFailed",
    "TooManyRequests",
    "Transport",
    "TransportError",
    "Unauthorized",
    "WatchEvent",
    "change_metadata",
    "error_from",
    "key_of",
    "load_endpoint",
    "load_in_cluster",
    "load_kubeconfig",
    "local_endpoint",
    "revision_of",
]
