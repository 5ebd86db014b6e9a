"""Fair share: whose turn it is, from what each user has had lately and what each is entitled to.

What is shared is device time: holding two GPUs for an hour is two device-hours. Old use counts less than new
use (it halves every `half_life` seconds), so nobody pays for ever, and nobody saves up for ever.

Theory of operation. Every user has an effective weight: the weight of the group, divided among the group's
active users by their own weights. The *ratio* of a user is decayed use divided by effective weight; the user
with the lowest ratio is next. Devices that are held now count ahead of time, as if they were kept for
`seconds_ahead`: otherwise whoever submits a hundred jobs at once would get all devices before the first second
of use is on record.

Invariants (tests/property/test_scheduler_fair_share_laws.py):
  * a user within their share (use / total use ≤ weight / total weight) is never behind one above theirs;
  * charging in one step or in many steps at the same moments gives the same use;
  * without new use, the order of two users does not change with time.

Pure: times are seconds, given as arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

HALF_LIFE = 7 * 24 * 3600.0  # seconds; a week, as common in batch systems
SECONDS_AHEAD = 300.0
_NEGLIGIBLE = 1e-3  # device-seconds; less is forgotten
_EMPTY: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Weights:
    """What users and groups are entitled to, relative to each other; unlisted ones have weight 1."""

    users: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse weights that make no order. Raises ValueError."""
        for name, weight in [*self.users.items(), *self.groups.items()]:
            if not 0 < weight < float("inf"):
                raise ValueError(f"the weight of {name} must be a positive number, not {weight}")

    def effective(self, group_by_user: Mapping[str, str]) -> dict[str, float]:
        """Return the weight of each active user; an empty group means: a group of their own.

        >>> Weights(groups={"lab": 2.0}).effective({"ann": "lab", "bob": "lab", "eve": ""})
        {'ann': 1.0, 'bob': 1.0, 'eve': 1.0}
        """
        members: dict[str, float] = defaultdict(float)
        for user, group in group_by_user.items():
            if group:
                members[group] += self.users.get(user, 1.0)
        return {
            user: self.groups.get(group, 1.0) * self.users.get(user, 1.0) / members[group]
            if group
            else self.users.get(user, 1.0)
            for user, group in group_by_user.items()
        }


@dataclass(slots=True)
class UsageRecord:
    """Decayed device-seconds of each user."""

    half_life: float = HALF_LIFE
    _entries: dict[str, tuple[float, float]] = field(default_factory=dict)  # user -> (device-seconds, as of)

    def charge(self, user: str, device_seconds: float, at: float) -> None:
        """Add use that ended at a moment; moments of one user may come in any order."""
        value, since = self._entries.get(user, (0.0, at))
        if at >= since:
            self._entries[user] = (self._decayed(value, at - since) + device_seconds, at)
        else:  # a late report: it has decayed since
            self._entries[user] = (value + self._decayed(device_seconds, since - at), since)

    def of(self, user: str, at: float) -> float:
        """Return the use of a user as it counts at a moment."""
        value, since = self._entries.get(user, (0.0, at))
        return self._decayed(value, max(0.0, at - since))

    def forget_negligible(self, at: float) -> None:
        """Drop users whose use no longer counts, so that the record stays small."""
        for user in [user for user in self._entries if self.of(user, at) < _NEGLIGIBLE]:
            del self._entries[user]

    def state(self) -> dict[str, tuple[float, float]]:
        """Return what is to be stored."""
        return dict(self._entries)

    def restore(self, state: Mapping[str, tuple[float, float]]) -> None:
        """Take over what was stored."""
        self._entries = dict(state)

    def _decayed(self, value: float, seconds: float) -> float:
        return float(value * 0.5 ** (seconds / self.half_life))


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits, as far as its turn depends on it."""

    name: str
    user: str
    submitted: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where each user stands at one moment: the lowest ratio is next."""

    ratio_by_user: Mapping[str, float]
    share_by_user: Mapping[str, float]  # entitled fraction, sums to 1
    used_by_user: Mapping[str, float]  # used fraction, sums to 1 (or all 0)

    def key(self, job: WaitingJob) -> tuple[int, float, float, str]:
        """Return the place of a job in the queue: priority, then fair share, then age."""
        return (-job.priority, self.ratio_by_user.get(job.user, 0.0), job.submitted, job.name)

    def ordered(self, jobs: Iterable[WaitingJob]) -> list[WaitingJob]:
        """Return the jobs, next first."""
        return sorted(jobs, key=self.key)

    def explain(self, user: str) -> str:
        """Return where a user stands.

        >>> Standing({"ann": 2.0}, {"ann": 0.5}, {"ann": 0.75}).explain("ann")
        'ann has used 75 % of the device time lately, the fair share is 50 %'
        """
        used, share = self.used_by_user.get(user, 0.0), self.share_by_user.get(user, 0.0)
        return f"{user} has used {used:.0%} of the device time lately, the fair share is {share:.0%}".replace(
            "%", " %"
        )


def standing(
    record: UsageRecord,
    weights: Weights,
    group_by_user: Mapping[str, str],
    now: float,
    *,
    held_by_user: Mapping[str, float] = _EMPTY,
    seconds_ahead: float = SECONDS_AHEAD,
) -> Standing:
    """Return where the active users stand; `held_by_user` is how many devices each holds now."""
    effective = weights.effective(group_by_user)
    used = {
        user: record.of(user, now) + held_by_user.get(user, 0.0) * seconds_ahead for user in group_by_user
    }
    total, total_weight = sum(used.values()), sum(effective.values())
    return Standing(
        {user: used[user] / effective[user] for user in effective},
        {user: weight / total_weight for user, weight in effective.items()},
        {user: (value / total if total else 0.0) for user, value in used.items()},
    )
