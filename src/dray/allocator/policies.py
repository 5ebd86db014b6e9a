"""Preferences: which of several feasible nodes to take first.

The search knows no preference: it returns upstream's first solution for a node. A
policy orders nodes by what the plan would leave behind. Scores are numbers, higher
is better; equal scores keep the order in which the nodes were asked.

  first-fit   the order of the question
  pack        nodes with fewest free devices first: keep whole nodes empty
  spread      nodes with most free devices first
  frag        nodes whose plan breaks least: prefers exact fits, so that large
              requests still find room later
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What a policy may look at: devices the requests could use, before and after the plan."""

    candidates: int  # devices on the node that match some request, free or not
    free: int  # of those, free now
    taken: int  # of those, taken by the plan


@dataclass(frozen=True, slots=True)
class Policy:
    """A named score over nodes."""

    name: str
    score: Callable[[NodeLoad], float]


def _frag(load: NodeLoad) -> float:
    # What is left and cannot serve the same claim again is waste; a node that is left
    # empty-handed or untouched wastes nothing.
    left = load.free - load.taken
    waste = left % load.taken if load.taken else 0
    return -(waste * 1000 + left)


POLICIES: dict[str, Policy] = {
    "first-fit": Policy("first-fit", lambda load: 0),
    "pack": Policy("pack", lambda load: -load.free),
    "spread": Policy("spread", lambda load: load.free),
    "frag": Policy("frag", _frag),
}


def policy_named(name: str) -> Policy:
    """Return a policy by name; raises ValueError that lists the known ones."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}") from None
