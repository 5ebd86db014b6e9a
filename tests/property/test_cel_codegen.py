"""The compiled function, the interpreter and a tiny reference agree on arithmetic and logic."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.features import Features
from dray.api.resource import DeviceAttribute
from dray.cel import DeviceInput, EvaluationError, compile_selector

INT64 = 2**63
ERROR = "error"
DEVICE = DeviceInput.build(
    "d", {"i": DeviceAttribute(int_value=7), "b": DeviceAttribute(bool_value=True)}, {}
)
A = 'device.attributes["d"]'

# Expressions are nested tuples; numbers and bools are generated apart, so that they type-check.
numbers = st.recursive(
    st.one_of(
        st.integers(-INT64, INT64 - 1).map(lambda n: ("num", n)),
        st.integers(-3, 3).map(lambda n: ("num", n)),
        st.just(("attr", "i")),
        st.just(("attr", "missing")),
    ),
    lambda below: st.tuples(st.sampled_from("+-*/%"), below, below),
    max_leaves=6,
)
bools = st.recursive(
    st.one_of(
        st.booleans().map(lambda b: ("bool", b)),
        st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers, numbers),
    ),
    lambda below: st.one_of(
        st.tuples(st.sampled_from(["&&", "||"]), below, below),
        st.tuples(st.just("!"), below),
        st.tuples(st.just("?"), below, below, below),
    ),
    max_leaves=8,
)


def write(node):
    match node:
        case ("num", n):
            return f"({n})"
        case ("bool", b):
            return "true" if b else "false"
        case ("attr", name):
            return f"{A}.{name}"
        case ("!", inner):
            return f"!({write(inner)})"
        case ("?", a, b, c):
            return f"(({write(a)}) ? ({write(b)}) : ({write(c)}))"
        case (operator, left, right):
            return f"({write(left)} {operator} {write(right)})"


def reference(node):
    match node:
        case ("num", n) | ("bool", n):
            return n
        case ("attr", name):
            return 7 if name == "i" else ERROR
        case ("!", inner):
            value = reference(inner)
            return ERROR if value is ERROR else not value
        case ("?", a, b, c):
            choice = reference(a)
            return ERROR if choice is ERROR else reference(b if choice else c)
        case ("&&" | "||" as operator, left, right):
            decisive = operator == "||"
            values = (reference(left), reference(right))
            if decisive in [v for v in values if v is not ERROR]:
                return decisive
            return ERROR if ERROR in values else not decisive
        case (operator, left, right):
            return calculate(operator, reference(left), reference(right))


def calculate(operator, a, b):
    if ERROR in (a, b):
        return ERROR
    if operator in "/%" and b == 0:
        return ERROR
    quotient = 0 if operator not in "/%" else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    value = {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: quotient,
        "%": lambda: a - b * quotient, "<": lambda: a < b, "<=": lambda: a <= b, ">": lambda: a > b,
        ">=": lambda: a >= b, "==": lambda: a == b, "!=": lambda: a != b,
    }[operator]()  # fmt: skip
    if not isinstance(value, bool) and not -INT64 <= value < INT64:
        return ERROR
    return value


@settings(max_examples=300, deadline=None)
@given(bools)
def test_compiled_interpreted_and_reference_results_agree(node):
    program = compile_selector(write(node), features=Features())
    outcome = program.outcome(DEVICE)
    assert (ERROR if outcome.error else outcome.value) is reference(node) or outcome.value == reference(node)
    try:
        fast = program.evaluate(DEVICE)
    except EvaluationError:
        fast = ERROR
    assert fast == reference(node)
    assert outcome.cost <= program.max_cost
