"""`dray check`: every mistake that people make in real manifests, found with its line and its repair."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from dray.cli.main import main
from dray.drivers.hardware import load_profile
from dray.sim.hardware import hardware_snapshot
from dray.workbench.lint import CODES, lint
from dray.workbench.lint.selectors import DROPPED


@pytest.fixture(scope="module")
def dgx():
    return hardware_snapshot([(load_profile("dgx-h100"), 1)])


def check(text, against=None, **options):
    return lint({"f.yaml": dedent(text).encode()}, against=against, **options).findings


def codes(text, against=None, **options):
    return [finding.code for finding in check(text, against, **options)]


def claim(request="deviceClassName: gpu.nvidia.com", *, more="", name="c", namespace="default"):
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{{request}}}
{more}"""


def selecting(expression):
    return claim(
        f"deviceClassName: gpu.nvidia.com, selectors: [{{cel: {{expression: {json.dumps(expression)}}}}}]"
    )


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default}
spec:
  resourceClaims:
  - {name: gpu, resourceClaimName: c}
  containers:
  - name: main
    image: busybox
    resources: {claims: [{name: gpu}]}
"""


def test_a_sound_manifest_has_no_findings(dgx):
    assert check(claim() + "---\n" + POD) == []
    assert check(claim() + "---\n" + POD, dgx) == []


# --- syntax and shape -------------------------------------------------------------------------


def test_broken_yaml_is_a_finding_with_its_line():
    (finding,) = check("kind: Pod\nspec:\n  a: [1\n  b: 2\n")
    assert (finding.code, finding.line) == ("syntax", 4)


def test_broken_json_is_a_finding_with_its_line():
    (finding,) = check('{"kind": "Pod",\n "spec": {,}}')
    assert (finding.code, finding.line) == ("syntax", 2)


def test_json_with_tabs_has_lines_too():
    text = '{\n\t"apiVersion": "v1",\n\t"kind": "Pod",\n\t"metadata": {"name": "x", "labelz": {}},\n\t"spec": {"containers": [{"name": "a", "image": "b"}]}\n}'
    (finding,) = check(text)
    assert (finding.code, finding.line, finding.hint) == ("unknown-field", 4, "did you mean labels?")


def test_a_document_without_kind_is_no_object():
    assert codes("just: text") == ["not-an-object"]
    assert codes("42") == ["not-an-object"]


def test_empty_documents_and_comments_are_nothing():
    assert check("---\n# only a comment\n---\n") == []


def test_lists_are_checked_item_by_item_with_lines_of_their_own():
    text = "apiVersion: v1\nkind: List\nitems:\n" + "\n".join(
        "- " + line if index == 0 else "  " + line
        for index, line in enumerate(claim("deviceClassName: x, cuont: 2").splitlines())
    )
    (finding,) = check(text)
    assert (finding.code, finding.line, finding.path) == (
        "unknown-field",
        11,
        "spec.devices.requests[0].exactly.cuont",
    )
    assert finding.hint == "did you mean count?"


def test_flat_requests_of_v1beta1_in_a_v1_manifest_are_one_finding_and_the_rest_is_still_checked():
    text = """\
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaim
    metadata: {name: c, namespace: default}
    spec:
      devices:
        requests:
        - name: gpu
          deviceClassName: gpu.nvidia.com
          count: 2
          selectors:
          - cel: {expression: 'device.capacity["gpu.nvidia.com"].memory > quantity("40Gi")'}
    """
    shape, selector = check(text)
    assert (shape.code, shape.line) == ("old-shape", 7)
    assert "exactly" in shape.hint
    assert (selector.code, selector.line) == ("cel-compile", 11)


def test_the_shape_of_v1_in_a_v1beta1_manifest_is_recognised():
    text = claim().replace("resource.k8s.io/v1", "resource.k8s.io/v1beta1")
    assert "new-shape" in codes(text)


def test_devices_under_basic_in_v1_are_recognised():
    text = """\
    apiVersion: resource.k8s.io/v1
    kind: ResourceSlice
    metadata: {name: s}
    spec:
      driver: d.example.com
      nodeName: n
      pool: {name: n, generation: 1, resourceSliceCount: 1}
      devices:
      - name: gpu-0
        basic: {attributes: {model: {string: x}}}
    """
    assert codes(text) == ["old-shape"]


def test_a_sound_v1beta1_manifest_only_gets_a_note():
    text = claim().replace("resource.k8s.io/v1", "resource.k8s.io/v1beta1")
    text = text.replace("exactly: {deviceClassName: gpu.nvidia.com}", "deviceClassName: gpu.nvidia.com")
    assert [(finding.code, finding.severity) for finding in check(text)] == [("old-version", "info")]


def test_a_request_without_exactly_is_told_what_to_write():
    (finding,) = check(claim().replace("      exactly: {deviceClassName: gpu.nvidia.com}\n", ""))
    assert finding.code == "invalid"
    assert "exactly: {deviceClassName" in finding.hint


def test_wrong_types_are_all_found_at_once():
    text = claim("deviceClassName: 5, count: many, adminAccess: 'yes'")
    assert codes(text).count("wrong-type") == 3


def test_malformed_values_are_found_where_they_are():
    text = claim("deviceClassName: gpu.nvidia.com, count: 99999999999999999999")
    text = text.replace("{name: c,", "{creationTimestamp: noon, name: c,")
    found = [finding for finding in check(text) if finding.code == "wrong-type"]
    assert [(finding.line, finding.path) for finding in found] == [
        (3, "metadata.creationTimestamp"),
        (8, "spec.devices.requests[0].exactly.count"),
    ]
    assert "must be a time" in found[0].message
    assert found[1].message == "99999999999999999999 does not fit in 64 bits"


def test_duplicate_fields_are_found():
    assert "duplicate-field" in codes(
        claim().replace("    - name: gpu\n", "    - name: gpu\n      name: other\n")
    )


@pytest.mark.parametrize(
    ("api_version", "hint"),
    [("resource.k8s.io/v2", "use resource.k8s.io/v1"), ("v1", "use apiVersion: resource.k8s.io/v1")],
)
def test_unknown_versions_are_told_the_right_one(api_version, hint):
    (finding,) = check(claim().replace("resource.k8s.io/v1", api_version))
    assert finding.code == "unknown-version"
    assert hint in finding.hint


def test_custom_resources_are_searched_for_pods():
    text = """\
    apiVersion: example.com/v1
    kind: TrainingRun
    metadata: {name: t}
    spec:
      workers:
        template:
          spec:
            containers:
            - name: main
              image: x
              resources: {claims: [{name: gpu}]}
    """
    found = check(text)
    assert [finding.code for finding in found] == ["not-checked", "invalid"]
    assert found[1].path == "spec.workers.template.spec.containers[0].resources.claims[0]"
    assert found[1].line == 11


# --- selectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "code", "hint"),
    [
        ('device.capacity["gpu.nvidia.com"].memory > quantity("40Gi")', "cel-compile", "compareTo(quantity("),
        ('device.capacity["gpu.nvidia.com"].memory >= "40Gi"', "cel-compile", "compareTo(quantity("),
        (
            'device.attributes["gpu.nvidia.com"].driverVersion > semver("550.0.0")',
            "cel-compile",
            "compareTo(semver(",
        ),
        ('device.attributes["gpu.nvidia.com/model"] == "x"', "cel-compile", 'attributes["<domain>"].<name>'),
        ('device.atributes["x"].y == "1"', "cel-compile", "a device has .driver"),
        ('device.attributes["a.b"].x = "1"', "cel-compile", "== instead of ="),
        ('device.driver == "a" and true', "cel-compile", "&&"),
        ("gpu.model == 'x'", "cel-compile", "`device`"),
        ('device.attributes["gpu.nvidia.com"].driverVersion == "550.1.2"', "version-as-text", 'semver("550.1.2")'),
        ('device.attributes["x.example.com"].firmwareVersion == "1.2"', "version-as-text", 'semver("1.2.0")'),
        ('device.attributes["gpu.nvidia.com"].index == 0', "dropped-attribute", "uuid"),
        ('device.attributes["gpu.nvidia.com"].pcieBusID == "x"', "dropped-attribute", "pciBusID"),
        ('device.attributes["gpu.amd.com"].cardIndex == 1', "dropped-attribute", "pciBusID"),
        ('device.attributes["dra.net"].cloudNetwork == "n"', "dropped-attribute", "networkName"),
        ('device.attributes["dra.net"].name == "eth1"', "dropped-attribute", "ifName"),
        ('device.attributes["gpu.nvidia.com"].model', "cel-not-bool", "== 'value'"),
    ],
)  # fmt: skip
def test_mistakes_in_selectors_come_with_their_repair(expression, code, hint):
    found = check(selecting(expression))
    assert [finding.code for finding in found] == [code]
    assert hint in found[0].hint


@pytest.mark.parametrize(
    "expression",
    [
        'has(device.attributes["gpu.nvidia.com"].index) && device.attributes["gpu.nvidia.com"].index == 0',
        'device.attributes["gpu.nvidia.com"].?index.orValue(0) == 0',
        'device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("550.0.0")) >= 0',
        'device.attributes["x.example.com"].productVersion == "Pro"',
    ],
)
def test_guarded_and_right_selectors_are_left_alone(expression):
    assert check(selecting(expression)) == []


def test_the_line_of_a_mistake_inside_a_block_is_found():
    text = """\
    apiVersion: resource.k8s.io/v1
    kind: DeviceClass
    metadata: {name: d}
    spec:
      selectors:
      - cel:
          expression: |-
            device.driver == "x" &&
            device.capacity["x"].memory > 3
    """
    (finding,) = check(text)
    assert (finding.code, finding.line) == ("cel-compile", 9)


@pytest.mark.parametrize(("length", "expected"), [(20, []), (40, ["warning"]), (70, ["error"])])
def test_dear_selectors_are_warned_about_and_those_beyond_the_limit_refused(length, expected):
    numbers = f"[{', '.join(map(str, range(length)))}]"
    expression = f"{numbers}.exists(x, {numbers}.exists(y, {numbers}.exists(z, x == y + z)))"
    found = check(selecting(expression))
    assert [finding.severity for finding in found] == expected
    assert {finding.code for finding in found} <= {"cel-cost"}


# --- validation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [("pcieRoot", "write resource.kubernetes.io/pcieRoot"), ("parentUUID", "write <driver>/parentUUID")],
)
def test_match_attribute_without_domain_is_told_the_domain(name, hint):
    (finding,) = check(claim(more=f"    constraints:\n    - matchAttribute: {name}\n"))
    assert (finding.code, finding.line, finding.hint) == ("invalid", 10, hint)


def test_a_claim_of_a_container_that_the_pod_does_not_have_is_found():
    found = check(POD.replace("claims: [{name: gpu}]", "claims: [{name: gpu}, {name: nic}]"))
    assert [(finding.code, finding.line) for finding in found] == [("invalid", 10)]
    assert "spec.resourceClaims" in found[0].hint


def test_too_many_requests_are_refused():
    requests = "".join(
        f"    - {{name: r{n}, exactly: {{deviceClassName: gpu.nvidia.com}}}}\n" for n in range(33)
    )
    text = claim().partition("    - name")[0] + requests
    assert "invalid" in codes(text)


def test_fields_of_features_that_are_off_are_warned_about_and_the_gate_silences_it():
    text = claim(
        "deviceClassName: gpu.nvidia.com, derivedAttributes: [{name: a.example.com/x, expression: device.driver}]"
    )
    assert "feature-off" in codes(text)
    from dray.api.features import Features

    assert "feature-off" not in codes(text, features=Features.everything())


# --- habits ---------------------------------------------------------------------------------------


UNUSED = POD.replace("    resources: {claims: [{name: gpu}]}\n", "")


def test_a_claim_that_no_container_uses_is_warned_about():
    (found,) = check(f"{UNUSED}---\n{claim()}")
    assert (found.code, found.severity) == ("claim-unused", "warning")


def test_a_claim_of_unknown_hardware_that_no_container_uses_is_only_mentioned():
    (found,) = check(UNUSED)
    assert (found.code, found.severity) == ("claim-unused", "info")


@pytest.mark.parametrize(
    "device_class", ["dra.net", "sriovnetwork.k8snetworkplumbingwg.io", "mrdma.google.com"]
)
def test_a_network_claim_belongs_to_the_pod_and_needs_no_container(device_class):
    assert codes(f"{UNUSED}---\n{claim(f'deviceClassName: {device_class}')}") == []


def test_a_network_class_is_known_by_the_driver_that_its_selector_names():
    own = """\
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: fast-nics}
spec:
  selectors: [{cel: {expression: "device.driver == 'dra.net' && has(device.attributes['dra.net'].rdma)"}}]
