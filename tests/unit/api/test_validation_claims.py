"""Rules of claim, template and class specs: one broken field at a time."""

import pytest
from validation_cases import (
    ABSENT,
    CLAIM,
    CLASS,
    CONTEXT,
    EVERYTHING,
    TEMPLATE,
    changed,
    claim,
    device_class,
    judged,
    judged_update,
    template,
)

from dray.api.raw_json import RawJson
from dray.api.validation import CelVerdict, ValidationContext, check_admin_access, validate_create

DEVICES = "spec.devices"
FIRST = "spec.devices.requests.0"
EXACT = "spec.devices.requests.0.exactly"
SUB = "spec.devices.requests.1.firstAvailable.0"
FIRST_FIELD = "spec.devices.requests[0]"
EXACT_FIELD = "spec.devices.requests[0].exactly"
SUB_FIELD = "spec.devices.requests[1].firstAvailable[0]"
DERIVED_FIELD = "spec.devices.requests[0].exactly.derivedAttributes[0]"
# What refers to a request that changed its name.
LOST = [
    ("Invalid", f"{DERIVED_FIELD}.name"),
    ("Invalid", "spec.devices.constraints[0].requests[0]"),
    ("Invalid", "spec.devices.config[0].requests[0]"),
]


def test_a_claim_with_everything_is_fine():
    assert judged(CLAIM, claim()) == []


