"""The audit log: who did what, as audit.k8s.io/v1 events in a file, chosen by an audit.k8s.io/v1 Policy."""

from dray.server.audit.audit_file import AuditFile
from dray.server.audit.audit_log import AuditLog
from dray.server.audit.audit_policy import DEFAULT_POLICY, AuditPolicy, PolicyError, parse_policy

__all__ = ["DEFAULT_POLICY", "AuditFile", "AuditLog", "AuditPolicy", "PolicyError", "parse_policy"]
