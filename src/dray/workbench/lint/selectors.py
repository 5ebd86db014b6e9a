"""What experience says about selectors: mistakes that compile, and advice for those that do not.

Attributes have no type until a device is at hand, so CEL accepts comparing a version
with text; it fails, or is quietly false, on every device. Drivers rename what they
publish; the old names still stand in half of the examples on the web. Both can be
said without a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from dray.api.features import Features
from dray.cel import CompileError, Program, compile_derived, compile_selector, reads_of
from dray.cel.syntax import Call, Literal, Node, Select, walk
from dray.workbench.lint.findings import Problem, error, info, warning

COST_LIMIT = 1_000_000  # of one selector; more is refused by validation
_COMPARISONS = {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"}
_VERSION_TEXT = re.compile(r"v?\d+(\.\d+)*([-+][\w.]+)?")

# driver/attribute -> what to use instead, for names that drivers gave up.
DROPPED: dict[tuple[str, str], str] = {
    ("gpu.nvidia.com", "index"): "select by uuid, or by resource.kubernetes.io/pciBusID",
    ("gpu.nvidia.com", "minor"): "select by uuid, or by resource.kubernetes.io/pciBusID",
    ("gpu.nvidia.com", "parentIndex"): "use parentUUID",
    ("gpu.nvidia.com", "pcieBusID"): "use device.attributes['resource.kubernetes.io'].pciBusID",
    ("gpu.nvidia.com", "numa"): "use device.attributes['resource.kubernetes.io'].numaNode",
    ("gpu.amd.com", "pciAddr"): "use device.attributes['resource.kubernetes.io'].pciBusID",
    ("gpu.amd.com", "cardIndex"): "use device.attributes['resource.kubernetes.io'].pciBusID",
    ("gpu.amd.com", "renderIndex"): "use device.attributes['resource.kubernetes.io'].pciBusID",
    ("gpu.amd.com", "driverSrcVersion"): "use driverVersion or driverVersionFull",
    ("gpu.amd.com", "family"): "use productName",
    ("gpu.amd.com", "parentPciAddr"): "use device.attributes['resource.kubernetes.io'].pciBusID",
    ("gpu.amd.com", "parentDeviceID"): "use device.attributes['resource.kubernetes.io'].pciBusID",
    ("dra.net", "cloudNetwork"): "use device.attributes['gce.dra.net'].networkName",
    ("dra.net", "name"): "use ifName",
}
# Attributes that are known to be versions, not text.
VERSIONS: frozenset[tuple[str, str]] = frozenset(
    {
        ("gpu.nvidia.com", "driverVersion"),
        ("gpu.nvidia.com", "cudaDriverVersion"),
        ("gpu.nvidia.com", "cudaComputeCapability"),
        ("gpu.example.com", "driverVersion"),
    }
)


def check_selector(
    expression: str, path: str, features: Features, *, derived: bool = False
) -> tuple[list[Problem], Program | None]:
    """Judge an expression without devices; the program is None when it does not compile."""
    try:
        program = (compile_derived if derived else compile_selector)(expression, features=features)
    except CompileError as failure:
        return [_compile_problem(failure, expression, path)], None
    problems: list[Problem] = []
    if program.max_cost > COST_LIMIT // 2:
        share = program.max_cost / COST_LIMIT
        problems.append(
            (error if share > 1 else warning)(
                "cel-cost", path, f"costs up to {program.max_cost}, {share:.0%} of what is allowed",
                "bound lists before looping over them, and compare the cheap attributes first",
            )
        )  # fmt: skip
    if not derived and not isinstance(program.tree, Call) and str(program.output_type) != "bool":
        problems.append(
            info(
                "cel-not-bool",
                path,
                f"the value is that of {expression.strip()!r}, which need not be a boolean",
                "compare it with something: … == 'value'",
            )
        )
    problems += _versions_as_text(program, path)
    problems += _dropped(program, path)
    problems += _names_as_domains(program, path)
    return problems, program


def _compile_problem(failure: CompileError, expression: str, path: str) -> Problem:
    issue = failure.issues[0] if failure.issues else None
    text = str(failure).removeprefix("compilation failed: ")
    first = re.sub(r"^ERROR: <input>:", "", text.splitlines()[0]) if text else "does not compile"
    problem = error(
        "cel-compile", path, f"the selector does not compile: {first}", compile_hint(expression, text)
    )
    return replace(problem, line_offset=issue.line - 1) if issue is not None else problem


def compile_hint(expression: str, complaint: str) -> str:
    """Return advice for a complaint of the CEL compiler; empty when there is none."""
    if "kubernetes.Quantity" in complaint and "no matching overload" in complaint:
        return (
            "quantities are compared with compareTo: "
            'device.capacity["<driver>"].memory.compareTo(quantity("40Gi")) >= 0'
        )
    if "kubernetes.Semver" in complaint and "no matching overload" in complaint:
        return (
            "versions are compared with compareTo: "
            'device.attributes["<driver>"].driverVersion.compareTo(semver("550.0.0")) >= 0'
        )
    if "isGreaterThan" in complaint or "isLessThan" in complaint or "compareTo" in complaint:
        return 'wrap the text: .compareTo(semver("1.2.3")) for versions, .compareTo(quantity("40Gi")) for capacities'
    if "map(string, any)" in complaint and "/" in expression:
        return 'the domain and the name are two steps: device.attributes["<domain>"].<name>'
    if "undefined field" in complaint:
        return "a device has .driver, .attributes, .capacity and .allowMultipleAllocations"
    if "undeclared reference" in complaint:
        return "the only variable is `device`; texts need quotes"
    if re.search(r"[^=!<>]=[^=]", expression) and "token recognition" in complaint:
        return "compare with == instead of ="
    if re.search(r"\b(and|or|not)\b", expression):
        return "write && for and, || for or, ! for not"
    return ""


def _versions_as_text(program: Program, path: str) -> Iterator[Problem]:
    for (domain, name), literal in compared_with_text(program):
        known = (domain, name) in VERSIONS
        likely = name.lower().endswith("version") and _VERSION_TEXT.fullmatch(literal)
        if known or likely:
            yield warning(
                "version-as-text",
                path,
                f"{domain}/{name} is {'' if known else 'probably '}a version; comparing it with the text {literal!r} "
                "fails or is false on every device",
                version_hint(domain, name, literal),
            )


def version_hint(domain: str, name: str, literal: str) -> str:
    """Return how to compare a version attribute."""
    parts = (
        ([*literal.lstrip("v").split("."), "0", "0"])[:3]
        if _VERSION_TEXT.fullmatch(literal)
        else ["1", "2", "3"]
    )
    return f'device.attributes["{domain}"].{name}.compareTo(semver("{".".join(parts)}")) >= 0'


def compared_with_text(program: Program) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the attributes that an expression compares with a constant text."""
    for node in walk(program.tree):
        if not isinstance(node, Call) or node.function not in _COMPARISONS:
            continue
        for this, other in (node.args, node.args[::-1]):
            key = _attribute_of(this)
            if key is not None and isinstance(other, Literal) and isinstance(other.value, str):
                yield key, other.value