"""
    assert codes(f"{UNUSED}---\n{claim('deviceClassName: fast-nics')}{own}") == []


BOTH = POD.replace("{claims: [{name: gpu}]}", "{claims: [{name: gpu}], limits: {nvidia.com/gpu: 1}}")


def test_a_pod_that_names_its_node_is_warned_about():
    assert codes(POD.replace("spec:\n", "spec:\n  nodeName: n1\n", 1)) == ["node-name"]


def test_asking_by_claim_and_by_extended_resource_is_warned_about():
    assert codes(f"{BOTH}---\n{claim()}") == ["double-request"]


def test_other_hardware_beside_a_claim_is_not_asked_for_twice():
    assert codes(f"{BOTH}---\n{claim('deviceClassName: dra.net')}") == []
    assert codes(BOTH) == []  # what the claim asks for is not known


def test_a_class_of_an_extended_resource_asks_for_the_same_hardware():
    own = """\
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: npus}
spec: {extendedResourceName: example.com/npu}
"""
    text = BOTH.replace("nvidia.com/gpu", "example.com/npu")
    assert codes(f"{text}---\n{claim('deviceClassName: npus')}{own}") == ["double-request"]


def test_a_taint_rule_without_selector_is_warned_about():
    text = """\
    apiVersion: resource.k8s.io/v1
    kind: DeviceTaintRule
    metadata: {name: r}
    spec:
      taint: {key: example.com/broken, effect: NoExecute}
    """
    assert "taints-everything" in codes(text)


# --- references -----------------------------------------------------------------------------------


def test_a_claim_in_another_namespace_is_found_offline():
    (finding,) = check(claim(namespace="team") + "---\n" + POD)
    assert (finding.code, finding.line) == ("other-namespace", 15)
    assert "team" in finding.message


def test_a_claim_given_as_template_is_recognised():
    found = check(claim() + "---\n" + POD.replace("resourceClaimName", "resourceClaimTemplateName"))
    assert [finding.code for finding in found] == ["missing-object"]
    assert found[0].hint == "write resourceClaimName: c"


def test_absent_claims_are_an_error_only_when_the_cluster_is_known(dgx):
    assert check(POD) == []
    assert "missing-object" in codes(POD, dgx)


def test_a_mistyped_claim_name_is_found_offline():
    (finding,) = check(claim(name="training-gpu") + "---\n" + POD.replace("resourceClaimName: c", "resourceClaimName: trainig-gpu"))  # fmt: skip
    assert (finding.code, finding.hint) == ("missing-object", "did you mean training-gpu?")


def test_a_container_that_asks_for_an_unknown_request_is_found():
    text = claim() + "---\n" + POD.replace("claims: [{name: gpu}]", "claims: [{name: gpu, request: gpus}]")
    (finding,) = check(text)
    assert (finding.code, finding.hint) == ("unknown-request", "did you mean gpu?")


def test_references_of_deployments_are_followed():
    text = """\
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: d, namespace: default}
    spec:
      selector: {matchLabels: {a: b}}
      template:
        metadata: {labels: {a: b}}
        spec:
          resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]
          containers: [{name: m, image: x, resources: {claims: [{name: gpu}]}}]
    ---
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaimTemplate
    metadata: {name: t, namespace: team}
    spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
    """
    (finding,) = check(text)
    assert (finding.code, finding.line) == ("other-namespace", 9)


def test_admin_access_needs_a_namespace_that_allows_it():
    text = claim("deviceClassName: gpu.nvidia.com, adminAccess: true, allocationMode: All")
    plain = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n---\n"
    labelled = plain.replace("name: default", "name: default, labels: {resource.kubernetes.io/admin-access: 'true'}")  # fmt: skip
    assert codes(plain + text) == ["admin-namespace"]
    assert codes(labelled + text) == []


# --- against a cluster ----------------------------------------------------------------------------


def test_an_unknown_class_is_told_the_nearest_one(dgx):
    (finding,) = check(claim("deviceClassName: gpu.nvidia.con"), dgx)
    assert (finding.code, finding.hint) == ("unknown-class", "did you mean gpu.nvidia.com?")


def test_an_attribute_that_no_device_publishes_is_told_the_nearest_names(dgx):
    (finding,) = check(selecting('device.attributes["gpu.nvidia.com"].prodctName == "x"'), dgx)
    assert (finding.code, finding.severity) == ("unknown-attribute", "error")
    assert "gpu.nvidia.com/productName" in finding.hint


def test_a_guarded_unknown_attribute_is_only_a_warning(dgx):
    found = check(selecting('device.attributes["gpu.nvidia.com"].?prodctName.orValue("") == "x"'), dgx)
    assert [(finding.code, finding.severity) for finding in found][:1] == [("unknown-attribute", "warning")]


def test_a_standard_attribute_under_the_drivers_domain_is_told_where_it_is(dgx):
    (finding,) = check(claim(more="    constraints:\n    - matchAttribute: gpu.nvidia.com/pcieRoot\n"), dgx)
    assert finding.code == "unknown-attribute"
    assert "resource.kubernetes.io/pcieRoot" in finding.hint


def test_a_selector_that_matches_nothing_is_told_the_nearest_value(dgx):
    found = check(selecting('device.attributes["gpu.nvidia.com"].productName == "H100"'), dgx)
    assert found[0].code == "matches-nothing"
    assert "nearest: 'NVIDIA H100 80GB HBM3'" in found[0].hint


def test_a_version_compared_with_text_is_certain_against_devices(dgx):
    found = check(selecting('device.attributes["gpu.nvidia.com"].driverVersion >= "550"'), dgx)
    assert ("version-as-text", "error") in [(finding.code, finding.severity) for finding in found]


def test_a_class_that_selects_nothing_is_warned_about(dgx):
    text = """\
    apiVersion: resource.k8s.io/v1
    kind: DeviceClass
    metadata: {name: amd}
    spec: {selectors: [{cel: {expression: device.driver == "gpu.amd.com"}}]}
    """
    assert codes(text, dgx) == ["matches-nothing"]
    assert "matches-nothing" in codes(dedent(text) + "---\n" + claim("deviceClassName: amd"), dgx)


def test_a_request_that_never_fits_says_what_is_there(dgx):
    (finding,) = check(claim("deviceClassName: gpu.nvidia.com, count: 9"), dgx)
    assert (finding.code, finding.path) == ("never-fits", "spec.devices")
    assert "wants 9" in finding.message
    assert "8 of" in finding.message


def test_a_pod_whose_claims_fit_only_apart_never_fits(dgx):
    pod = POD.replace(
        "  - {name: gpu, resourceClaimName: c}\n",
        "  - {name: gpu, resourceClaimName: c}\n  - {name: more, resourceClaimName: d}\n",
    ).replace("[{name: gpu}]", "[{name: gpu}, {name: more}]")
    text = "---\n".join(
        [claim("deviceClassName: gpu.nvidia.com, count: 5", name=name) for name in ("c", "d")] + [pod]
    )
    assert codes(text, dgx) == ["never-fits"]


def test_what_others_hold_does_not_count_as_never(dgx):
    assert codes(claim("deviceClassName: gpu.nvidia.com, count: 8"), dgx) == []


# --- the command ----------------------------------------------------------------------------------


def write(folder, text):
    path = Path(folder) / "m.yaml"
    path.write_text(text)
    return str(path)


def test_the_exit_code_tells_findings_from_none(tmp_path, capsys):
    assert main(["check", write(tmp_path, claim())]) == 0
    assert main(["check", write(tmp_path, selecting("device.x == 1"))]) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path}/m.yaml:8:" in out
    assert "[cel-compile]" in out


def test_json_has_every_finding(tmp_path, capsys):
    assert main(["check", "--output", "json", write(tmp_path, selecting("device.x == 1"))]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"] == {"error": 1, "warning": 0, "info": 0}
    assert report["findings"][0]["code"] == "cel-compile"
    assert report["findings"][0]["line"] == 8


def test_against_takes_the_name_of_a_hardware_profile(tmp_path, capsys):
    path = write(tmp_path, claim("deviceClassName: gpu.nvidia.com, count: 9"))
    assert main(["check", path, "--against", "dgx-h100"]) == 1
    assert "[never-fits]" in capsys.readouterr().out
    assert main(["check", path, "--against", "dgx-h100", "--ignore", "never-fits"]) == 0


def test_folders_are_searched(tmp_path, capsys):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", claim())
    assert main(["check", str(tmp_path)]) == 0
    assert "1 object checked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "nothing to check"),
        (["check", "/no/such/file"], "No such file"),
        (["check", "--ignore", "nonsense", "x"], "no code"),
        (["check", "--feature-gates", "DRAAdminAcces=true", "/dev/null"], "did you mean DRAAdminAccess"),
        (["check", "/dev/null", "--against", "/no/such"], "does not exist"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_the_codes_can_be_listed(capsys):
    assert main(["check", "--codes"]) == 0
    listed = capsys.readouterr().out
    assert all(code in listed for code in CODES)


def claim_with_config(driver, body):
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: gpu}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{deviceClassName: {driver}}}
    config:
    - opaque:
        driver: {driver}
        parameters:
{body}"""


