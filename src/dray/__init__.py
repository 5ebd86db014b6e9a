"""dray: Dynamic Resource Allocation (DRA), complete, in Python."""

__version__ = "0.1.0"
