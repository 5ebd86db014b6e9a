"""A real Kubernetes cluster on this machine: etcd, API server, controllers, scheduler, two kubelets with containerd.

    python tools/cluster up                 start it (needs root; programs come from tools/peers/build-node)
    python tools/cluster load ARCHIVE       bring an image onto its nodes
    python tools/cluster kubectl …          kubectl, as an administrator
    python tools/cluster helm …             helm, as an administrator
    python tools/cluster run COMMAND …      any command in the cluster's network, with KUBECONFIG set
    python tools/cluster down               end it and remove its state

`make cluster` starts one, runs tests/cluster on it and ends it. DRAY_CLUSTER is the folder of its state and logs (default
~/.cache/dray/cluster).
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from namespaces import ClusterError
from rig import Cluster


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(
        prog="tools/cluster", description="a real Kubernetes cluster on this machine"
    )
    parser.add_argument("command", choices=["up", "down", "load", "kubectl", "helm", "run"])
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for load, kubectl, helm and run")
    args = parser.parse_args()
    cluster = Cluster(gates=os.environ.get("FEATURE_GATES", ""))
    try:
        if args.command == "up":
            cluster.up()
            print(
                f"export KUBECONFIG={cluster.credentials.kubeconfig('admin')}   # in the cluster's network only"
            )
        elif args.command == "down":
            cluster.down()
        elif args.command == "load":
            for archive in args.words:
                cluster.load(Path(archive).absolute())
        else:
            return enter(cluster, args.command, args.words)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def enter(cluster: Cluster, command: str, words: list[str]) -> int:
    """Run a client in the cluster's network."""
    program = [] if command == "run" else [str(cluster.peers / command)]
    config = str(cluster.credentials.kubeconfig("admin"))
    entered = ["nsenter", "--target", str(cluster.control_plane.pid), "--net", "--", *program, *words]
    return subprocess.run(entered, env={**os.environ, "KUBECONFIG": config}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