def test_an_opaque_config_that_its_driver_refuses_is_found_with_its_line():
    body = """\
          apiVersion: resource.nvidia.com/v1beta1
          kind: GpuConfig
          sharing:
            strategy: TimeSlicing
            timeSlicingConfig:
              intervall: Long
"""
    report = lint({"claim.yaml": claim_with_config("gpu.nvidia.com", body).encode()})
    (finding,) = [each for each in report.findings if each.code == "opaque-config"]
    assert (finding.severity, finding.line, finding.column) == ("error", 18, 15)
    assert 'unknown field "sharing.timeSlicingConfig.intervall"' in finding.message
    good = body.replace("intervall", "interval")
    for text in (claim_with_config("gpu.nvidia.com", good), claim_with_config("other.example.org", body)):
        assert "opaque-config" not in codes(text)


def test_the_config_of_a_class_is_checked_too():
    text = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec:
  config:
  - opaque:
      driver: gpu.example.com
      parameters: {apiVersion: gpu.resource.example.com/v1alpha1, kind: GpuConfig, sharing: {strategy: MPS}}
"""
    assert "opaque-config" in codes(text)


# --- versions that are gone, and what is not ours -------------------------------------------------


def test_a_classic_claim_is_an_error_that_names_each_field_that_is_gone():
    findings = check("""\
        apiVersion: resource.k8s.io/v1alpha2
        kind: ResourceClaimTemplate
        metadata: {name: t}
        spec:
          spec:
            resourceClassName: gpu.example.com
            parametersRef: {apiGroup: example.com, kind: GpuParameters, name: p}
        """)
    assert [(found.code, found.path) for found in findings] == [
        ("removed-api", "apiVersion"),
        ("removed-api", "spec.spec.resourceClassName"),
        ("removed-api", "spec.spec.parametersRef"),
    ]
    assert "deviceClassName" in findings[1].hint
    assert "opaque" in findings[2].hint


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2", "v1alpha3", "v1alpha4"])
def test_objects_of_alpha_versions_are_errors_with_the_way_out(version):
    (found,) = check(claim().replace("resource.k8s.io/v1\n", f"resource.k8s.io/{version}\n"))
    assert (found.code, found.severity) == ("removed-api", "error")
    assert "resource.k8s.io/v1;" in found.hint


def test_a_resource_class_is_an_error_with_the_kind_that_replaced_it():
    (found,) = check(
        "{apiVersion: resource.k8s.io/v1alpha2, kind: ResourceClass, metadata: {name: c}, driverName: d}"
    )
    assert found.code == "removed-api"
    assert "DeviceClass" in found.hint


def test_the_source_of_a_pods_claim_is_one_finding_with_its_repair():
    text = POD.replace("{name: gpu, resourceClaimName: c}", "{name: gpu, source: {resourceClaimName: c}}")
    (found,) = check(text)
    assert (found.code, found.path) == ("old-shape", "spec.resourceClaims[0]")
    assert "out of `source`" in found.hint


def test_a_missing_api_version_is_named_and_the_rest_is_checked():
    assert codes(POD.replace("apiVersion: v1\n", "").replace("image:", "imag:")) == [
        "no-api-version",
        "invalid",  # the image is missing
        "unknown-field",
    ]


def test_the_same_kind_in_somebody_elses_group_is_not_judged_but_its_pods_are():
    text = """\
        apiVersion: batch.example.com/v1alpha1
        kind: Job
        metadata: {name: j}
        spec:
          minAvailable: 2
          tasks:
          - replicas: 2
            template:
              spec:
                containers:
                - name: main
                  image: busybox
                  imagePullPolice: Always
        """
    findings = check(text)
    assert [(found.severity, found.code) for found in findings] == [
        ("info", "not-checked"),
        ("error", "unknown-field"),
    ]
    assert findings[1].path == "spec.tasks[0].template.spec.containers[0].imagePullPolice"


def test_fields_beside_containers_of_a_custom_kind_are_its_own_business():
    text = """\
        apiVersion: serving.example.com/v1
        kind: Runtime
        metadata: {name: r}
        spec:
          supportedFormats: [{name: onnx}]
          protocolVersions: [v2]
          containers:
          - name: main
            volumeMounts: [{name: made-by-the-controller, mountPath: /models}]
            startupProbe: {failureThreshold: 10}
        """
    assert codes(text) == ["not-checked"]
    assert codes(text.replace("supportedFormats", "resourceClaim")) == ["not-checked", "unknown-field"]


def test_claims_of_pods_in_custom_kinds_are_followed():
    text = f"""\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {{name: j, namespace: default}}
