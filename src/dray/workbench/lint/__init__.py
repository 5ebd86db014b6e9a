"""Check manifests before they reach a cluster.

    report = lint({"claim.yaml": data}, against=snapshot)
    for finding in report.findings: print(finding.text())

The order is the server's: syntax, shape, defaults, conversion, validation. Then what
a server cannot say: mistakes that are valid, references that lead nowhere, selectors
that match nothing, requests that never fit. Without a cluster only what is certain (or
well known) offline is reported. Reading files is the caller's part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dray.api.features import Features
from dray.api.json_types import JsonObject
from dray.sim.snapshot import Snapshot
from dray.workbench.lint.documents import Document, SyntaxProblem, read_documents
from dray.workbench.lint.findings import CODES, ERROR, INFO, WARNING, Finding, Problem, error
from dray.workbench.lint.fitting import Devices, Fitting, check_selectors
from dray.workbench.lint.objects import Judged, judge, value_at
from dray.workbench.lint.placeholders import from_placeholder, unparsed
from dray.workbench.lint.references import Known, check_class_extended, check_references
from dray.workbench.workload_pods import templates_of

__all__ = ["CODES", "ERROR", "INFO", "WARNING", "Finding", "Report", "lint"]

_RENDER = "values of Helm and patches of kustomize are not manifests: check what `helm template` or `kubectl kustomize` prints"
_HOPELESS = frozenset({"matches-nothing", "unknown-attribute"})  # warnings that say all about fitting, too


@dataclass(slots=True)
class Report:
    """All findings, in the order of files and lines."""

    findings: list[Finding] = field(default_factory=list)
    objects: int = 0

    def counts(self) -> dict[str, int]:
        """Return how many findings there are of each severity."""
        counted = Counter(finding.severity for finding in self.findings)
        return {severity: counted[severity] for severity in (ERROR, WARNING, INFO)}

    @property
    def is_clean(self) -> bool:
        """Return whether there is neither error nor warning."""
        return all(finding.severity == INFO for finding in self.findings)


def lint(
    files: Mapping[str, bytes],
    *,
    against: Snapshot | None = None,
    features: Features | None = None,
    namespace: str = "default",
    ignored: Iterable[str] = (),
) -> Report:
    """Check the manifests of some files, by themselves and against a cluster."""
    return _Run(against, features or Features.default(), namespace, frozenset(ignored)).check(files)


class _Run:
    def __init__(
        self, cluster: Snapshot | None, features: Features, namespace: str, ignored: frozenset[str]
    ) -> None:
        self.cluster = cluster
        self.features = features
        self.namespace = namespace
        self.ignored = ignored
        self.report = Report()
        self.judged: list[tuple[Document, Judged]] = []  # those that can be read
        self.made: list[JsonObject] = []  # what controllers make of the objects
        self.wrong: set[int] = set()  # documents (by position in `judged`) with errors of their own

    def check(self, files: Mapping[str, bytes]) -> Report:
        for file, data in files.items():
            self._check_file(file, data)
        stored = (_stored(judged) for _, judged in self.judged)
        known = Known.of((*self.made, *stored), self.cluster)
        for position, (document, judged) in enumerate(self.judged):
            self._add(position, document, check_references(judged, known, self.namespace))
            self._add(position, document, check_class_extended(_stored(judged), known))
        if self.cluster is not None:
            self._check_against(known, self.cluster)
        order = {file: number for number, file in enumerate(files)}
        self.report.findings.sort(key=lambda found: (order[found.file], found.line, found.column))
        return self.report

    def _check_file(self, file: str, data: bytes) -> None:
        try:
            documents = read_documents(file, data)
        except SyntaxProblem as problem:
            self._add_syntax_problem(file, data, problem)
            return
        for document in documents:
            self.report.objects += 1
            value = document.value
            if not isinstance(value, dict) or not value.get("kind"):
                self._add(
                    None,
                    document,
                    [
                        error(
                            "not-an-object",
                            "",
                            "expected a Kubernetes object with apiVersion and kind",
                            _RENDER,
                        )
                    ],
                )
                continue
            judged = judge(value, self.features, self.namespace)
            self.made += templates_of(value)
            position = None
            if judged.stored is not None:
                position = len(self.judged)
                self.judged.append((document, judged))
            self._add(
                position,
                document,
                (from_placeholder(each, value_at(value, each.path)) for each in judged.problems),
            )

    def _add_syntax_problem(self, file: str, data: bytes, problem: SyntaxProblem) -> None:
        text = data.decode("utf-8", "replace")
        code, message, hint = unparsed(text, problem.line) or ("syntax", str(problem), "")
        if code not in self.ignored:
            self.report.findings.append(
                Finding(ERROR, code, file, problem.line, problem.column, "", "", message, hint)
            )

    def _check_against(self, known: Known, cluster: Snapshot) -> None:
        devices = Devices(cluster)
        for position, (document, judged) in enumerate(self.judged):
            self._add(position, document, check_selectors(_stored(judged), known, devices, self.features))
        if not cluster.nodes or not devices.inputs:
            return
        sound = [
            _stored(judged) for position, (_, judged) in enumerate(self.judged) if position not in self.wrong
        ]
        fitting = Fitting(cluster, (*self.made, *sound))
        for position, (document, judged) in enumerate(self.judged):
            if position not in self.wrong:
                self._add(position, document, fitting.check_claim(_stored(judged)))
        for position, (document, judged) in enumerate(self.judged):
            if position in self.wrong:
                continue
            metadata = _stored(judged).get("metadata") or {}
            for template in judged.pods:
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": f"{metadata.get('name')}-check",
                        "namespace": metadata.get("namespace") or self.namespace,
                        "labels": template.metadata.get("labels") or {},
                    },
                    "spec": template.spec,
                }
                if not self._has_hopeless_claims(pod):
                    problems = fitting.check_pod(pod)
                    self._add(position, document, (replace(p, path=template.below(p.path)) for p in problems))

    def _has_hopeless_claims(self, pod: JsonObject) -> bool:
        """Return whether a claim of the pod was already found wanting: one finding is enough."""
        namespace = pod["metadata"]["namespace"]
        names = {
            entry.get("resourceClaimName") or entry.get("resourceClaimTemplateName")
            for entry in pod["spec"].get("resourceClaims") or []
        }
        for position in self.wrong:
            metadata = _stored(self.judged[position][1]).get("metadata") or {}
            if metadata.get("name") in names and (metadata.get("namespace") or "default") == namespace:
                return True
        return False

    def _add(self, position: int | None, document: Document, problems: Iterable[Problem]) -> None:
        for problem in problems:
            is_hopeless = problem.code in _HOPELESS and problem.severity != INFO
            if position is not None and (problem.severity == ERROR or is_hopeless):
                self.wrong.add(position)
            if problem.code in self.ignored:
                continue
            line, column, is_block = document.place(problem.path)
            line += problem.line_offset + (1 if is_block and problem.code.startswith("cel") else 0)
            finding = Finding(
                problem.severity,
                problem.code,
                document.file,
                line,
                column,
                name_of(document.value),
                problem.path,
                problem.message,
                problem.hint,
            )
            if finding not in self.report.findings:
                self.report.findings.append(finding)


def _stored(judged: Judged) -> JsonObject:
    return judged.stored or {}


def name_of(value: Any) -> str:
    """Return what people call an object: kind, namespace and name."""
    if not isinstance(value, dict) or not value.get("kind"):
        return ""
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName") or "?"
    namespace = metadata.get("namespace")
    return f"{value['kind']} {namespace}/{name}" if namespace else f"{value['kind']} {name}"
