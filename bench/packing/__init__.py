"""How full the GPUs of a recorded cluster get under each policy, beside the published figures.

Reads the openb trace from `../shared/data/openb/csv`, or from the directory named in
DRAY_OPENB; without it the section says so.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dray.sim.traces import POLICY_NAMES, arrivals, read_nodes, read_pods, replay

SEED = 42
DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "data" / "openb" / "csv"

# At 130 % arrived, default trace, mean of ten seeds (Weng et al., USENIX ATC 2023).
PUBLISHED = {"Random": 87.47, "Clustering": 91.88, "Packing": 92.00, "BestFit": 93.08, "FGD": 95.39}

HEAD = """## Packing: how full GPUs get

The openb trace (Alibaba, 1,213 nodes, 6,212 GPUs; pods want shares of a GPU or several whole ones), default mix,
seed {seed}: {pods:,} arrivals one at a time, nobody leaves, a pod that fits nowhere is dropped. Every node is scored.
Allocated share of the GPUs, in percent, when demand of 100 % and of 130 % of the capacity has arrived; CPU seconds of
the whole replay. The replay applies the policies' own functions to a model of the nodes (`dray.sim.traces`).

| policy | at 100 % | at 130 % | pods placed | CPU s |
|---|---|---|---|---|
"""

TAIL = """
Published for 130 %, mean of ten seeds: {published}.
`frag` is the scheduler's policy, which expects a usual mix of requests; `frag+mix` is given the mix of the trace;
`frag+cpu` also looks at the cpu that requests want and nodes have left, as FGD does.
"""


def run(quick: bool) -> str:
    """Replay the trace under every policy (`quick`: two of them) and return the section."""
    directory = Path(os.environ.get("DRAY_OPENB", DEFAULT))
    if not directory.is_dir():
        return f"## Packing: how full GPUs get\n\nNot measured: the openb trace is not at {directory.name}/ (set DRAY_OPENB)."
    nodes = read_nodes(directory / "openb_node_list_gpu_node.csv")
    pods = read_pods(directory / "openb_pod_list_default.csv")
    stream = arrivals(pods, sum(sum(node.rooms) for node in nodes), SEED)
    rows = []
    for name in ("first-fit", "frag") if quick else POLICY_NAMES:
        started = time.process_time()
        fill = replay(nodes, stream, name)
        seconds = time.process_time() - started
        at = fill.allocated_at
        rows.append(f"| {name} | {at[1.0]:.2f} | {at[1.3]:.2f} | {fill.placed:,} | {seconds:.1f} |")
    published = ", ".join(f"{name} {figure:.2f}" for name, figure in PUBLISHED.items())
    return (
        HEAD.format(seed=SEED, pods=len(stream)) + "\n".join(rows) + "\n" + TAIL.format(published=published)
    )
