"""Tables: objects as rows, which is what `kubectl get` shows.

The door is `Tables`: columns and cells for every served kind, the same as
kube-apiserver's, and for custom kinds the columns of their definitions.
"""

from dray.server.tables.ages import human_duration
from dray.server.tables.table_rendering import Tables

__all__ = ["Tables", "human_duration"]
