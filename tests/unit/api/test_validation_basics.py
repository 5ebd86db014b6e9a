"""Field errors, formats, equality, declared rules and metadata: what all validators build on."""

import pytest
from validation_cases import ABSENT, CONTEXT, changed, claim, judged, judged_update

from dray.api.features import Features
from dray.api.raw_json import RawJson
from dray.api.validation import (
    FieldError,
    Path,
    allows_unconditional_update,
    missing_resource_version,
    validate_update,
)
from dray.api.validation import formats as f
from dray.api.validation.declared import Declared, at_least, check_declared, in_version, one_of
from dray.api.validation.equality import is_same
from dray.api.validation.fields import (
    duplicate,
    forbidden,
    internal,
    invalid,
    not_found,
    not_supported,
    required,
    too_long,
    too_many,
)

CLAIM, POD = "ResourceClaim.resource.k8s.io", "Pod"


class TestFieldErrors:
    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (invalid("spec.x", "y", "why"), 'spec.x: Invalid value: "y": why'),
            (invalid("spec.x", None, "why"), "spec.x: Invalid value: null: why"),
            (invalid("spec.x", 3, "why"), "spec.x: Invalid value: 3: why"),
            (invalid("spec.x", {"a": [1, True]}, "why"), 'spec.x: Invalid value: {"a":[1,true]}: why'),
            (invalid("spec.x", RawJson(b'{"a": 1}'), "why"), 'spec.x: Invalid value: {"a":1}: why'),
            (required("spec.x"), "spec.x: Required value"),
            (required("spec.x", "one of a, b"), "spec.x: Required value: one of a, b"),
            (duplicate("spec.x[1]", "a"), 'spec.x[1]: Duplicate value: "a"'),
            (forbidden("spec.x", "no"), "spec.x: Forbidden: no"),
            (not_found("spec.x", "a"), 'spec.x: Not found: "a"'),
            (
                not_supported("spec.x", "a", ["b", "c"]),
                'spec.x: Unsupported value: "a": supported values: "b", "c"',
            ),
            (too_long("spec.x", 63), "spec.x: Too long: may not be more than 63 bytes"),
            (too_many("spec.x", 9, 8), "spec.x: Too many: 9: must have at most 8 items"),
            (internal("spec.x", "oops"), "spec.x: Internal error: oops"),
        ],
    )
    def test_texts_follow_the_convention(self, error, message):
        assert error.message() == message

    def test_a_cause_has_reason_text_and_field(self):
        assert too_many("spec.x", 9, 8).cause() == {
            "reason": "FieldValueTooMany",
            "message": "Too many: 9: must have at most 8 items",
            "field": "spec.x",
        }

    def test_paths_grow_by_child_item_and_key(self):
        path = Path("spec").child("a", "b").at(3).key("x.test/y")
        assert path == "spec.a.b[3][x.test/y]"
        assert Path("").child("metadata") == "metadata"

    def test_errors_are_values(self):
        assert invalid("a", 1, "x") == FieldError(invalid("a", 1, "x").kind, "a", 1, "x")


class TestFormats:
    @pytest.mark.parametrize(
        ("check", "good", "bad"),
        [
            (f.dns_label, ["a", "a-b", "1", "a" * 63], ["", "A", "a.b", "-a", "a-", "a" * 64, "naïve", "a b", "a\n"]),
            (f.dns_subdomain, ["a", "a.b-c.d", "a" * 253], ["", "a..b", ".a", "a.", "A", "a_b", "a" * 254]),
            (f.long_name_caseless, ["A.b", "a"], ["", "a_b", "ü"]),
            (f.label_key, ["a", "a.test/B_c", "A"], ["", "/a", "a/", "a/b/c", "A.test/x", "a b", "x" * 64]),
            (f.label_value, ["", "a", "A_b.c-1"], ["-a", "a b", "x" * 64]),
            (f.c_identifier, ["a", "_a", "A1"], ["", "1a", "a-b"]),
            (f.config_key, ["a", "A.b_c-d", ".a"], ["", ".", "..", "..a", "a/b", "a" * 254]),
            (f.condition_reason, ["A", "A_b", "A:b,c_"], ["", "a b", "1a", "A:"]),
            (f.port_name, ["http", "a-1"], ["", "HTTP", "a--b", "-a", "1", "a" * 16]),
            (f.percent, ["0%", "110%"], ["1", "%", "-1%", "1.5%"]),
            (f.semantic_version, ["1.2.3", "1.2.3-a.1+b.01"], ["1.2", "v1.2.3", "01.2.3", "1.2.3-01", "1.2.3-", "1.2.3 "]),
            (f.uuid, ["550e8400-e29b-41d4-a716-446655440000"], ["", "550E8400-e29b-41d4-a716-446655440000", "x"]),
            (f.interface_address, ["10.0.0.1/24", "2001:db8::1/64"], ["10.0.0.1", "10.0.0.1/33", "::ffff:10.0.0.1/120", "010.0.0.1/8", "x/1"]),
            (f.path_segment, ["a", "A b"], [".", "..", "a/b", "a%b"]),
            (f.env_name, ["A", "a.b", "a b"], ["", "a=b", "ü"]),
            (f.dns_1035_label, ["a", "a-1"], ["1a", "", "A"]),
        ],
    )  # fmt: skip
    def test_good_texts_pass_and_bad_ones_do_not(self, check, good, bad):
        assert [text for text in good if check(text)] == []
        assert [text for text in bad if not check(text)] == []

    def test_sizes_are_counted_in_bytes(self):
        assert f.size("ü") == 2
        assert f.size("abc") == 3

    def test_a_dot_in_a_label_is_called_a_dot(self):
        assert f.dns_label("a.b") == ["must not contain dots"]

    def test_a_prefix_may_end_in_a_dash(self):
        assert f.with_trailing_dash_masked("abc-") == "aba"
        assert f.dns_subdomain(f.with_trailing_dash_masked("gpu-")) == []


