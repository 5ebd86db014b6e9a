"""The guard: an admission webhook that makes a double allocation of devices impossible.

Schedulers that know nothing of each other write allocations; the guard sees every one of these
writes before it can land, and refuses those that do not go together with what is there or may
still come. docs/guard.md is for people who run it; the proof is in `judging`, the reasons are in
docs/adr/0014-guard.md.
"""

from dray.control.guarding.double_allocation import Judge, Refused, Write
from dray.control.guarding.guard import Guard, GuardOptions, Phase
from dray.control.guarding.https_pages import serve
from dray.control.guarding.tls_identity import Identity, load_identity, make_identity
from dray.control.guarding.webhook_configuration import CONFIGURATION, Target, configuration, unregister

__all__ = [
    "CONFIGURATION",
    "Guard",
    "GuardOptions",
    "Identity",
    "Judge",
    "Phase",
    "Refused",
    "Target",
    "Write",
    "configuration",
    "load_identity",
    "make_identity",
    "serve",
    "unregister",
]