def test_a_claim_without_requests_is_fine():
    assert judged(CLAIM, {"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        # requests
        (f"{FIRST}.name", "A", [("Invalid", f"{FIRST_FIELD}.name"), *LOST]),
        (f"{FIRST}.name", "a.b", [("Invalid", f"{FIRST_FIELD}.name"), *LOST]),
        (f"{FIRST}.name", "other", LOST),
        (f"{FIRST}.exactly", ABSENT, [("Required", FIRST_FIELD)]),
        (f"{FIRST}.firstAvailable", claim()["spec"]["devices"]["requests"][1]["firstAvailable"], [("Invalid", FIRST_FIELD)]),
        ("spec.devices.requests.1.firstAvailable", [], [("Required", "spec.devices.requests[1]"), ("Invalid", "spec.devices.constraints[0].requests[1]")]),
        # class names
        (f"{EXACT}.deviceClassName", "", [("Required", f"{EXACT_FIELD}.deviceClassName")]),
        (f"{EXACT}.deviceClassName", "Upper", [("Invalid", f"{EXACT_FIELD}.deviceClassName")]),
        (f"{EXACT}.deviceClassName", "c" * 254, [("Invalid", f"{EXACT_FIELD}.deviceClassName")]),
        (f"{SUB}.deviceClassName", ABSENT, [("Required", f"{SUB_FIELD}.deviceClassName")]),
        (f"{SUB}.deviceClassName", "a_b", [("Invalid", f"{SUB_FIELD}.deviceClassName")]),
        (f"{SUB}.name", "", [("Invalid", f"{SUB_FIELD}.name"), ("Invalid", "spec.devices.constraints[0].requests[1]")]),
        # count and mode
        (f"{EXACT}.count", -1, [("Invalid", f"{EXACT_FIELD}.count")]),
        (f"{EXACT}.count", 2**63 - 1, []),
        (f"{EXACT}.allocationMode", "All", [("Invalid", f"{EXACT_FIELD}.count")]),
        (f"{EXACT}.allocationMode", "Some", [("NotSupported", f"{EXACT_FIELD}.allocationMode")]),
        (f"{SUB}.allocationMode", "all", [("NotSupported", f"{SUB_FIELD}.allocationMode")]),
        # selectors
        (f"{EXACT}.selectors.0.cel", ABSENT, [("Required", f"{EXACT_FIELD}.selectors[0].cel")]),
        (f"{EXACT}.selectors", [{"cel": {"expression": "true"}}] * 33, [("TooMany", f"{EXACT_FIELD}.selectors")]),
        (
            f"{EXACT}.selectors.0.cel.expression",
            "x" * 10241,
            [("TooLong", f"{EXACT_FIELD}.selectors[0].cel.expression")],
        ),
        (f"{EXACT}.selectors.0.cel.expression", "x" * 10240, []),
        # tolerations
        (f"{EXACT}.tolerations.0.key", "a b", [("Invalid", f"{EXACT_FIELD}.tolerations[0].key")]),
        (f"{EXACT}.tolerations.0.key", "", []),
        (f"{EXACT}.tolerations.0.operator", "Exists", [("Invalid", f"{EXACT_FIELD}.tolerations[0].value")]),
        (f"{EXACT}.tolerations.0.operator", "Gt", [("NotSupported", f"{EXACT_FIELD}.tolerations[0].operator")]),
        (f"{EXACT}.tolerations.0.operator", "", [("Required", f"{EXACT_FIELD}.tolerations[0].operator")]),
        (f"{EXACT}.tolerations.0.value", "v" * 64, [("Invalid", f"{EXACT_FIELD}.tolerations[0].value")]),
        (f"{EXACT}.tolerations.0.effect", "Evict", [("NotSupported", f"{EXACT_FIELD}.tolerations[0].effect")]),
        (f"{EXACT}.tolerations", [{"operator": "Exists"}] * 17, []),
        # capacity requests are not looked at
        (f"{EXACT}.capacity.requests", {"not a name": "-5"}, []),
        # derived attributes
        (f"{EXACT}.derivedAttributes.0.name", "", [("Required", f"{DERIVED_FIELD}.name")]),
        (f"{EXACT}.derivedAttributes.0.name", "a.test/unused", [("Invalid", f"{DERIVED_FIELD}.name")]),
        (f"{EXACT}.derivedAttributes.0.expression", "", [("Required", f"{DERIVED_FIELD}.expression")]),
        (
            f"{EXACT}.derivedAttributes",
            [{"name": "a.test/x", "expression": "1"}] * 2,
            [("Duplicate", f"{EXACT_FIELD}.derivedAttributes[1]")],
        ),
        # constraints
        (f"{DEVICES}.constraints.0.requests", ["nope"], [("Invalid", DERIVED_FIELD + ".name"), ("Invalid", "spec.devices.constraints[0].requests[0]")]),
        (f"{DEVICES}.constraints.1.requests", ["big", "big"], [("Duplicate", "spec.devices.constraints[1].requests[1]")]),
        (f"{DEVICES}.constraints.1.requests", ["req/s1"], [("Invalid", "spec.devices.constraints[1].requests[0]")]),
        (f"{DEVICES}.constraints.1.requests", ["big/s1/x"], [("Invalid", "spec.devices.constraints[1].requests[0]")]),
        (f"{DEVICES}.constraints.1.requests", ["s1"], [("Invalid", "spec.devices.constraints[1].requests[0]")]),
        (f"{DEVICES}.constraints.1.requests", [""], [("Invalid", "spec.devices.constraints[1].requests[0]")] * 2),
        (f"{DEVICES}.constraints.1.requests", [f"r{n}" for n in range(33)], [("TooMany", "spec.devices.constraints[1].requests")]),
        (f"{DEVICES}.constraints.1.requests", [], []),
        (f"{DEVICES}.constraints.1.distinctAttribute", ABSENT, [("Required", "spec.devices.constraints[1]")]),
        (f"{DEVICES}.constraints.1.distinctAttribute", "y", [("Invalid", "spec.devices.constraints[1].distinctAttribute")]),
        (f"{DEVICES}.constraints.1.distinctAttribute", "A.test/y", [("Invalid", "spec.devices.constraints[1].distinctAttribute")]),
        (f"{DEVICES}.constraints.1.distinctAttribute", "a.test/" + "y" * 33, [("TooLong", "spec.devices.constraints[1].distinctAttribute")]),
        (f"{DEVICES}.constraints.1.distinctAttribute", "a/b/c", []),
        (f"{DEVICES}.constraints.1.matchAttribute", "a.test/z", []),
        (f"{DEVICES}.constraints", [{"matchAttribute": "a.test/x"}] * 33, [("TooMany", "spec.devices.constraints")]),
        # config
        (f"{DEVICES}.config.0.opaque", ABSENT, [("Required", "spec.devices.config[0].opaque")]),
        (f"{DEVICES}.config.0.opaque.driver", "", [("Required", "spec.devices.config[0].opaque.driver")]),
        (f"{DEVICES}.config.0.opaque.driver", "a_b", [("Invalid", "spec.devices.config[0].opaque.driver")]),
        (f"{DEVICES}.config.0.opaque.driver", "GPU.Test", []),
        (f"{DEVICES}.config.0.opaque.driver", "d" * 64, [("TooLong", "spec.devices.config[0].opaque.driver")]),
        (f"{DEVICES}.config.0.opaque.parameters", ABSENT, [("Required", "spec.devices.config[0].opaque.parameters")]),
        (f"{DEVICES}.config.0.opaque.parameters", RawJson(b"null"), [("Required", "spec.devices.config[0].opaque.parameters")]),
        (f"{DEVICES}.config.0.opaque.parameters", RawJson(b"[1]"), [("Invalid", "spec.devices.config[0].opaque.parameters")]),
        (f"{DEVICES}.config.0.opaque.parameters", RawJson(b"{"), [("Invalid", "spec.devices.config[0].opaque.parameters")]),
        (f"{DEVICES}.config.0.opaque.parameters", RawJson(b'{"a":"' + b"x" * 10240 + b'"}'), [("TooLong", "spec.devices.config[0].opaque.parameters")]),
        (f"{DEVICES}.config.0.requests", ["p"], [("Invalid", "spec.devices.config[0].requests[0]")]),
    ],
)  # fmt: skip
def test_a_broken_field_of_a_claim_is_named(path, value, expected):
    assert judged(CLAIM, changed(claim(), (path, value))) == sorted(expected)


