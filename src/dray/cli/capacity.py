"""`dray capacity`: which nodes to add for pods that wait, at the lowest price, and which nodes can go."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dray.allocator import Policy
from dray.api.core import Pod
from dray.api.parsing import ParseError, parse_yaml_documents
from dray.api.well_known import TERMINAL_PHASES
from dray.api.wording import join_names, plural
from dray.cli.arguments import add_flags
from dray.cli.manifests import valid_objects
from dray.cli.output import CommandError, add_output_flag, emit, table
from dray.cli.policies import load_policy
from dray.cli.progress import doing
from dray.cli.sources import add_source_flags, load_source
from dray.client.bounded_files import read_file
from dray.scheduler.policies import NodePolicy, policy_named
from dray.sim.snapshot import Snapshot
from dray.workbench.capacity import (
    Addition,
    CapacityPlan,
    Catalogue,
    RemovalPlan,
    parse_catalogue,
    plan_capacity,
    plan_removal,
)
from dray.workbench.workload_pods import pods_of, templates_of

_FEW = 4  # pods named per node in the table


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests whose pods are to fit: pods, workloads, claims, templates",
    )
    add("--pending", action="store_true", help="plan for the pods of the cluster that wait")
    add("--catalogue", metavar="FILE", help="node types with prices, and compute classes (YAML)")
    add(
        "--remove",
        action="store_true",
        help="also find out which nodes can go, and where their pods would be",
    )
    add_flags(parser, "--policy")
    add_output_flag(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Plan; exit code 0 when every pod is served, 1 when one is not, 2 for bad input."""
    if not (args.files or args.pending or args.remove):
        raise CommandError(
            "nothing to plan", "give manifests, --pending (pods that wait), or --remove (nodes that can go)"
        )
    if (args.files or args.pending) and not args.catalogue:
        raise CommandError("no catalogue of nodes was given", "--catalogue FILE; docs/capacity.md shows one")
    wanted = Snapshot()
    for obj in valid_objects(args.files):
        wanted.add(obj)
        for made in (*templates_of(obj), *pods_of(obj)):
            wanted.add(made)
    base = load_source(args, offline=bool(args.files) and not args.pending and not args.kubeconfig)
    snapshot = base.merged(wanted) if args.files else base
    catalogue = read_catalogue(args.catalogue, snapshot) if args.catalogue else None
    answer: dict[str, Any] = {}
    code = 0
    if catalogue is not None and (args.files or args.pending):
        pods = _pending(snapshot, wanted, every=args.pending)
        if not pods and args.files:
            raise CommandError("the manifests have no pod to place")
        doing(f"planning nodes for {plural(len(pods), 'pod')}")
        plan = plan_capacity(snapshot, pods, catalogue, policy=_policy(args.policy))
        answer |= plan_data(plan)
        code = 1 if plan.unserved else 0
    if args.remove:
        doing("looking for nodes that can go")
        answer |= removal_data(plan_removal(snapshot, catalogue))
    if args.output == "table":
        _print(answer)
    else:
        emit(answer, args.output)
    return code


def read_catalogue(path: str, snapshot: Snapshot) -> Catalogue:
    """Read a catalogue file. Raises CatalogueError, OSError and CommandError."""
    try:
        documents = list(parse_yaml_documents(read_file(Path(path))))
    except ParseError as error:
        raise CommandError(f"{path}: {error}") from error
    return parse_catalogue(documents, path, snapshot)


def _policy(name: str) -> Policy | NodePolicy | None:
    found = load_policy(name)
    if isinstance(found, NodePolicy):
        return found
    return policy_named(found) if found else None


def _pending(snapshot: Snapshot, wanted: Snapshot, *, every: bool) -> list[Pod]:
    """Return the pods that wait: those of the manifests, and with `every` those of the cluster."""
    names = {(pod.metadata.namespace, pod.metadata.name) for pod in wanted.pods}
    return [
        pod
        for pod in snapshot.pods
        if not pod.spec.node_name
        and pod.status.phase not in TERMINAL_PHASES
        and pod.metadata.deletion_timestamp is None
        and (every or (pod.metadata.namespace, pod.metadata.name) in names)
    ]


# --- as data ----------------------------------------------------------------------


def plan_data(plan: CapacityPlan) -> dict[str, Any]:
    """Return the plan as JSON data."""
    return {
        "currency": plan.currency,
        "cost": round(plan.cost, 6),
        "add": [_addition(each) for each in plan.additions],
        "fitting": [{"pod": each.pod, "node": each.node, "devices": each.devices} for each in plan.fitting],
        "placed": [{"pod": each.pod, "node": each.node, "devices": each.devices} for each in plan.placed],
        "unserved": [
            {"pod": each.pod, "reasons": [{"type": name, "reason": text} for name, text in each.reasons]}
            for each in plan.unserved
        ],
    }