def _attribute_of(node: Node) -> tuple[str, str] | None:
    if not (isinstance(node, Select) or (isinstance(node, Call) and node.function == "_[_]")):
        return None
    reads = reads_of(node)
    if reads.everything or len(reads.attributes) != 1:
        return None
    return next(iter(reads.attributes))


def _dropped(program: Program, path: str) -> Iterator[Problem]:
    for domain, name in sorted(program.reads.attributes):
        instead = DROPPED.get((domain, name))
        if instead is not None and not is_guarded(program, name):
            yield warning(
                "dropped-attribute",
                path,
                f"{domain} no longer publishes {name}: on current drivers the selector fails with `no such key`",
                instead,
            )


def _names_as_domains(program: Program, path: str) -> Iterator[Problem]:
    """Yield `attributes["dra.net/rdma"]`: what stands in the brackets is a domain, which has no slash."""
    for domain, name in sorted(program.reads.attributes | program.reads.capacities):
        if "/" in domain and not is_guarded(program, name):
            prefix, _, attribute = domain.partition("/")
            yield warning(
                "cel-fails",
                path,
                f"no domain is called {domain!r}: the selector fails on every device with `no such key: {name}`",
                f'the domain and the name are two steps: ["{prefix}"].{attribute}',
            )


def is_guarded(program: Program, name: str) -> bool:
    """Return whether an expression allows for devices that lack an attribute."""
    for node in walk(program.tree):
        if isinstance(node, Select) and node.test_only and node.name == name:
            return True
        if isinstance(node, Call) and node.function in ("_?._", "_[?_]", "@in"):
            if any(isinstance(arg, Literal) and arg.value == name for arg in node.args):
                return True
    return False
