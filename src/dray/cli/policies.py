"""Policies on the command line: a known name, or `module:Class` of one's own.

A policy of one's own is a subclass of `dray.scheduler.policies.NodePolicy` that can be made without arguments, in a
module that Python finds (installed, or in a directory of PYTHONPATH). Only the command line imports it; the
pure packages get the object.
"""

from __future__ import annotations

import importlib

from dray.cli.arguments import OWN_POLICY
from dray.scheduler.policies import NodePolicy


class PolicyError(ValueError):
    """A policy that cannot be used; the message says why."""


def load_policy(name: str) -> str | NodePolicy:
    """Return a known name as it is, or a new object of one's own class. Raises PolicyError."""
    if not OWN_POLICY.fullmatch(name):
        return name
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # any exception may come out of a foreign module
        raise PolicyError(
            f"policy {name}: cannot import {module_name}: {error}; is its directory in PYTHONPATH?"
        ) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, NodePolicy)):
        raise PolicyError(
            f"policy {name}: {class_name} is not a subclass of dray.scheduler.policies.NodePolicy in {module_name}"
        )
    try:
        policy = found()
    except TypeError as error:
        raise PolicyError(f"policy {name}: cannot be made without arguments: {error}") from error
    policy.name = policy.name or class_name
    return policy
