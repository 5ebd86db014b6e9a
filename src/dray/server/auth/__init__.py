"""Who sends a request and what they may do: certificates, tokens, RBAC, the node authorizer, reviews."""

from dray.server.auth.access_reviews import impersonated
from dray.server.auth.authentication import ANONYMOUS, Authenticator
from dray.server.auth.authorization import MASTERS_GROUP, Attributes, Authorizer, Decision
from dray.server.auth.node_authorizer import node_name_of, references_of
from dray.server.auth.rbac_objects import bootstrap_objects, reconciled
from dray.server.auth.service_account_tokens import TokenIssuer, TokenVerifier

# fmt: off
__all__ = [
    "ANONYMOUS", "MASTERS_GROUP", "Attributes", "Authenticator", "Authorizer", "Decision", "TokenIssuer",
    "TokenVerifier", "bootstrap_objects", "impersonated", "node_name_of", "reconciled",
    "references_of",
]
# fmt: on
