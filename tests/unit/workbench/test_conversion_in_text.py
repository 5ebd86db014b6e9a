"""Manifests of former versions become v1, inside their text: comments stay, and what is written is what was meant."""

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.api.parsing import parse_yaml_documents
from dray.cli.main import main
from dray.workbench.conversion import convert_objects
from dray.workbench.conversion.yaml_editing import rewritten
from dray.workbench.conversion.yaml_texts import as_yaml
from dray.workbench.lint import lint

FLAT = """\
# which devices
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata:
  name: c  # the name
spec:
  devices:
    requests:
    - name: gpu
      # by class
      deviceClassName: gpu.example.com
      selectors:  # only large ones
      - cel:
          expression: |-
            device.driver == "gpu.example.com"
"""
SLICE = """\
apiVersion: resource.k8s.io/v1alpha3
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.example.com
  nodeName: n
  pool: {name: n, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    basic:  # of old
      attributes:
        # kept
        model: {string: x}
      capacity:
        memory: 80Gi
"""
CLASSIC = """\
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClass
metadata: {name: gpu.example.com}
driverName: gpu.example.com
---
apiVersion: resource.k8s.io/v1alpha2
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    resourceClassName: gpu.example.com
    parametersRef: {apiGroup: gpu.example.com, kind: GpuParameters, name: big}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims:
  - name: gpu
    source:
      # from a template
      resourceClaimTemplateName: t
  containers:
  - {name: main, image: x, resources: {claims: [{name: gpu}]}}
"""


def converted(text):
    """Return the edited text and what could not be carried over."""
    conversion = convert_objects(parse_yaml_documents(text.encode()))
    edited = rewritten(text, [[result.obj for result in group] for group in conversion.groups])
    assert edited is not None
    return edited, conversion.lost


def errors(text):
    return [finding for finding in lint({"f": text.encode()}).findings if finding.severity == "error"]


def comments(text):
    return [line[line.index("#") :] for line in text.splitlines() if "#" in line]


@pytest.mark.parametrize("text", [FLAT, FLAT.replace("v1beta1", "v1alpha3"), SLICE])
def test_former_versions_become_v1_and_keep_their_comments(text):
    edited, lost = converted(text)
    assert lost == []
    assert errors(edited) == []
    assert "apiVersion: resource.k8s.io/v1\n" in edited
    assert [each for each in comments(text) if each not in comments(edited)] in ([], ["# of old"])
    again, _ = converted(edited)
    assert again == edited


def test_the_second_beta_changes_its_name_only():
    text = FLAT.replace("v1beta1", "v1beta2").replace(
        "      deviceClassName", "      exactly:\n        deviceClassName"
    )
    text = text.partition("      selectors")[0]
    edited, _ = converted(text)
    assert edited == text.replace("v1beta2", "v1")


def test_a_request_is_indented_below_exactly():
    edited, _ = converted(FLAT)
    assert (
        "      exactly:\n        deviceClassName: gpu.example.com\n        selectors:  # only large ones\n"
        in edited
    )


def test_classic_claims_become_requests_and_parameters_are_told():
    edited, lost = converted(CLASSIC)
    assert errors(edited) == []
    assert any("GpuParameters big" in text for text in lost)
    device_class, template, pod = parse_yaml_documents(edited.encode())
    assert device_class["kind"] == "DeviceClass"
    assert 'device.driver == "gpu.example.com"' in edited
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.example.com"}
    assert pod["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "t"}]


def test_a_classic_claim_without_class_stays_and_is_told():
    text = CLASSIC.split("---\n")[1].replace("    resourceClassName: gpu.example.com\n", "")
    edited, lost = converted(text)
    assert edited == text
    assert "resourceClassName" in lost[0]


def test_a_field_that_is_gone_is_told():
    _, lost = converted(
        FLAT.replace("v1beta1", "v1alpha3").replace("  devices:\n", "  controller: x\n  devices:\n", 1)
    )
    assert "controller" in lost[0]


# --- the command --------------------------------------------------------------------------------

DEPLOYMENT = """\
# serves the model
apiVersion: apps/v1
kind: Deployment
metadata:
  name: d
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers:
      - resources:
          limits:
            nvidia.com/gpu: 2
        name: main  # the only one
        image: x
"""


def test_in_place_changes_the_file_and_keeps_comments_and_rights(tmp_path, capsys):
    path = tmp_path / "d.yaml"
    path.write_text(DEPLOYMENT)
    path.chmod(0o640)
    assert main(["convert", "--in-place", str(path)]) == 0
    text = path.read_text()
    assert comments(text) == comments(DEPLOYMENT)
    assert "nvidia.com/gpu:" not in text
    assert errors(text) == []
    assert path.stat().st_mode & 0o777 == 0o640
    assert capsys.readouterr().out == ""
    before = path.stat().st_mtime_ns
    assert main(["convert", "--in-place", str(path)]) == 0  # nothing to do
    assert path.stat().st_mtime_ns == before


def test_a_diff_shows_only_what_changes(tmp_path, capsys):
    path = tmp_path / "d.yaml"
    path.write_text(DEPLOYMENT)
    assert main(["convert", "--diff", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "-            nvidia.com/gpu: 2\n" in shown
    assert "-# serves the model" not in shown
    assert path.read_text() == DEPLOYMENT


def test_json_stays_json_in_place(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(
        '{"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceClass", "metadata": {"name": "x"}}'
    )
    assert main(["convert", "--in-place", str(path)]) == 0
    assert '"resource.k8s.io/v1"' in path.read_text()


@pytest.mark.parametrize("words", [["--in-place", "--diff"], ["--in-place", "-o", "json"]])
def test_flags_that_exclude_each_other(words, tmp_path, capsys):
    path = tmp_path / "d.yaml"
    path.write_text(DEPLOYMENT)
    assert main(["convert", *words, str(path)]) == 2
    assert "hint:" in capsys.readouterr().err


def test_standard_input_cannot_be_changed_in_place():
    assert main(["convert", "--in-place", "-"]) == 2


def test_what_cannot_be_edited_is_written_anew_and_told(tmp_path, capsys):
    path = tmp_path / "l.yaml"
    item = "- " + DEPLOYMENT.partition("\n")[2].replace("\n", "\n  ").rstrip()
    path.write_text(f"apiVersion: v1\nkind: List\nitems:\n# one\n{item}\n")
    assert main(["convert", str(path)]) == 0
    shown = capsys.readouterr()
    assert "comments could not be kept" in shown.err
    assert errors(shown.out) == []


# --- editing in general --------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "long-name"])
scalars = st.one_of(
    st.integers(-5, 5), st.booleans(), st.none(), st.sampled_from(["x", "y: z", "# no", "", "l1\nl2"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(names, values, min_size=1, max_size=4)


@given(objects, objects, st.booleans())
def test_an_edit_is_what_was_wanted_or_nothing(old, new, with_comments):
    text = as_yaml(old)
    if with_comments:
        text = dedent(f"# first\n{text}# last\n")
    edited = rewritten(text, [[new]])
    if edited is not None:
        (found,) = parse_yaml_documents(edited.encode())
        assert found == new


@given(objects, st.lists(objects, min_size=1, max_size=3))
def test_the_same_objects_leave_the_text_alone(first, more):
    text = "---\n".join(as_yaml(obj) for obj in [first, *more])
    assert rewritten(text, [[obj] for obj in [first, *more]]) == text
