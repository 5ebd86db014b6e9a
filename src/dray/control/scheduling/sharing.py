"""Fair share in the scheduling loop: who holds how many devices, for how long, and where that puts each user.

A user is a namespace. Device time is charged while claims are allocated; `scheduler.fair_share` makes an order of
it, and the queue asks for it with every pod (`ratio`). Weights are annotations of namespaces: `dray.dev/weight`, and
`dray.dev/group` for namespaces that share one weight (`dray.dev/group-weight`, the highest counts).

Theory of operation. Reservations count at once, so that a user with a hundred jobs does not get all devices before
the first allocation is written; what is released is noticed at the next tick. Device-seconds per user and day are
kept in the ConfigMap kube-system/dray-usage: `dray usage` shows them, and a scheduler that starts restores the record
from them, each day as if it was used at its end. Without permission for the ConfigMap everything works, in memory only.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from dray.api.core import Namespace, Pod
from dray.api.parsing import load_json
from dray.api.resource import ResourceClaim
from dray.api.times import format_time
from dray.client import Client, ClientError, NotFound
from dray.client.resources import CONFIG_MAPS
from dray.scheduler import ClusterSnapshot, Placement
from dray.scheduler.fair_share import Standing, UsageRecord, Weights, standing

log = logging.getLogger("dray.scheduler")

USAGE_NAMESPACE = "kube-system"
USAGE_NAME = "dray-usage"
WEIGHT, GROUP, GROUP_WEIGHT = "dray.dev/weight", "dray.dev/group", "dray.dev/group-weight"
TICK_SECONDS = 1.0
_SAVE_EVERY = 60  # ticks
_MOST_DAYS = 400
_MOST_BYTES = 900_000  # of the ConfigMap; API servers refuse more than 1 MiB


class FairShare:
    """Keeps the record and answers for the queue; used from one event loop."""

    def __init__(
        self,
        client: Client,
        snapshot: ClusterSnapshot,
        namespaces: Mapping[str, Namespace],
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._snapshot = snapshot
        self._namespaces = namespaces
        self._now = now
        self._record = UsageRecord()
        self._days: dict[str, dict[str, float]] = {}  # day -> user -> device-seconds
        self._held: dict[str, tuple[str, int]] = {}  # uid of a claim -> user, devices
        self._charged_at: float | None = None
        self._standing: Standing | None = None
        self._waiting: set[str] = set()  # users that were asked for
        self._may_save = True

    # --- for the queue --------------------------------------------------------

    def ratio(self, pod: Pod) -> float:
        """Return how much the pod's user has had of what they are entitled to; the lowest is next."""
        user = pod.metadata.namespace
        if user not in self._waiting:
            self._waiting.add(user)
            self._standing = None
        return self.standing().ratio_by_user.get(user, 0.0)

    def standing(self) -> Standing:
        """Return where the users stand now."""
        if self._standing is None:
            now = self._now().timestamp()
            users = {*self._waiting, *(user for user, _ in self._held.values())}
            weights, groups = weights_of(self._namespaces, users)
            self._standing = standing(self._record, weights, groups, now, held_by_user=self.held_by_user())
        return self._standing

    def held_by_user(self) -> dict[str, float]:
        """Return how many devices each user holds."""
        found: dict[str, float] = defaultdict(float)
        for user, count in self._held.values():
            found[user] += count
        return found

    def claims_of(self, user: str) -> list[str]:
        """Return the uids of the claims by which a user holds devices."""
        return [uid for uid, (holder, _) in self._held.items() if holder == user]

    def placed(self, placement: Placement) -> None:
        """Count what a decision reserves."""
        for claim, allocation in zip(placement.claims, placement.allocations, strict=True):
            count = len(allocation.devices.results)
            self._held[claim.metadata.uid] = (claim.metadata.namespace, count)
        self._standing = None

    # --- as time passes -------------------------------------------------------

    async def save_sometimes(self, ticks: int) -> None:
        """Keep the record, about once a minute."""
        if ticks % _SAVE_EVERY == 0:
            await self._save()

    def tick(self) -> bool:
        """Charge what was held since the last tick, and look who holds what now; return whether that changed."""
        now = self._now()
        moment = now.timestamp()
        seconds = 0.0 if self._charged_at is None else max(0.0, moment - self._charged_at)
        self._charged_at = moment
        day = self._days.setdefault(format_time(now)[:10], {})
        for user, count in self.held_by_user().items():
            if count and seconds:
                self._record.charge(user, count * seconds, moment)
                day[user] = day.get(user, 0.0) + count * seconds
        before = self._held
        self._held = {
            uid: held for uid, held in before.items() if uid in self._snapshot.reserved
        } | held_by_claim(self._snapshot.claims.values())
        self._standing = None
        return self._held != before

    async def restore(self) -> None:
        """Take over what was kept."""
        try:
            stored = await self._client.get(CONFIG_MAPS, USAGE_NAME, USAGE_NAMESPACE)
        except NotFound:
            return
        except ClientError as error:
            self._may_save = False
            log.warning("device time of the past is not known, and is not kept: %s", error)
            return
        now = self._now()
        self._days = parse_days(stored.get("data") or {})
        for day, used in self._days.items():
            end = min(datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1), now)
            for user, seconds in used.items():
                self._record.charge(user, seconds, end.timestamp())
        self._standing = None

    async def _save(self) -> None:
        if not self._may_save or not any(self._days.values()):
            return
        self._record.forget_negligible(self._now().timestamp())
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": USAGE_NAME, "namespace": USAGE_NAMESPACE},
            "data": format_days(self._days),
        }
        try:
            await self._client.apply(
                CONFIG_MAPS, USAGE_NAME, body, USAGE_NAMESPACE, manager="dray-scheduler", force=True
            )
        except ClientError as error:
            log.warning("device time could not be kept: %s", error)


