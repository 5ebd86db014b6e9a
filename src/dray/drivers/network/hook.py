"""OCI hook of the network driver: moves the claimed interface into the new container.

The runtime calls it with the container's state on standard input, after the
namespaces are made and before the user's program starts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dray.api.parsing import load_json
from dray.driver import DriverError
from dray.drivers.network.moving import Move, attach


def main() -> int:
    """Attach the interface described by the file in the first argument."""
    if len(sys.argv) != 2:
        print("usage: python -m dray.drivers.network.hook MOVE.json < state.json", file=sys.stderr)
        return 2
    state = load_json(sys.stdin.buffer.read())
    move = load_json(Path(sys.argv[1]).read_bytes(), Move)
    try:
        attach(move, int(state["pid"]))
    except DriverError as error:
        print(f"dra.net: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
