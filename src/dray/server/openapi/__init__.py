"""What the server tells clients about its API: discovery and OpenAPI documents."""

from dray.server.openapi.discovery import Discovery, version_priority
from dray.server.openapi.openapi_documents import OpenApi

__all__ = ["Discovery", "OpenApi", "version_priority"]