def held_by_claim(claims: Iterable[ResourceClaim]) -> dict[str, tuple[str, int]]:
    """Return who holds how many devices by claims that are allocated; admin access holds nothing."""
    found = {}
    for claim in claims:
        allocation = claim.status.allocation
        if allocation is not None:
            count = sum(not result.admin_access for result in allocation.devices.results)
            found[claim.metadata.uid] = (claim.metadata.namespace, count)
    return found


def weights_of(namespaces: Mapping[str, Namespace], users: Iterable[str]) -> tuple[Weights, dict[str, str]]:
    """Return the weights that annotations give, and the group of each user; what is not a positive number counts as 1."""
    users_weight: dict[str, float] = {}
    groups_weight: dict[str, float] = {}
    group_by_user: dict[str, str] = {}
    for user in users:
        namespace = namespaces.get(user)
        notes = (namespace.metadata.annotations if namespace is not None else None) or {}
        group_by_user[user] = group = notes.get(GROUP, "")
        users_weight[user] = _weight(notes.get(WEIGHT, ""))
        if group:
            groups_weight[group] = max(groups_weight.get(group, 0.0), _weight(notes.get(GROUP_WEIGHT, "")))
    return Weights(users_weight, groups_weight), group_by_user


def _weight(text: str) -> float:
    try:
        value = float(text[:20])
    except ValueError:
        return 1.0
    return value if 0 < value < 1e6 else 1.0


def parse_days(data: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Read the ConfigMap's data: day -> user -> device-seconds; what cannot be read is left out."""
    found: dict[str, dict[str, float]] = {}
    for day, text in sorted(data.items())[-_MOST_DAYS:]:
        try:
            datetime.fromisoformat(day)
            stored = load_json(text)
            found[day] = {
                str(user): float(seconds) for user, seconds in stored.items() if 0 <= float(seconds) < 1e12
            }
        except (ValueError, TypeError, AttributeError):
            log.warning("usage of %s cannot be read", day[:20])
    return found


def format_days(days: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return the ConfigMap's data, the oldest days left out when there is too much."""
    data: dict[str, str] = {}
    size = 0
    for day in sorted(days, reverse=True)[:_MOST_DAYS]:
        text = json.dumps({user: round(seconds, 1) for user, seconds in sorted(days[day].items())})
        size += len(text) + len(day)
        if size > _MOST_BYTES:
            break
        data[day] = text
    return data
