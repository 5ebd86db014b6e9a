"""Server-side apply: who owns which field, and how configurations merge."""

from dray.server.apply.managers import FieldConflicts, Ownership

__all__ = ["FieldConflicts", "Ownership"]
