"""A whole system on one machine: the processes of `dray up`, its nodes, and the demo that runs on it."""
