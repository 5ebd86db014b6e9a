"""OCI hook of the CPU driver: pins a container's first process to its CPUs.

Called by the runtime with the container's state on standard input, before the
user's program starts; what the process starts later inherits the set. Several
claims pin one after the other: each hook adds its CPUs to those of the earlier
hooks, which a small file beside the bundle remembers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dray.api.parsing import load_json
from dray.drivers.sysfs import format_cpu_list, parse_cpu_list


def main() -> int:
    """Pin the process named in the state to the CPUs named in the argument."""
    if len(sys.argv) != 2:
        print("usage: python -m dray.drivers.cpu_hook CPU-LIST < state.json", file=sys.stderr)
        return 2
    state = load_json(sys.stdin.buffer.read())
    cpus = set(parse_cpu_list(sys.argv[1]))
    bundle = state.get("bundle")
    if bundle and os.access(bundle, os.W_OK):
        memory = Path(bundle) / "dray-cpuset"
        if memory.exists():
            cpus |= set(parse_cpu_list(memory.read_text()))
        memory.write_text(format_cpu_list(cpus))
    os.sched_setaffinity(int(state["pid"]), cpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