spec:
  mpiReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          resourceClaims: [{{name: gpu, resourceClaimName: c}}]
          containers:
          - {{name: main, image: busybox, resources: {{claims: [{{name: gpu, request: gpus}}]}}}}
---
{claim()}"""
    (found,) = [found for found in check(text) if found.severity == "error"]
    assert found.code == "unknown-request"
    assert found.path.startswith("spec.mpiReplicaSpecs.Worker.template.spec.containers[0]")


@pytest.mark.parametrize(
    "text",
    [
        "{{- if .Values.enabled }}\nkind: Pod\n{{- end }}\n",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n",
    ],
)
def test_a_helm_template_is_recognised(text):
    (found,) = check(text)
    assert found.code == "template"
    assert "helm template" in found.hint


def test_braces_inside_values_are_not_a_template():
    text = POD.replace("image: busybox", "image: busybox\n    args: ['{{ workflow.name }}']")
    assert codes(text) == []


@pytest.mark.parametrize("profile", ["dgx-h100", "mi300x", "intel-flex170", "dranet"])
def test_no_attribute_that_a_model_publishes_is_called_dropped(profile):
    pools = load_profile(profile).pools("n")
    names = {
        tuple(name.split("/", 1)) if "/" in name else (pool.driver, name)
        for pool in pools
        for device in pool.devices
        for name in device.attributes
    }
    assert not names & set(DROPPED)


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("pod-{{.Index}}", "{{.Index}} was not filled in: this is a Go template", "helm template"),
        ("pod-${INDEX}", "${INDEX} was not filled in: this is a template with shell variables", "envsubst"),
        ("pod-__INDEX__", "__INDEX__ was not filled in", "put in the value"),
        ("<your-name>", "<your-name> was not filled in", "put in the value"),
    ],
)
def test_a_placeholder_that_parses_as_yaml_is_called_a_template(name, words, hint):
    (found,) = check(POD.replace("name: p,", f'name: "{name}",'))
    assert (found.code, found.line) == ("template", check(POD.replace("name: p,", "name: P_,"))[0].line)
    assert words in found.message
    assert hint in found.hint


def test_a_placeholder_in_the_version_or_where_a_number_belongs_is_one_too():
    assert codes(POD.replace("apiVersion: v1", "apiVersion: v${N}")) == ["template"]
    assert codes(POD.replace("spec:", "spec:\n  priority: ${PRIORITY}")) == ["template"]


def test_operators_of_an_expression_are_no_placeholder():
    assert codes(selecting("device.driver <b && b> )")) == ["cel-compile"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("kind: Pod\n...\nspec: {}\n", "syntax", "text that was left out"),
        ("kind: Pod\nspec:\n  ...\n  nodeName: n\n", "syntax", "text that was left out"),
        ("kind: Pod\nspec:\n  a: b\n  ${MORE}\nc: d\n", "template", "${MORE} was not filled in"),
    ],
)
def test_a_text_that_cannot_be_parsed_before_it_is_filled_in_says_so(text, code, words):
    (found,) = check(text)
    assert found.code == code
    assert words in found.message


@pytest.mark.parametrize(
    ("requests", "code"),
    [
        ("[{name: a, exactly: {deviceClassName: tpu.google.com, count: 4}}]", "partial-claim"),
        ("[{name: a, exactly: {deviceClassName: tpu.google.com}}]", "partial-claim"),
        ("[{name: a, exactly: {deviceClassName: tpu.google.com, count: 8}}]", ""),
        ("[{name: a, exactly: {deviceClassName: tpu.google.com, allocationMode: All}}]", ""),
        (
            "[{name: a, exactly: {deviceClassName: tpu.google.com, count: 4}},"
            " {name: b, exactly: {deviceClassName: tpu.google.com, count: 4}}]",
            "",
        ),
    ],
)
def test_a_claim_for_a_part_of_a_tpu_host_is_named_before_its_driver_refuses_it(requests, code):
    head = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec:\n  devices:\n"
    text = f"{head}    requests: {requests}\n"
    assert codes(text, hardware_snapshot([(load_profile("tpu-v5e"), 1)])) == ([code] if code else [])
    assert codes(text) == []  # how many chips a host has is not known


def test_a_namespace_of_a_cluster_scoped_object_is_ignored_as_the_server_does():
    assert (
        codes("""\
        apiVersion: resource.k8s.io/v1
        kind: DeviceClass
        metadata: {name: c, namespace: n}
        spec: {}
        """)
        == []
    )


def test_a_field_of_a_gate_that_is_off_is_one_finding():
    text = """\
        apiVersion: resource.k8s.io/v1
        kind: ResourceSlice
        metadata: {name: s}
        spec:
          driver: d.example.com
          nodeName: n
          pool: {name: n, resourceSliceCount: 1}
          devices: [{name: a, attributes: {roots: {strings: [x, y]}}}]
        """
    assert codes(text) == ["feature-off"]
