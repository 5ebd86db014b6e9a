"""Expressions at the cost limit: families with a size, grown until the limit refuses more.

A family is a function from a size to an expression. `at_the_limit` takes the largest
size whose estimated cost and length Kubernetes still admits, so every expression here
is one that a tenant can put into a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.api.features import Features
from dray.cel import check_expression

FEATURES = Features(["DRAConsumableCapacity", "DRAListTypeAttributes"])
COST_LIMIT = 1_000_000
LENGTH_LIMIT = 10 * 1024
TEN = "[0,1,2,3,4,5,6,7,8,9]"
A = 'device.attributes["gpu.example.com"]'
C = 'device.capacity["gpu.example.com"]'
TEXT = "abcdefghijklmnopqrstuvwxyz0123456789-abcdefghijklmnopqrstuvwxyz0"  # 64 characters

DEVICE: dict[str, Any] = {
    "driver": "gpu.example.com",
    "attributes": {
        "model": {"string": "LATEST-GPU-MODEL-with-a-long-name-that-fills-the-allowed-length-64"[:64]},
        "index": {"int": 7},
        "healthy": {"bool": True},
        "version": {"version": "1.2.3"},
        "links": {"ints": [1, 2, 3, 4, 5, 6, 7, 8]},
    },
    "capacity": {"memory": "80Gi"},
}

Family = Callable[[int], str]


def _nested(macro: str, leaf: str, tail: str = "") -> Family:
    """Return loops within loops over literals; the size is that of the outermost."""

    def build(size: int) -> str:
        text = leaf
        for name in "edcb":
            text = f"{TEN}.{macro}({name}, {text}){tail}"
        return f"lists.range({size}).{macro}(a, {text})"

    return build


def _in_loops(body: str) -> Family:
    """Return a body evaluated in loops of ten: upstream's cost tracking slows down in longer ones."""
    return lambda size: f"lists.range({size}).all(c, {TEN}.all(b, {TEN}.all(a, {body})))"


def _repeated(term: str, joined_by: str) -> Family:
    return lambda size: joined_by.join([term] * max(size, 1))


def _doubled(size: int) -> str:
    text = "size(s) > 0"
    for _ in range(size):
        text = f"cel.bind(s, s + s, {text})"
    return f'cel.bind(s, "{TEXT}", {text})'


def _choices(size: int) -> str:
    chain = "true"
    for _ in range(60):
        chain = f"a < 0 ? false : {chain}"
    return _in_loops(chain)(size)


_STRINGS = "[" + ",".join(f'"item-{number:04d}"' for number in range(100)) + "]"
_WORDS = "[" + ",".join(f'"{TEXT[number:]}"' for number in range(20)) + "]"

