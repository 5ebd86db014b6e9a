"""The allocator against upstream's, on the same instances, in one run, alternating.

Upstream runs behind `peer/` (Go); where Go is absent dray runs alone and the report
says so. Both sides have their inventory loaded; what is measured is one pod's question.
dray is measured twice: the first time it meets a question, and when the next pod asks
the same one (claims made from one template), which is the common case in a cluster.
"""

from bench.allocator.measuring import run

__all__ = ["run"]
