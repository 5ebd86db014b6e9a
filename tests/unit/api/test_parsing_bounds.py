"""Bounds of parsing: depth, size, expansion and work, checked before or while text is read."""

import json
import random
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from dray.api import parsing
from dray.api.parsing import (
    MANY_MEMBERS,
    MAX_DEPTH,
    Duplicates,
    MismatchError,
    ParseError,
    check_depth,
    depth_of,
    json_loader,
    load_json,
    load_yaml,
    load_yaml_documents,
    parse_json,
    parse_yaml,
)
from dray.api.yaml_text import MAX_ALIAS_NODES, MAX_NODES, compose_documents


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth - 1) + b"[]" + b"}" * (depth - 1)


def nested_block_yaml(depth: int) -> bytes:
    return "".join(f"{' ' * level}a:\n" for level in range(depth)).encode()


PARSERS = [parse_json, parse_yaml, load_json, load_yaml]


@pytest.mark.parametrize("parse", PARSERS)
def test_the_deepest_accepted_text_is_read_and_one_level_more_is_not(parse):
    assert depth_of(parse(nested(MAX_DEPTH))) == MAX_DEPTH
    with pytest.raises(ParseError, match="exceeded max depth"):
        parse(nested(MAX_DEPTH + 1))


def test_block_yaml_is_bounded_like_flow_yaml():
    assert depth_of(parse_yaml(nested_block_yaml(MAX_DEPTH))) == MAX_DEPTH
    for text in (
        nested_block_yaml(MAX_DEPTH + 1),
        b"- " * 40_000,
        b"[" * 40_000,
        b"{a: " * 40_000,
    ):
        with pytest.raises(ParseError, match="exceeded max depth"):
            parse_yaml(text)


def test_aliases_count_with_the_depth_of_what_they_stand_for():
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, MAX_DEPTH + 1))]
    with pytest.raises(ParseError, match="exceeded max depth"):
        parse_yaml("\n".join(lines).encode())
    assert depth_of(parse_yaml("\n".join(lines[:100]).encode())) == 101


@pytest.mark.parametrize("parse", ["parse_yaml", "load_yaml", "parse_json", "compose_documents"])
@pytest.mark.parametrize("text", ["b'[' * 1_000_000", "b'{\"a\":' * 500_000", "b'- ' * 1_000_000"])
def test_a_deep_text_does_not_end_the_process(parse, text):
    program = (
        "from dray.api.parsing import *\nfrom dray.api.yaml_text import compose_documents\n"
        f"text = {text}\n"
        f"try: {parse}({'text.decode()' if parse == 'compose_documents' else 'text'})\n"
        "except ParseError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"refused\n")


@pytest.mark.parametrize(
    "text",
    [
        rb'{"a": "[[[[[[", "b": "\"[[["}',
        rb'{"\\": "{{{{{{", "c\\\"": "[[[[[["}',
        b'["]]]]]]", [1], "[[[["]',
        b"[" + b"[]," * 500 + b"[]]",
        b'{"a":"' + b"[" * 500 + b'"}',
    ],
)
def test_brackets_in_strings_and_side_by_side_do_not_count(text):
    check_depth(text, limit=2)
    parse_json(text)


def test_closing_brackets_in_strings_hide_no_depth():
    text = b'["]]]]",' * (MAX_DEPTH + 1) + b"1" + b"]" * (MAX_DEPTH + 1)
    with pytest.raises(ParseError, match="exceeded max depth"):
        parse_json(text)


def test_the_size_of_a_text_is_bounded():
    for load in (load_json, load_yaml, parse_json, parse_yaml):
        assert load(b"[1]", max_bytes=3) == [1]
        with pytest.raises(ParseError, match="at most 3"):
            load(b"[10]", max_bytes=3)


def test_aliases_may_repeat_only_so_much():
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ParseError, match="excessive aliasing"):
        load_yaml("\n".join(lines))
    assert len(load_yaml("a: &a x\nb: [" + "*a," * 1000 + "]")["b"]) == 1000
    with pytest.raises(ParseError, match="excessive aliasing"):
        load_yaml("a: &a x\nb: [" + "*a," * (MAX_ALIAS_NODES + 1) + "]")


def test_merge_keys_are_counted_like_aliases():
    text = "a: &a {" + ",".join(f"k{i}: 1" for i in range(1000)) + "}\n"
    text += "".join(f"b{i}: {{<<: *a}}\n" for i in range(MAX_ALIAS_NODES // 1000 + 1))
    with pytest.raises(ParseError, match="excessive aliasing"):
        load_yaml(text)


def test_merge_keys_give_way_to_own_members():
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nboth: {<<: [*b, *o], x: 9}\none:\n  <<: *b\n"
    assert load_yaml(text)["both"] == {"x": 9, "y": 2, "z": 4}
    assert load_yaml(text)["one"] == {"x": 1, "y": 2}
    assert load_yaml("a: <<\nb: [<<]\n'<<': 1") == {"a": "<<", "b": ["<<"], "<<": 1}


def test_nodes_and_directives_of_yaml_are_bounded():
    with pytest.raises(ParseError, match="nodes"):
        load_yaml("[" + "1," * (MAX_NODES + 1) + "]")
    with pytest.raises(ParseError, match="directives"):
        load_yaml("".join(f"%TAG !t{i}! x\n" for i in range(20_000)) + "---\na: 1\n")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_json, lambda n: b"{" + b",".join(b'"k%d":1,"k%d":2' % (i, i) for i in range(n)) + b"}"),
        (parse_json, lambda n: b"[" * 100 + b",".join([b"[]"] * n) + b"]" * 100),
        (parse_json, lambda n: b'"' + b'\\"' * n * 5 + b'"'),
        (parse_yaml, lambda n: b"".join(b"k%d: v\n" % i for i in range(n))),
        (parse_yaml, lambda n: b"".join(b"k%d: v\nk%d: v\n" % (i, i) for i in range(n))),
        (parse_yaml, lambda n: b"".join(b"- &a%d x\n" % i for i in range(n))),
        (load_yaml_documents, lambda n: b"---\n".join([b"a: 1\n"] * n)),
    ],
    ids=["repeated keys", "brackets", "escapes", "yaml keys", "yaml repeated keys", "anchors", "documents"],
)
def test_work_grows_with_the_text_and_not_with_its_square(parse, text):
    def seconds(n: int) -> float:
        data = text(n)
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            parse(data)
            best = min(best, time.process_time() - start)
        return best

    # Sixteen times the text: linear work takes 16 times as long, quadratic work 256 times.
    # JSON of few members is read by another scanner, several times as fast: compare texts of many members.
    small = MANY_MEMBERS + 1 if parse is parse_json else 2_000
    assert seconds(16 * small) < 80 * seconds(small) + 0.05


