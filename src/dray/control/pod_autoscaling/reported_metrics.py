"""Where values of metrics come from: annotations `metrics.dray.dev/NAME` of pods, of other objects, and of namespaces.

Whoever knows a value writes it: the service itself, what stands before it, a script. So everything that an autoscaler
decides on can be seen and set with kubectl, also on nodes whose containers do not run. A value is a quantity.

  Pods               `metrics.dray.dev/NAME` of each pod
  Resource           the same, with the name of the resource; ContainerResource: `metrics.dray.dev/CONTAINER.RESOURCE`
  Object             `metrics.dray.dev/NAME` of the described object
  External           `metrics.dray.dev/NAME` of the namespace

Pure: annotations come in as they are. A value that is not a quantity counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dray.api.core import Pod
from dray.api.pod_autoscalers import MetricSpec
from dray.api.quantity import QuantityError, parse_quantity
from dray.control.pod_autoscaling.replica_counts import MetricUnavailableError

PREFIX: Final = "metrics.dray.dev/"
_MOST_CHARACTERS: Final = 64  # of a value
_MOST_VALUE: Final = 2**53  # in thousandths; larger ones count as this

Annotations = Mapping[str, str]


def value_of(annotations: Annotations | None, name: str) -> int | None:
    """Return a value in thousandths; None when there is none.

    >>> value_of({"metrics.dray.dev/queue": "2500m"}, "queue"), value_of({"metrics.dray.dev/queue": "many"}, "queue")
    (2500, None)
    """
    text = (annotations or {}).get(f"{PREFIX}{name}")
    if text is None or len(text) > _MOST_CHARACTERS:
        return None
    try:
        value = parse_quantity(text.strip()).milli_value()
    except QuantityError:
        return None
    return max(-_MOST_VALUE, min(value, _MOST_VALUE))


def name_of(spec: MetricSpec) -> str:
    """Return the name under which a metric's values are written. Raises MetricUnavailableError for selectors."""
    source = spec.source
    if source.metric.selector is not None:
        raise MetricUnavailableError(
            f"unable to get metric {source.metric.name}: annotations have no labels that a selector could choose"
        )
    if spec.type == "ContainerResource":
        return f"{source.container}.{source.name}"
    return source.metric.name or source.name


def of_pods(spec: MetricSpec, pods: Iterable[Pod]) -> dict[str, int]:
    """Return the values of pods by their names. Raises MetricUnavailableError."""
    name = name_of(spec)
    found = {}
    for pod in pods:
        value = value_of(pod.metadata.annotations, name)
        if value is not None:
            found[pod.metadata.name] = value
    if not found:
        raise MetricUnavailableError(
            f"unable to get metric {name}: no pod has the annotation {PREFIX}{name} with a quantity"
        )
    return found


def of_object(spec: MetricSpec, annotations: Annotations | None, what: str) -> int:
    """Return the value that an object has. Raises MetricUnavailableError."""
    name = name_of(spec)
    value = value_of(annotations, name)
    if value is None:
        raise MetricUnavailableError(
            f"unable to get metric {name}: {what} has no annotation {PREFIX}{name} with a quantity"
        )
    return value
