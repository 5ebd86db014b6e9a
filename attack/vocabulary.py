"""The words of requests: content types, Accept headers, query parameters with good and odd values, patch directives."""

from __future__ import annotations

from typing import Any

Json = Any

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
PROTOBUF, YAML, JSON = "application/vnd.kubernetes.protobuf", "application/yaml", "application/json"
NAMES = tuple(f"a{number}" for number in range(6))
ACCEPTS = (
    "application/json;as=Table;v=v1;g=meta.k8s.io, application/json", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", YAML, PROTOBUF, f"{PROTOBUF}, application/json", "*/*",
    "application/cbor", "text/html", "application/json;as=Table;v=v9;g=meta.k8s.io", "", "application/json;q=0.1, application/yaml;q=x", ";;,,",
    "application/json;stream=watch", "application/apply-patch+yaml",
)  # fmt: skip
DOCUMENT_ACCEPTS = (
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/openmetrics-text; version=1.0.0", "text/plain;version=0.0.4;q=x",
)  # fmt: skip
QUERIES: dict[str, tuple[str, ...]] = {
    "labelSelector": (
        "attack=yes", "attack", "!attack", "attack in (yes,no)", "attack notin (x)", "a=b,c=d", "attack>1", "attack<x", "(", "a in (", "==", ",",
        "é=1", "a!=b", "a=" + "x" * 70, "a" * 70, " attack = yes ", "attack in ()", "x/y/z=1", "a=b,,c", "in in (in)", "a\x00b",
    ),
    "fieldSelector": (
        "metadata.name=a0", "metadata.name!=a0", "metadata.namespace=w0", "spec.nodeName=n1", "status.phase=Running", "x=1", "metadata.name",
        "=", "metadata.name=a\\,b", "metadata.name=a\\", "spec.unschedulable=x", "involvedObject.uid=1", "type=Opaque", ",", "metadata.name==a0,metadata.name=a1",
    ),
    "limit": ("1", "2", "500", "0", "-1", "x", "9223372036854775807", "9223372036854775808", "1.5", "٣", "²", ""),
    "resourceVersion": ("0", "1", "5", "999999999", "-1", "x", "9223372036854775807", "18446744073709551616", "²", "", "1 ", "+1", "0x1"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x", ""),
    "timeoutSeconds": ("1", "0", "-1", "x", "9223372036854775807", "99999999999999999999", "²"),
    "allowWatchBookmarks": ("true", "false", "x", ""), "sendInitialEvents": ("true", "false", ""), "watch": ("false", "0"),
    "pretty": ("true", "1", "x"), "timeout": ("1s", "x", "-1s", "1e9h"), "shardSelector": ("x",),
}  # fmt: skip
WRITE_QUERIES: dict[str, tuple[str, ...]] = {
    "fieldManager": ("m", "kubectl", "x" * 129, "é", "\u0000", "a\nb", ""),
    "fieldValidation": ("Strict", "Warn", "Ignore", "x", "strict"),
    "dryRun": ("All", "All", "All", "x", ""), "pretty": ("true",), "force": ("true", "false", "x"),
}  # fmt: skip
DELETE_QUERIES: dict[str, tuple[str, ...]] = {
    "gracePeriodSeconds": ("0", "1", "-1", "x", "9223372036854775807", "99999999999999999999", "²", "1e3"),
    "propagationPolicy": ("Foreground", "Background", "Orphan", "x", ""),
    "orphanDependents": ("true", "false", "x"), "dryRun": ("All", "x"),
}  # fmt: skip
LOG_QUERIES: dict[str, tuple[str, ...]] = {
    "container": ("c", "main", "x", "", "é"), "follow": ("false",), "tailLines": ("1", "-1", "x", "²", "9223372036854775807"),
    "sinceSeconds": ("1", "0", "-1", "x"), "sinceTime": ("2026-01-02T03:04:05Z", "x", ""), "limitBytes": ("1", "0", "x", "-1"),
    "timestamps": ("true", "x"), "previous": ("true",), "stream": ("All", "Stdout", "x"), "insecureSkipTLSVerifyBackend": ("true",),
}  # fmt: skip
EXEC_QUERIES = {
    "command": ("ls", "", "é"),
    "stdin": ("true", "x"),
    "stdout": ("1",),
    "tty": ("x",),
    "container": ("c", "x"),
}
DIRECTIVES: tuple[Json, ...] = (
    {"$patch": "delete"}, {"$patch": "replace"}, {"$patch": "merge"}, {"$patch": "x"}, {"$patch": 1}, {"$patch": None}, {"$retainKeys": ["a"]},
    {"$retainKeys": 1}, {"$retainKeys": [1]}, {"$setElementOrder/containers": [{"name": "main"}]}, {"$setElementOrder/containers": 1},
    {"$setElementOrder/containers": ["x"]}, {"$setElementOrder/x": [{}]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"$deleteFromPrimitiveList/finalizers": 1},
    {"$setElementOrder/": []}, {"$deleteFromPrimitiveList/x": [{}]}, {"$unknown": 1}, {"$setElementOrder/tolerations": [None]},
)  # fmt: skip