FAMILIES: dict[str, Family] = {
    "nested all": _nested("all", "a + b + c + d + e >= 0"),
    "nested all, constant": _nested("all", "true"),
    "nested all, independent": _nested("all", "e >= 0"),
    "nested exists": _nested("exists", "a + b + c + d + e < 0"),
    "nested exists_one": _nested("exists_one", "e == 3"),
    "nested map": lambda n: (
        f"lists.range({n}).map(a, {TEN}.map(b, {TEN}.map(c, {TEN}.map(d, a+b+c+d)))).size() > 0"
    ),
    "nested filter": lambda n: (
        f"lists.range({n}).filter(a, {TEN}.filter(b, {TEN}.filter(c, a + b + c > 3).size() > 0).size() > 0).size() > 0"
    ),
    "nested map and all": lambda n: (
        f"lists.range({n}).map(a, {TEN}.map(b, [a, b])).all(x, x.all(y, y[0] >= 0))"
    ),
    "two variables": lambda n: (
        f"lists.range({n}).all(a, {TEN}.all(i, v, {TEN}.all(j, w, i + j >= 0 && v + w >= 0)))"
    ),
    "transformMap": _in_loops(f"{TEN}.transformMap(i, v, v + a).all(k, k >= 0)"),
    "all that fails": _in_loops("1 / (a - a) == 1 || a >= 0"),
    "all with errors": _in_loops("1 / (a - 9) <= 0"),
    "missing keys absorbed": _in_loops(f'{A}["x"] == "y" || a >= 0'),
    "long chain of terms": _in_loops(" && ".join(["a >= 0"] * 200)),
    "free terms": _in_loops(" && ".join(["(a in [1, 2, 3] || true)"] * 150)),
    "ternaries": _choices,
    "attributes": _in_loops(f'{A}.model.startsWith("LATEST") && {A}.index > 3 && {A}.healthy'),
    "optionals": _in_loops(f'{A}.?model.orValue("") != "" && {A}.?other.orValue(a) >= 0'),
    "list attribute": _in_loops(f"{A}.links.exists(x, x == 8)"),
    "has": _in_loops(f"has({A}.model) && !has({A}.other) && a >= 0"),
    "contains": _in_loops(f'{A}.model.contains("length")'),
    "matches": _in_loops(f'{A}.model.matches("^[A-Z]+-.*-(long|short)-.*[0-9]+$")'),
    "matches computed": _in_loops(f'"{TEXT}".matches("^[a-z]+[0-9]*-" + device.driver) || true'),
    "replace": _in_loops(f'{A}.model.replace("a", "bb").size() > 0'),
    "split": _in_loops(f'{A}.model.split("-").size() > 0'),
    "split and join": lambda n: f'{_WORDS}.all(w, lists.range({n}).all(a, w.split("a").size() >= 0))',
    "format": _in_loops('"%d-%s-%x".format([a, "x", a]).size() > 0'),
    "lowerAscii": _in_loops(f'{A}.model.lowerAscii() != "x"'),
    "substring": _in_loops(f'{A}.model.substring(1, 9) == "x" || true'),
    "indexOf": _in_loops(f'{A}.model.indexOf("name") >= 0'),
    "concatenation": _in_loops(f'("{TEXT}" + device.driver + "{TEXT}").size() > 0'),
    "doubling": _doubled,
    "concatenation, one": lambda n: (
        "(" + " + ".join(["device.driver"] * min(max(n, 1), 200)) + ").size() > 0"
    ),
    "sort": lambda n: f"lists.range({n}).sort().size() > 0",
    "sort strings": lambda n: f"lists.range({n}).all(a, {_STRINGS}.sort().size() > a - 1)",
    "sortBy": lambda n: f"lists.range({n}).sortBy(x, -x).size() > 0",
    "distinct": lambda n: f"lists.range({n}).distinct().size() > 0",
    "sum": _in_loops(f"{TEN}.sum() == 45"),
    "max": _in_loops(f"[a, 1, 2, 3].max() >= 3 && {TEN}.min() == 0"),
    "indexOf in list": _in_loops(f"{TEN}.indexOf(a) >= -1"),
    "isSorted": _in_loops(f"{TEN}.isSorted()"),
    "in a list": _in_loops(f"a in {TEN} || a >= 0"),
    "in a computed list": lambda n: f"cel.bind(l, lists.range({n}), l.all(x, x in l))",
    "slice": _in_loops(f"{TEN}.slice(2, 8).size() == 6"),
    "flatten": _in_loops("[[1, 2], [3], [a]].flatten().size() == 4"),
    "range": lambda n: f"lists.range({n}).size() > 0",
    "list reverse": _in_loops(f"{TEN}.reverse()[0] == 9"),
    "map literal": _in_loops('{"a": a, "b": 2}.a >= 0'),
    "list literal": _in_loops("[a, a, a, a].size() == 4"),
    "index": _in_loops(f"{TEN}[a % 10] >= 0"),
    "sets.contains": _in_loops(f"sets.contains({TEN}, [1, 2, 3])"),
    "sets.equivalent": lambda n: f"sets.equivalent(lists.range({n}), lists.range({n}))",
    "sets.intersects": lambda n: f"!sets.intersects(lists.range({n}), lists.range({n}).map(x, x + 100000))",
    "equal lists": lambda n: f"lists.range({n}).map(x, [x]) == lists.range({n}).map(x, [x])",
    "compare strings": _in_loops(f'{A}.model < "M" && {A}.model != "{TEXT}"'),
    "quantity": _in_loops(f'{C}.memory.compareTo(quantity("80Gi")) == 0'),
    "quantity arithmetic": _in_loops(f'{C}.memory.add(quantity("1Gi")).isGreaterThan(quantity("1Gi"))'),
    "isQuantity": _in_loops('isQuantity("12Mi") && !isQuantity(device.driver)'),
    "semver": _in_loops(f'{A}.version.compareTo(semver("1.2.3")) == 0'),
    "semver parsing": _in_loops(f'!isSemver({A}.model) && semver("1.2.3").major() == 1'),
    "ip": _in_loops('ip("192.168.0.1").family() == 4 && cidr("192.168.0.0/16").containsIP("192.168.3.4")'),
    "url": _in_loops('url("https://example.com:80/path?a=b").getHost() == "example.com:80"'),
    "timestamps": _in_loops('timestamp("2023-12-25T00:00:00Z") + duration("5s") > timestamp(a)'),
    "time parts": _in_loops('timestamp("2023-12-25T00:00:00Z").getHours("Europe/Berlin") == 1'),
    "conversions": _in_loops("int(string(a)) == a && double(a) >= 0.0 && uint(a) >= 0u"),
    "arithmetic": _in_loops("(a * 3 + 7) % 11 - a / 5 <= 11"),
    "floats": _in_loops("double(a) * 3.5 / 2.0 >= 0.0"),
    "bind": _in_loops("cel.bind(x, a + 1, cel.bind(y, x * 2, y > a))"),
    "dyn": _in_loops("dyn(a) == dyn(1) || dyn(a) >= 0"),
    "wide and": _repeated(f'{A}.model != "x"', " && "),
    "wide or": _repeated(f'{A}.model == "x"', " || "),
    "wide sum": lambda n: " + ".join([f"{A}.index"] * min(max(n, 1), 200)) + " > 0",
}


def at_the_limit(family: Family) -> tuple[str, int]:
    """Return the largest expression of a family that is admitted, and its size."""
    low, high = 1, 2
    while _is_admitted(family(high)) and high < 2_000_000:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _is_admitted(family(middle)):
            low = middle
        else:
            high = middle
    return family(low), low


def _is_admitted(expression: str) -> bool:
    if len(expression.encode()) > LENGTH_LIMIT:
        return False
    verdict = check_expression(expression, features=FEATURES, stored=True)
    return verdict.error is None and verdict.max_cost <= COST_LIMIT
