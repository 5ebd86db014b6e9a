"""From a socket to an answer: listeners, the fast HTTP/1.1 path, limits, health, metrics, node agents, webhooks.

The only package of the server that knows aiohttp (an import contract).
"""

from dray.server.http.api_server import ApiServer, Handle
from dray.server.http.flow_control import Flow, Limits
from dray.server.http.health_checks import Health
from dray.server.http.node_agents import NodeAgents
from dray.server.http.server_metrics import Metrics, feature_gates
from dray.server.http.webhook_transport import WebhookTransport

__all__ = [
    "ApiServer",
    "Flow",
    "Handle",
    "Health",
    "Limits",
    "Metrics",
    "NodeAgents",
    "WebhookTransport",
    "feature_gates",
]
