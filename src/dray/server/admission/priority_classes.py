"""Priority: names of priority classes become numbers, once, when a pod is created."""

from __future__ import annotations

from dataclasses import dataclass, field

from dray.api.json_types import JsonObject
from dray.api.kinds import SCHEDULING
from dray.server.admission.admission_plugin import BasePlugin, Kept, refused, target_of
from dray.server.requests import Call, Reader

PREEMPT_LOWER = "PreemptLowerPriority"


@dataclass(slots=True)
class Priority(BasePlugin):
    """Resolve priorityClassName; allow one default class at most."""

    reader: Reader
    name: str = "Priority"
    _classes: Kept = field(init=False)

    def __post_init__(self) -> None:
        self._classes = Kept(self.reader, SCHEDULING, "priorityclasses")

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Follow changes of the classes."""
        self._classes.observe(group, resource)

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Set priority and preemption policy of a new pod or pod group; keep those of an old one."""
        target = target_of(call)
        if target not in (("", "pods", ""), (SCHEDULING, "podgroups", "")) or not isinstance(
            new.get("spec"), dict
        ):
            return
        if operation == "CREATE":
            self._resolve(call, new, target[1])
        elif old is not None and target[1] == "pods":
            for part in ("priority", "preemptionPolicy"):
                if new["spec"].get(part) is None and (old.get("spec") or {}).get(part) is not None:
                    new["spec"][part] = old["spec"][part]

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse a second default class."""
        if target_of(call) != (SCHEDULING, "priorityclasses", "") or not new.get("globalDefault"):
            return
        default = self._default()
        if default is not None and (
            operation == "CREATE" or default["metadata"]["name"] != new["metadata"]["name"]
        ):
            why = f"PriorityClass {default['metadata']['name']} is already marked as default. Only one default can exist"
            raise refused(call, new, why)

    def _resolve(self, call: Call, new: JsonObject, resource: str) -> None:
        spec = new["spec"]
        class_name = spec.get("priorityClassName") or ""
        if class_name:
            found = self.reader.get(SCHEDULING, "priorityclasses", "", class_name)
            if found is None:
                raise refused(call, new, f"no PriorityClass with name {class_name} was found")
        else:
            found = self._default()
        value, policy = 0, PREEMPT_LOWER
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
            value, policy = found.get("value", 0), found.get("preemptionPolicy") or PREEMPT_LOWER
        given = spec.get("priority")
        if given is not None and given != value:
            raise refused(call, new, _mismatch(resource, given, value))
        spec["priority"] = value
        if resource != "pods":
            return
        given = spec.get("preemptionPolicy")
        if given is not None and given != policy:
            why = (
                f"the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority "
                f"admission controller computed {policy} from the given PriorityClass name"
            )
            raise refused(call, new, why)
        spec["preemptionPolicy"] = policy

    def _default(self) -> JsonObject | None:
        defaults = [found for found in self._classes.list() if found.get("globalDefault")]
        return min(defaults, key=lambda found: found.get("value", 0)) if defaults else None


def _mismatch(resource: str, given: int, computed: int) -> str:
    if resource == "pods":
        return (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority admission "
            f"controller computed {computed} from the given PriorityClass name"
        )
    return (
        f"priority set in the pod group ({given}) must match the priority computed ({computed}) based on the "
        "priority class set in the spec"
    )
