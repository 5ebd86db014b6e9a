"""`dray doctor`: examine a cluster or a machine and say what is wrong, with evidence and a fix.

`cluster` and `machine` judge facts (pure), `findings` has the table of codes. `collecting` reads the facts of a
cluster; those of a machine are read by the command, the only package that reads files.
"""

from dray.workbench.doctor.cluster import ClusterFacts, check_cluster
from dray.workbench.doctor.collecting import read_cluster
from dray.workbench.doctor.findings import CODES, Finding, by_severity
from dray.workbench.doctor.machine import MachineFacts, check_machine

__all__ = [
    "CODES",
    "ClusterFacts",
    "Finding",
    "MachineFacts",
    "by_severity",
    "check_cluster",
    "check_machine",
    "read_cluster",
]