def test_too_many_requests_hide_what_else_is_wrong_with_them():
    requests = [{"name": "UPPER"} for _ in range(33)]
    broken = changed(
        claim(), (f"{DEVICES}.requests", requests), (f"{DEVICES}.constraints", []), (f"{DEVICES}.config", [])
    )
    assert judged(CLAIM, broken) == [("TooMany", "spec.devices.requests")]


def test_repeated_names_are_reported_on_the_repeated_item():
    requests = claim()["spec"]["devices"]["requests"]
    broken = changed(claim(), (f"{DEVICES}.requests", [*requests, requests[0], requests[0]]))
    assert judged(CLAIM, broken) == [
        ("Duplicate", "spec.devices.requests[2]"),
        ("Duplicate", "spec.devices.requests[3]"),
    ]


def test_nine_alternatives_are_too_many():
    alternatives = [{"name": f"s{n}", "deviceClassName": "g", "allocationMode": "All"} for n in range(9)]
    broken = changed(claim(), ("spec.devices.requests.1.firstAvailable", alternatives))
    assert judged(CLAIM, broken) == [("TooMany", "spec.devices.requests[1].firstAvailable")]


def test_both_ways_to_ask_do_not_hide_declared_errors():
    broken = changed(
        claim(),
        (f"{FIRST}.firstAvailable", [{"name": "x", "allocationMode": "All", "deviceClassName": ""}]),
        (f"{EXACT}.count", -5),
    )
    assert judged(CLAIM, broken) == [
        ("Invalid", FIRST_FIELD),
        ("Required", f"{FIRST_FIELD}.firstAvailable[0].deviceClassName"),
    ]


def test_without_the_capacity_gate_a_constraint_needs_match_attribute():
    context = ValidationContext(features=EVERYTHING.switched(off=["DRAConsumableCapacity"]))
    broken = changed(claim(), (f"{DEVICES}.constraints.1.distinctAttribute", ABSENT))
    assert judged(CLAIM, broken, context) == [("Required", "spec.devices.constraints[1].matchAttribute")]


class TestOldVersions:
    BETA = ValidationContext(features=EVERYTHING, version="v1beta1")

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            (f"{EXACT}.allocationMode", "Some", ("NotSupported", "spec.devices.requests[0].allocationMode")),
            (f"{EXACT}.selectors", [{"cel": {"expression": "a"}}] * 33, ("TooMany", "spec.devices.requests[0].selectors")),
            (f"{EXACT}.tolerations.0.key", "a b", ("Invalid", "spec.devices.requests[0].tolerations[0].key")),
            (f"{EXACT}.count", -1, ("Invalid", "spec.devices.requests[0].exactly.count")),
            (f"{EXACT}.deviceClassName", "", ("Required", "spec.devices.requests[0].exactly.deviceClassName")),
            (f"{EXACT}.tolerations.0.value", "a b", ("Invalid", "spec.devices.requests[0].exactly.tolerations[0].value")),
            (f"{SUB}.allocationMode", "Some", ("NotSupported", "spec.devices.requests[1].firstAvailable[0].allocationMode")),
        ],
    )  # fmt: skip
    def test_declared_rules_speak_the_clients_shape_and_written_rules_the_stored_one(
        self, path, value, expected
    ):
        assert judged(CLAIM, changed(claim(), (path, value)), self.BETA) == [expected]


class FakeCel:
    """Costs one thousand per letter; `bad` does not compile."""

    def __init__(self):
        self.asked = []

    def check(self, expression, *, stored, derived):
        self.asked.append((expression, derived))
        if expression == "bad":
            return CelVerdict(error="compilation failed: bad")
        if expression == "broken":
            return CelVerdict(error="oops", is_internal=True)
        return CelVerdict(max_cost=1000 * len(expression))


