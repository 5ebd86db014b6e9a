"""The examples are good manifests: `dray check` has no errors to report about them."""

from pathlib import Path

import pytest

from dray.api.features import Features
from dray.workbench.lint import lint

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*/manifest.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples_have_neither_errors_nor_warnings(path):
    findings = lint({str(path): path.read_bytes()}, features=Features.everything()).findings
    wrong = [finding for finding in findings if finding.severity != "info"]
    # The example of a rule that taints nothing but counts is about a rule without selector.
    wrong = [finding for finding in wrong if finding.code != "taints-everything"]
    assert [finding.text() for finding in wrong] == []
