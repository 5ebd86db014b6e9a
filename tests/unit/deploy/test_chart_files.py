"""Files of the Helm chart that repeat what the code says: the same device classes, drivers and profiles."""

import json
from pathlib import Path

import msgspec
import yaml

from dray.drivers.driver_names import NAME_BY_SHORT_NAME
from dray.drivers.hardware.classes import device_classes
from dray.drivers.shipped import SHIPPED

CHART = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "dray"
KNOWN = yaml.safe_load((CHART / "device-classes.yaml").read_text("utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))


def test_the_charts_device_classes_are_those_of_the_code():
    expected = {found.metadata.name: found.spec for found in device_classes(with_clouds=False)}
    assert set(KNOWN["classes"]) == set(expected)
    for name, spec in expected.items():
        written = KNOWN["classes"][name]
        assert [entry["cel"]["expression"] for entry in written["selectors"]] == [
            entry.cel.expression for entry in spec.selectors
        ]
        assert written.get("extendedResourceName") == spec.extended_resource_name
        assert set(written) <= {"selectors", "extendedResourceName"}


def test_each_driver_has_the_classes_that_the_code_gives_it():
    for short, name in NAME_BY_SHORT_NAME.items():
        made = device_classes(frozenset({name}), with_clouds=False)
        assert KNOWN["drivers"][short] == [found.metadata.name for found in made]
    assert KNOWN["drivers"]["sim"] == [found.metadata.name for found in device_classes(with_clouds=False)]


def test_the_chart_has_every_driver_that_is_shipped():
    assert set(VALUES["drivers"]) == {*SHIPPED, "sim"}
    assert set(KNOWN["drivers"]) == {*SHIPPED, "sim"}
    kinds = SCHEMA["properties"]["driverDefaults"]["properties"]["driver"]["enum"]
    assert set(kinds) == {"", *SHIPPED, "sim"}


def test_every_value_is_in_the_schema_and_every_schema_entry_has_a_default():
    def compare(values, schema, path):
        if not schema.get("properties"):
            return
        assert set(values) <= set(schema["properties"]), path
        assert schema["additionalProperties"] is False, path
        for name, part in schema["properties"].items():
            assert name in values or (path, name) == ("", "global"), (
                f"{path}.{name} has no default in values.yaml"
            )
            if isinstance(values.get(name), dict):
                compare(values[name], part, f"{path}.{name}")

    compare(VALUES, SCHEMA, "")
    allowed = set(SCHEMA["properties"]["driverDefaults"]["properties"])
    assert all(set(settings) <= allowed for settings in VALUES["drivers"].values())


def test_dashboard_and_alerts_are_one_file_each():
    folder = CHART.parents[1] / "observability"
    for name in ("grafana-dashboard.json", "alerts.yaml"):
        assert (folder / name).resolve() == CHART / "observability" / name


def test_no_driver_is_on_unless_an_administrator_says_so():
    assert not any(settings.get("enabled") for settings in VALUES["drivers"].values())
    assert VALUES["driverDefaults"]["enabled"] is False
    assert msgspec.json.encode(VALUES)