class TestCel:
    EXPRESSION = f"{EXACT}.selectors.0.cel.expression"
    FIELD = f"{EXACT_FIELD}.selectors[0].cel.expression"

    def context(self):
        return ValidationContext(features=EVERYTHING, cel=FakeCel())

    def test_an_expression_that_does_not_compile_is_invalid(self):
        (error,) = validate_create(CLAIM, changed(claim(), (self.EXPRESSION, "bad")), self.context())
        assert error.message() == f'{self.FIELD}: Invalid value: "bad": compilation failed: bad'

    def test_a_failing_checker_is_an_internal_error(self):
        assert judged(CLAIM, changed(claim(), (self.EXPRESSION, "broken")), self.context()) == [
            ("InternalError", self.FIELD)
        ]

    def test_an_expression_that_may_cost_too_much_is_forbidden(self):
        broken = changed(claim(), (self.EXPRESSION, "x" * 1001))
        assert judged(CLAIM, broken, self.context()) == [("Forbidden", self.FIELD)]
        assert judged(CLAIM, changed(claim(), (self.EXPRESSION, "x" * 1000)), self.context()) == []

    def test_an_expression_that_is_too_long_is_not_compiled(self):
        context = self.context()
        judged(CLAIM, changed(claim(), (self.EXPRESSION, "x" * 10241)), context)
        assert "x" * 10241 not in [expression for expression, _ in context.cel.asked]

    def test_derived_attributes_share_one_budget(self):
        attributes = [
            {"name": "a.test/x", "expression": "x" * 600},
            {"name": "a.test/y", "expression": "y" * 600},
        ]
        constraints = [{"matchAttribute": "a.test/x"}, {"matchAttribute": "a.test/y"}]
        broken = changed(
            claim(), (f"{EXACT}.derivedAttributes", attributes), (f"{DEVICES}.constraints", constraints)
        )
        assert judged(CLAIM, broken, self.context()) == [("Forbidden", "spec.devices")]

    def test_derived_expressions_are_compiled_as_such(self):
        context = self.context()
        judged(CLAIM, claim(), context)
        assert ("1", True) in context.cel.asked
        assert ("true", False) in context.cel.asked

    def test_unchanged_selectors_of_a_class_are_not_compiled_again(self):
        old, context = changed(device_class(), ("spec.selectors.0.cel.expression", "bad")), self.context()
        new = changed(old, ("metadata.labels", {"a": "b"}))
        assert judged_update(CLASS, new, old, context) == []
        assert context.cel.asked == []

    def test_a_new_selector_of_a_class_makes_all_of_them_new(self):
        old, context = changed(device_class(), ("spec.selectors.0.cel.expression", "bad")), self.context()
        new = changed(old, ("spec.selectors.1", {"cel": {"expression": "true"}}))
        assert judged_update(CLASS, new, old, context) == [("Invalid", "spec.selectors[0].cel.expression")]


class TestTemplates:
    def test_a_template_with_everything_is_fine(self):
        assert judged(TEMPLATE, template()) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("spec.metadata.name", "x", [("Forbidden", "spec.metadata.name")]),
            ("spec.metadata.uid", "x", [("Forbidden", "spec.metadata.uID")]),
            ("spec.metadata.finalizers", ["a.test/f"], [("Forbidden", "spec.metadata.finalizers")]),
            ("spec.metadata.labels", {"a b": "c"}, [("Invalid", "spec.metadata.labels")]),
            ("spec.spec.devices.requests.0.exactly.count", -1, [("Invalid", "spec.spec.devices.requests[0].exactly.count")]),
            ("spec.spec.devices.requests.0.exactly.allocationMode", "x", [("NotSupported", "spec.spec.devices.requests[0].exactly.allocationMode")]),
        ],
    )  # fmt: skip
    def test_a_broken_field_of_a_template_is_named(self, path, value, expected):
        assert judged(TEMPLATE, changed(template(), (path, value))) == expected

    def test_a_changed_spec_is_judged_besides_being_refused(self):
        new = changed(template(), ("spec.spec.devices.requests.0.exactly.count", -1))
        assert judged_update(TEMPLATE, new, template()) == [
            ("Invalid", "spec"),
            ("Invalid", "spec.spec.devices.requests[0].exactly.count"),
        ]

    def test_metadata_may_change(self):
        assert judged_update(TEMPLATE, changed(template(), ("metadata.labels", {"a": "b"})), template()) == []