class TestEquality:
    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ({"a": 1, "b": None}, {"a": 1}, True),
            ({"a": []}, {}, True),
            ({"a": {}}, {"a": None}, True),
            ([1, 2], [1, 2], True),
            ([1, 2], [2, 1], False),
            ({"a": True}, {"a": 1}, False),
            ({"a": 0}, {}, False),
            (RawJson(b"1"), RawJson(b"1"), True),
            (RawJson(b"1"), RawJson(b"1 "), False),
            ("", None, True),
        ],
    )
    def test_nothing_is_nothing_however_it_is_spelled(self, one, other, same):
        assert is_same(one, other) is same
        assert is_same(other, one) is same


class TestDeclared:
    RULE = Declared(
        fields={
            "spec": Declared(
                fields={
                    "mode": Declared(required=True, checks=(one_of("a", "b"),)),
                    "count": Declared(nullable=True, checks=(at_least(1),)),
                    "items": Declared(
                        max_items=3,
                        unique_by=("name",),
                        each=Declared(fields={"name": Declared(required=True)}),
                    ),
                    "frozen": Declared(nullable=True, immutable=True),
                    "once": Declared(nullable=True, write_once=True),
                    "gated": Declared(nullable=True, gate="Gate"),
                    "either": Declared(nullable=True, union=("x", "y")),
                }
            )
        }
    )

    def check(self, spec, old=None, features=()):
        before = None if old is None else {"spec": old}
        errors = check_declared(self.RULE, {"spec": spec}, before, features=Features(features), version="v1")
        assert all(error.declared for error in errors)
        return sorted((error.kind.value.removeprefix("FieldValue"), error.field) for error in errors)

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ({"mode": "a"}, []),
            ({}, [("Required", "spec.mode")]),
            (None, [("Required", "spec.mode")]),
            ({"mode": ""}, [("Required", "spec.mode")]),
            ({"mode": "c"}, [("NotSupported", "spec.mode")]),
            ({"mode": "a", "count": 0}, [("Invalid", "spec.count")]),
            ({"mode": "a", "items": [{"name": "x"}, {}]}, [("Required", "spec.items[1].name")]),
            ({"mode": "a", "items": [{"name": "x"}, {"name": "x"}]}, [("Duplicate", "spec.items[1]")]),
            ({"mode": "a", "items": [{}] * 4}, [("TooMany", "spec.items")]),
            ({"mode": "a", "gated": 1}, [("Forbidden", "spec.gated")]),
            ({"mode": "a", "either": {}}, [("Invalid", "spec.either")]),
            ({"mode": "a", "either": {"x": 1}}, []),
            ({"mode": "a", "either": {"x": 1, "y": 2}}, [("Invalid", "spec.either")]),
        ],
    )
    def test_each_rule_of_the_language(self, spec, expected):
        assert self.check(spec) == expected

    def test_a_gate_that_is_on_opens_the_field(self):
        assert self.check({"mode": "a", "gated": 1}, features=["Gate"]) == []

    def test_an_unchanged_object_has_no_errors(self):
        broken = {"mode": "c", "count": 0, "items": [{}, {}], "gated": 1}
        assert self.check(broken, old=broken) == []

    def test_only_what_changed_is_judged(self):
        old = {"mode": "c", "items": [{"name": "x"}, {"name": ""}]}
        assert self.check({**old, "count": 0}, old=old) == [("Invalid", "spec.count")]

    def test_immutable_and_write_once(self):
        old = {"mode": "a", "frozen": 1, "once": 1}
        assert self.check({**old, "frozen": 2}, old=old) == [("Invalid", "spec.frozen")]
        assert self.check({**old, "frozen": None}, old=old) == [("Invalid", "spec.frozen")]
        assert self.check({**old, "once": 2}, old=old) == [("Invalid", "spec.once")]
        assert self.check({**old, "once": None}, old=old) == []

    def test_only_one_version_has_another_shape(self):
        path = "spec.spec.devices.requests[3].exactly.selectors"
        assert in_version(path, "v1beta2") == path
        assert in_version(path, "v1beta1") == "spec.spec.devices.requests[3].selectors"
        assert in_version("spec.devices[3].name", "v1beta1") == "spec.devices[3].basic.name"
        assert in_version("spec.devices", "v1beta1") == "spec.devices"