def _addition(each: Addition) -> dict[str, Any]:
    return {
        "type": each.node_type,
        "computeClass": each.compute_class,
        "count": len(each.nodes),
        "price": each.price,
        "cost": round(each.cost, 6),
        "nodes": [
            {"name": node.name, "pods": list(node.pods), "claims": list(node.claims), "spare": node.spare}
            for node in each.nodes
        ],
        "cheaper": [
            {
                "type": other.node_type,
                "price": other.price,
                "pods": other.pods,
                "example": other.example,
                "reason": other.reason,
            }
            for other in each.cheaper
        ],
    }


def removal_data(plan: RemovalPlan) -> dict[str, Any]:
    """Return the nodes that can go as JSON data."""
    return {
        "remove": [
            {
                "node": each.node,
                "type": each.node_type,
                "price": each.price,
                "moved": [{"pod": pod.pod, "node": pod.node, "devices": pod.devices} for pod in each.moved],
            }
            for each in plan.removals
        ],
        "saved": round(plan.saved, 6),
        "keep": [{"node": each.node, "reason": each.reason} for each in plan.kept],
    }


# --- for people -------------------------------------------------------------------


def _print(answer: dict[str, Any]) -> None:
    if "add" in answer:
        _print_plan(answer)
    if "remove" in answer:
        _print_removal(answer)


def _print_plan(answer: dict[str, Any]) -> None:
    unit = f" {answer['currency']}".rstrip() + " per hour"
    if answer["fitting"]:
        print(f"{plural(len(answer['fitting']), 'pod')} fit without new nodes")
    if answer["add"]:
        rows = []
        for each in answer["add"]:
            pods = sum(len(node["pods"]) for node in each["nodes"])
            claims = sum(len(node["claims"]) for node in each["nodes"])
            rows.append(
                [each["type"], each["computeClass"] or "-", each["count"], f"{each['price']:g}",
                 f"{each['cost']:.2f}", pods, claims, _spare(each["nodes"])]
            )  # fmt: skip
        table(["ADD", "CLASS", "NODES", "PRICE", "COST", "PODS", "CLAIMS", "SPARE"], rows)
        print(
            f"total: {answer['cost']:.2f}{unit}; every placement was decided by the scheduler on these nodes"
        )
        _print_nodes(answer["add"])
    elif not answer["unserved"]:
        print("no new node is needed")
    for each in answer["add"]:
        for other in each["cheaper"]:
            print(
                f"not {other['type']} ({other['price']:g}) instead of {each['type']}: "
                f"{plural(other['pods'], 'pod')} such as {other['example']}: {other['reason']}"
            )
    alike: dict[str, list[dict[str, Any]]] = {}
    for each in answer["unserved"]:
        alike.setdefault(str(each["reasons"]), []).append(each)
    for group in alike.values():
        print(f"no node on offer takes {join_names([each['pod'] for each in group], _FEW)}:")
        for reason in group[0]["reasons"]:
            print(f"  {reason['type']}: {reason['reason']}")


def _print_nodes(additions: list[dict[str, Any]]) -> None:
    nodes = [node for each in additions for node in each["nodes"]]
    for node in nodes[:20]:
        serves = f" for claims {join_names(node['claims'], _FEW)}" if node["claims"] else ""
        print(f"  {node['name']}: pods {join_names(node['pods'], _FEW) or 'none'}{serves}")
    if len(nodes) > 20:
        print(f"  … and {len(nodes) - 20} more nodes (-o json lists all)")


def _spare(nodes: list[dict[str, Any]]) -> str:
    total = {key: sum(node["spare"][key] for node in nodes) for key in ("cpu", "memory", "devices")}
    return f"{total['cpu'] / 1000:g} cpu, {total['memory'] / (1 << 30):.0f}Gi, {plural(total['devices'], 'device')}"


def _print_removal(answer: dict[str, Any]) -> None:
    if not answer["remove"]:
        print("no node can go")
    for each in answer["remove"]:
        price = f" (saves {each['price']:g})" if each["price"] is not None else ""
        print(f"{each['node']} can go{price}: {plural(len(each['moved']), 'pod')} would move")
        for moved in each["moved"]:
            print(f"  {moved['pod']} to {moved['node']}")
    for each in answer["keep"]:
        print(f"{each['node']} stays: {each['reason']}")
