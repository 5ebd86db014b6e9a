"""What a check found: one finding per mistake, with its place, a code to filter by, and advice."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, INFO = "error", "warning", "info"

# Every code, with the sentence that the documentation prints.
CODES: dict[str, str] = {
    "syntax": "the text is neither YAML nor JSON",
    "template": "a template, as in Helm charts or with `${NAME}`: it is a manifest only after its values were put in",
    "patch": "part of an object, as in patches of kustomize: it is a manifest only after it was merged into a whole one",
    "not-an-object": "a document without `kind` and `apiVersion`",
    "no-api-version": "an object without `apiVersion`",
    "removed-api": "an object or field of resource.k8s.io that existed in an alpha version only",
    "unknown-version": "an API version that is not served",
    "not-checked": "a kind that this tool does not know; only its pod templates are checked",
    "old-version": "a beta version of resource.k8s.io where v1 exists",
    "unknown-field": "a field that does not exist; the server drops it or refuses the object",
    "duplicate-field": "a field given twice; only the last one counts",
    "wrong-type": "a value of the wrong type",
    "old-shape": "the flat shape of v1beta1 in a newer version",
    "new-shape": "the shape of v1 in a v1beta1 manifest",
    "invalid": "validation refuses the object",
    "feature-off": "a field of a feature that is off by default: the server drops it silently",
    "cel-compile": "a selector that does not compile",
    "cel-cost": "a selector that costs more than half of what is allowed",
    "cel-fails": "a selector that fails on devices of the cluster, which stops the allocation",
    "cel-not-bool": "a selector whose value need not be a boolean",
    "version-as-text": "a version compared with text",
    "dropped-attribute": "an attribute that newer drivers no longer publish",
    "unknown-attribute": "an attribute or capacity that no device of the cluster publishes",
    "matches-nothing": "a selector or class that selects no device of the cluster",
    "unknown-class": "a device class that does not exist",
    "dropped-class": "a device class that newer installations of its driver no longer make",
    "missing-object": "a claim or template that does not exist",
    "other-namespace": "a claim or template that exists only in another namespace",
    "unknown-request": "a container asks for a request that its claim does not have",
    "claim-unused": "a claim of the pod that no container uses",
    "double-request": "a container asks for the same hardware by extended resource and by claim",
    "node-name": "a pod with claims that names its node, so that no scheduler allocates for it",
    "admin-namespace": "admin access in a namespace that does not allow it",
    "opaque-config": "an opaque config that its driver refuses when a pod starts",
    "taints-everything": "a taint rule without selector: it hits every device",
    "partial-claim": "a claim for a part of the TPU chips of a host: the driver gives all of them or none",
    "never-fits": "a request that no node can fulfil, not even an empty one",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with one object, before its place in a file is known."""

    severity: str
    code: str
    path: str
    message: str
    hint: str = ""
    line_offset: int = 0  # lines below the start of a block of text


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with one line of one file."""

    severity: str
    code: str
    file: str
    line: int
    column: int
    object: str  # `ResourceClaim default/gpu`; empty when the document is none
    path: str
    message: str
    hint: str = ""

    def text(self) -> str:
        """Return the line that editors and people read."""
        subject = f"{self.object}: " if self.object else ""
        where = f"{self.path}: " if self.path and not self.message.startswith(self.path) else ""
        line = f"{self.file}:{self.line}:{self.column}: {self.severity}: {subject}{where}{self.message} [{self.code}]"
        return f"{line}\n    hint: {self.hint}" if self.hint else line

    def data(self) -> dict[str, str | int]:
        """Return the finding for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def error(code: str, path: str, message: str, hint: str = "") -> Problem:
    """Report a mistake that keeps the object from working."""
    assert code in CODES, code
    return Problem(ERROR, code, path, message, hint)


def warning(code: str, path: str, message: str, hint: str = "") -> Problem:
    """Report something that is probably a mistake."""
    assert code in CODES, code
    return Problem(WARNING, code, path, message, hint)


def info(code: str, path: str, message: str, hint: str = "") -> Problem:
    """Report something worth knowing."""
    assert code in CODES, code
    return Problem(INFO, code, path, message, hint)