def test_repeated_keys_are_all_remembered_in_order():
    value = parse_json(b'{"b":1,"a":1,"a":2,"b":2,"a":3,"c":1}')
    assert isinstance(value, Duplicates)
    assert value.names == ["a", "b"]


class View(msgspec.Struct):
    a: int = 0


@pytest.mark.parametrize(
    "data", [b"[" * 5_000, b'{"b":' + b"[" * 5_000, b'{"a":', b'{"a":1}x', b'"\xff"', b""]
)
def test_typed_loading_raises_one_kind_of_error(data):
    for load in (json_loader(View).decode, json_loader(dict).decode, lambda text: load_json(text, View)):
        with pytest.raises(ParseError):
            load(data)
    with pytest.raises(MismatchError, match=r"\$\.a"):
        json_loader(View).decode(b'{"a":"x"}')


def test_plain_yaml_has_plain_values():
    values = load_yaml("a: 1.5\nb: 2026-01-01\nb: x\n1: y")
    assert values == {"a": 1.5, "b": "x", "1": "y"}
    assert type(values) is dict
    assert type(values["a"]) is float
    assert load_yaml_documents("a: 1\n---\n---\nb: 2") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("text", ["!!set {a, b}", "!!python/name:os x", "!x y", "a: !!int x", "a: !!float .inf", "a: *b",
                                  "a: &a [*a]", "{[a]: b}", "{{a: b}: c}", "a: 0x" + "f" * 5000, "\x00"])  # fmt: skip
def test_yaml_that_is_not_json_is_refused(text):
    with pytest.raises(ParseError):
        load_yaml(text)


def test_invalid_utf8_is_a_parse_error_for_files_and_replaced_in_bodies():
    with pytest.raises(ParseError, match="UTF-8"):
        load_yaml(b"a: \xff")
    assert parse_yaml(b"a: \xff") == {"a": "\ufffd"}


def test_composed_nodes_are_bounded_too():
    assert compose_documents("a: [1]\n---\nb")[0].start_mark.line == 0
    with pytest.raises(ParseError, match="max depth"):
        compose_documents("[" * 40_000)


@pytest.mark.parametrize("seed", range(20))
def test_counting_brackets_finds_the_depth_that_parsing_finds(seed):
    chance = random.Random(seed)

    def value(depth: int) -> object:
        if depth == 0:
            return chance.choice(["[", "}", '"', "\\", '\\"]', "", 1, None, [], {}])
        items = [value(chance.randrange(depth)) for _ in range(chance.randrange(3))] + [value(depth - 1)]
        chance.shuffle(items)
        return items if chance.random() < 0.5 else {f"{place}{{[\\": item for place, item in enumerate(items)}

    whole = value(chance.randrange(4, 12))
    text = msgspec.json.encode(whole)
    depth = depth_of(whole)
    check_depth(text, depth)
    with pytest.raises(ParseError):
        check_depth(text, depth - 1)


MEMBERS = ",".join(f'"k{number}":{number}' for number in range(MANY_MEMBERS + 10))
BROKEN = [
    "{" + MEMBERS,
    "{" + MEMBERS + ",}",
    "[" + "1," * MANY_MEMBERS + "01]",
    "[" + "1," * MANY_MEMBERS + "NaN]",
]


@pytest.mark.parametrize(
    "text",
    [
        "{" + MEMBERS + "}",
        " {" + MEMBERS + ',"k1":1.50,"\\ud800":[]} ',
        "[" + "[]," * MANY_MEMBERS + '{"a":{"b":[1e3,-0,true,null,"\\u00e9"]}}]',
        *BROKEN,
    ],
)
def test_many_members_are_read_like_few(text, monkeypatch):
    def outcome():
        try:
            value = parse_json(text.encode())
        except ParseError as problem:
            return str(problem)
        return value, getattr(value, "names", None), json.dumps(value)

    interruptible = outcome()
    monkeypatch.setattr(parsing, "MANY_MEMBERS", 10**9)
    assert outcome() == interruptible
    assert isinstance(interruptible, str) == (text in BROKEN)


def test_other_threads_run_while_many_members_are_read():
    data = ("{" + ",".join(f'"k{number}":{number}' for number in range(200_000)) + "}").encode()
    reading = threading.Thread(target=parse_json, args=(data,))
    reading.start()
    turns = 0
    while reading.is_alive():
        turns += 1
        time.sleep(0)  # hands the interpreter over, and waits until it comes back
    # The parser in C would let this thread run when it begins and when it has ended.
    assert turns > 20