class TestClaimUpdates:
    def test_only_the_immutable_spec_is_reported_whatever_else_is_wrong(self):
        new = changed(claim(), (f"{EXACT}.deviceClassName", "UPPER"), (f"{EXACT}.count", -1))
        assert judged_update(CLAIM, new, claim()) == [("Invalid", "spec")]

    def test_a_stored_claim_that_breaks_todays_rules_stays_updatable(self):
        old = changed(claim(), (f"{EXACT}.deviceClassName", "UPPER"))
        assert judged_update(CLAIM, changed(old, ("metadata.labels", {"a": "b"})), old) == []

    def test_absent_and_empty_lists_are_the_same_spec(self):
        assert judged_update(CLAIM, changed(claim(), (f"{EXACT}.capacity.x", [])), claim()) == []

    def test_a_bad_label_is_reported_once(self):
        assert judged_update(CLAIM, changed(claim(), ("metadata.labels", {"a b": ""})), claim()) == [
            ("Invalid", "metadata.labels")
        ]

    def test_parameters_are_compared_byte_by_byte(self):
        path = f"{DEVICES}.config.0.opaque.parameters"
        old = changed(claim(), (path, RawJson(b'{"a": 1}')))
        assert judged_update(CLAIM, old, old) == []
        assert judged_update(CLAIM, changed(old, (path, RawJson(b'{"a":1}'))), old) == [("Invalid", "spec")]


class TestClasses:
    def test_a_class_with_everything_is_fine(self):
        assert judged(CLASS, device_class()) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("metadata.name", "UP", [("Invalid", "metadata.name")]),
            ("metadata.name", "", [("Required", "metadata.name")]),
            ("spec.selectors.0", {}, [("Required", "spec.selectors[0].cel")]),
            ("spec.config.0", {}, [("Required", "spec.config[0].opaque")]),
            ("spec.config.0.opaque.driver", "-", [("Invalid", "spec.config[0].opaque.driver")]),
            ("spec.extendedResourceName", "gpu", [("Invalid", "spec.extendedResourceName")]),
            ("spec.extendedResourceName", "kubernetes.io/gpu", [("Invalid", "spec.extendedResourceName")]),
            ("spec.extendedResourceName", "requests.a.test/gpu", [("Invalid", "spec.extendedResourceName")]),
            ("spec.selectors", [{"cel": {"expression": "true"}}] * 33, [("TooMany", "spec.selectors")]),
            (
                "spec.config",
                [{"opaque": {"driver": "a", "parameters": {}}}] * 33,
                [("TooMany", "spec.config")],
            ),
        ],
    )
    def test_a_broken_field_of_a_class_is_named(self, path, value, expected):
        assert judged(CLASS, changed(device_class(), (path, value))) == expected

    def test_large_parameters_may_stay_but_not_come(self):
        large = {"opaque": {"driver": "a", "parameters": {"a": "x" * 10240}}}
        old = changed(device_class(), ("spec.config.0", large))
        assert judged_update(CLASS, changed(old, ("metadata.labels", {"a": "b"})), old) == []
        assert judged_update(CLASS, old, device_class()) == [("TooLong", "spec.config[0].opaque.parameters")]


class TestAdminAccess:
    ASKING = changed(claim(), (f"{EXACT}.adminAccess", True))

    def test_the_namespace_must_carry_the_label(self):
        (error,) = check_admin_access(self.ASKING, {})
        assert (error.kind.value, error.field) == (
            "FieldValueForbidden",
            "spec.devices.requests[0].adminAccess",
        )
        assert check_admin_access(self.ASKING, {"resource.kubernetes.io/admin-access": "true"}) == []

    def test_the_label_must_say_true_exactly(self):
        assert check_admin_access(self.ASKING, {"resource.kubernetes.io/admin-access": "True"})

    def test_a_template_is_reported_like_a_claim(self):
        asking = changed(template(), ("spec.spec.devices.requests.0.exactly.adminAccess", True))
        assert [error.field for error in check_admin_access(asking, None)] == [
            "spec.devices.requests[0].adminAccess"
        ]

    def test_nobody_else_needs_the_label(self):
        assert check_admin_access(claim(), {}) == []
        assert check_admin_access(changed(claim(), (f"{EXACT}.adminAccess", False)), {}) == []


def test_messages_of_duplicates_show_the_whole_item():
    requests = claim()["spec"]["devices"]["requests"]
    broken = changed(claim(), (f"{DEVICES}.requests", [requests[0], requests[1], {**requests[1]}]))
    (error,) = validate_create(CLAIM, broken, CONTEXT)
    assert error.body().startswith('Duplicate value: {"name":"big","firstAvailable":[{"name":"s1"')