class TestMetadata:
    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("name", "", [("Required", "metadata.name")]),
            ("name", "UP", [("Invalid", "metadata.name")]),
            ("name", "a" * 254, [("Invalid", "metadata.name")]),
            ("generateName", "gpu-", []),
            ("generateName", "UP-", [("Invalid", "metadata.generateName")]),
            ("namespace", ABSENT, [("Required", "metadata.namespace")]),
            ("namespace", "a.b", [("Invalid", "metadata.namespace")]),
            ("generation", -1, [("Invalid", "metadata.generation")]),
            ("labels", {"a b": "x"}, [("Invalid", "metadata.labels")]),
            ("labels", {"a": "b c"}, [("Invalid", "metadata.labels")]),
            ("annotations", {"A.TEST/X": "any thing"}, []),
            ("annotations", {"a b": ""}, [("Invalid", "metadata.annotations")]),
            ("annotations", {"a": "x" * 262144}, [("TooLong", "metadata.annotations")]),
            ("finalizers", ["hold"], [("Invalid", "metadata.finalizers[0]")]),
            ("finalizers", ["a.test/hold", "kubernetes"], []),
            ("finalizers", ["a b"], [("Invalid", "metadata.finalizers"), ("Invalid", "metadata.finalizers[0]")]),
            ("finalizers", ["orphan", "foregroundDeletion"], [("Invalid", "metadata.finalizers")]),
            ("ownerReferences", [{}], [("Required", f"metadata.ownerReferences[0].{name}") for name in ("apiVersion", "kind", "name", "uid")]),
            ("ownerReferences", [{"apiVersion": "a/b/c", "kind": "K", "name": "n", "uid": "u"}], [("Invalid", "metadata.ownerReferences[0].apiVersion")]),
            ("ownerReferences", [{"apiVersion": "v1", "kind": "Event", "name": "n", "uid": "u"}], [("Invalid", "metadata.ownerReferences[0]")]),
            ("ownerReferences", [{"apiVersion": "v1", "kind": "K", "name": n, "uid": n, "controller": True} for n in "ab"], [("Invalid", "metadata.ownerReferences")]),
            ("managedFields", [{"operation": "Apply", "fieldsType": "FieldsV1"}], []),
            ("managedFields", [{"operation": "Other"}], [("NotSupported", "metadata.managedFields[0].operation")]),
            ("managedFields", [{"fieldsType": "X"}], [("Invalid", "metadata.managedFields[0].fieldsType"), ("Required", "metadata.managedFields[0].operation")]),
            ("managedFields", [{"operation": "Apply", "manager": "x" * 129}], [("TooLong", "metadata.managedFields[0].manager")]),
        ],
    )  # fmt: skip
    def test_a_broken_field_of_metadata_is_named(self, path, value, expected):
        assert judged(CLAIM, changed(claim(), (f"metadata.{path}", value))) == sorted(expected)

    @pytest.mark.parametrize("field", ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"])
    def test_identity_cannot_change(self, field):
        old = changed(claim(), (f"metadata.{field}", "before"))
        before = changed(old, ("metadata.resourceVersion", "7"))
        after = changed(before, (f"metadata.{field}", "after"))
        assert [error.field for error in validate_update(CLAIM, after, before, CONTEXT)] == [
            f"metadata.{field}"
        ]

    def test_an_object_that_is_being_deleted_takes_no_new_finalizers(self):
        old = changed(
            claim(), ("metadata.deletionTimestamp", "t"), ("metadata.finalizers", ["a.test/x", "a.test/y"])
        )
        assert judged_update(CLAIM, changed(old, ("metadata.finalizers", ["a.test/x"])), old) == []
        more = changed(old, ("metadata.finalizers", ["a.test/x", "a.test/z"]))
        assert judged_update(CLAIM, more, old) == [("Forbidden", "metadata.finalizers")]

    def test_generation_only_grows(self):
        old = changed(claim(), ("metadata.generation", 5))
        assert judged_update(CLAIM, changed(old, ("metadata.generation", 4)), old) == [
            ("Invalid", "metadata.generation")
        ]

    def test_unknown_kinds_need_sound_metadata(self):
        assert judged("Widget.a.test", {"metadata": {"name": "Any Name"}}) == []
        assert judged("Widget.a.test", {"metadata": {"name": "a/b"}}) == [("Invalid", "metadata.name")]
        assert judged("Widget.a.test", {}) == [("Required", "metadata.name")]

    def test_who_must_name_the_version_it_replaces(self):
        assert not allows_unconditional_update("Lease.coordination.k8s.io", "v1")
        assert not allows_unconditional_update("DeviceTaintRule.resource.k8s.io", "v1")
        assert allows_unconditional_update("DeviceTaintRule.resource.k8s.io", "v1beta2")
        assert allows_unconditional_update(CLAIM, "v1")
        assert missing_resource_version().message() == (
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        )
