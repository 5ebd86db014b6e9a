"""Loops, bindings, optionals and failures: compiled functions and the interpreter agree on random expressions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.features import Features
from dray.api.resource import DeviceAttribute
from dray.cel import CompileError, DeviceInput, EvaluationError, compile_selector
from dray.cel.codegen import compile_tree
from dray.cel.errors import Fault

FEATURES = Features(["DRAListTypeAttributes"])
DEVICE = DeviceInput.build(
    "d",
    {
        "i": DeviceAttribute(int_value=7),
        "s": DeviceAttribute(string="text"),
        "l": DeviceAttribute(ints=[3, 1, 2]),
    },
    {},
)
A = 'device.attributes["d"]'


@st.composite
def integers(draw, names, depth):
    choices = ["literal", "name", "attribute", "default"]
    choices += ["arithmetic", "choice", "bind", "size", "index", "map"] if depth else []
    match draw(st.sampled_from(choices)):
        case "name" if names:
            return draw(st.sampled_from(names))
        case "attribute":
            return draw(st.sampled_from([f"{A}.i", f"{A}.missing", f"{A}.s", f'{A}["i"]']))
        case "default":
            return f"{A}.?{draw(st.sampled_from(['i', 'missing', 's']))}.orValue({draw(integers(names, 0))})"
        case "arithmetic":
            operator = draw(st.sampled_from("+-*/%"))
            return f"({draw(integers(names, depth - 1))} {operator} {draw(integers(names, depth - 1))})"
        case "choice":
            parts = draw(booleans(names, depth - 1)), draw(integers(names, depth - 1))
            return f"({parts[0]} ? {parts[1]} : {draw(integers(names, depth - 1))})"
        case "bind":
            name = f"b{depth}"
            inner = draw(integers([*names, name], depth - 1))
            return f"cel.bind({name}, {draw(integers(names, depth - 1))}, {inner})"
        case "size":
            return f"{draw(lists(names, depth - 1))}.size()"
        case "index":
            return f"{draw(lists(names, depth - 1))}[{draw(integers(names, 0))}]"
        case "map":
            entries = f'{{"a": {draw(integers(names, depth - 1))}, "b": {draw(integers(names, 0))}}}'
            return entries + draw(st.sampled_from([".a", '["b"]', ".c", ".?a.orValue(0)", ".?c.orValue(1)"]))
    return str(draw(st.integers(-3, 3)))


@st.composite
def lists(draw, names, depth):
    choices = ["literal", "attribute", "range"] + (
        ["map", "filter", "both", "transform", "sum"] if depth else []
    )
    one, two = f"x{depth}", f"y{depth}"
    match draw(st.sampled_from(choices)):
        case "attribute":
            return draw(st.sampled_from([f"{A}.l", f"{A}.s"]))
        case "range":
            return f"lists.range({draw(st.integers(0, 4))})"
        case "map":
            return f"{draw(lists(names, depth - 1))}.map({one}, {draw(integers([*names, one], depth - 1))})"
        case "filter":
            return (
                f"{draw(lists(names, depth - 1))}.filter({one}, {draw(booleans([*names, one], depth - 1))})"
            )
        case "both":
            inner = [*names, one]
            parts = draw(booleans(inner, depth - 1)), draw(integers(inner, depth - 1))
            return f"{draw(lists(names, depth - 1))}.map({one}, {parts[0]}, {parts[1]})"
        case "transform":
            inner = [*names, one, two]
            parts = draw(booleans(inner, depth - 1)), draw(integers(inner, depth - 1))
            return f"{draw(lists(names, depth - 1))}.transformList({one}, {two}, {parts[0]}, {parts[1]})"
        case "sum":
            return f"({draw(lists(names, depth - 1))} + {draw(lists(names, depth - 1))})"
    return "[" + ", ".join(draw(st.lists(integers(names, 0), max_size=4))) + "]"


@st.composite
def booleans(draw, names, depth):
    choices = ["compare", "literal"] + (
        ["and", "or", "not", "choice", "loop", "pairs", "map", "in", "has", "bind", "lists"] if depth else []
    )
    one, two = f"v{depth}", f"w{depth}"
    loop = draw(st.sampled_from(["all", "exists", "exists_one"]))
    match draw(st.sampled_from(choices)):
        case "compare":
            operator = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
            return f"{draw(integers(names, max(depth - 1, 0)))} {operator} {draw(integers(names, 0))}"
        case "and" | "or" as word:
            terms = draw(st.lists(booleans(names, depth - 1), min_size=2, max_size=4))
            return "(" + {"and": " && ", "or": " || "}[word].join(f"({term})" for term in terms) + ")"
        case "not":
            return f"!({draw(booleans(names, depth - 1))})"
        case "choice":
            parts = [draw(booleans(names, depth - 1)) for _ in range(3)]
            return f"(({parts[0]}) ? ({parts[1]}) : ({parts[2]}))"
        case "loop":
            return (
                f"{draw(lists(names, depth - 1))}.{loop}({one}, {draw(booleans([*names, one], depth - 1))})"
            )
        case "pairs":
            body = draw(booleans([*names, one, two], depth - 1))
            return f"{draw(lists(names, depth - 1))}.{loop}({one}, {two}, {body})"
        case "map":
            body = draw(integers([*names, one, two], depth - 1))
            made = f"{draw(lists(names, depth - 1))}.transformMap({one}, {two}, {body})"
            return f"{made}.{loop}({one}, {draw(booleans([*names, one], depth - 1))})"
        case "in":
            return f"{draw(integers(names, depth - 1))} in {draw(lists(names, depth - 1))}"
        case "has":
            return f"has({A}.{draw(st.sampled_from(['i', 'missing']))})"
        case "bind":
            return f"cel.bind({one}, {draw(integers(names, depth - 1))}, {draw(booleans([*names, one], depth - 1))})"
        case "lists":
            return f"{draw(lists(names, depth - 1))} == {draw(lists(names, depth - 1))}"
    return draw(st.sampled_from(["true", "false"]))


@settings(max_examples=400, deadline=None)
@given(booleans([], 4))
def test_compiled_and_interpreted_loops_agree(expression):
    try:
        program = compile_selector(expression, features=FEATURES)
    except CompileError:
        return
    outcome = program.outcome(DEVICE)
    try:
        value, error = program.evaluate(DEVICE), ""
    except EvaluationError as failure:
        value, error = None, str(failure)
    assert (value, error) == (outcome.value, outcome.error), expression
    counting = compile_tree(program.tree, counting=True)
    if counting is not None:
        try:
            counted = counting(DEVICE, 1_000_000)
        except Fault:
            return
        assert counted == (outcome.value, outcome.cost), expression
