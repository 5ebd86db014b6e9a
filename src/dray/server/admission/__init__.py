"""Admission: the last word on a write, after authorisation and around validation.

Two doors: `AdmissionChain` runs the built-in plugins in kube-apiserver's order, and
`DynamicAdmission` asks the webhooks and policies that users configure. A
plugin may complete a new object (`mutate`), refuse one in its final form
(`validate`), or protect one from deletion (`validate_delete`). Refusals are the
API errors that Kubernetes gives.
"""

from dray.server.admission.admission_chain import AdmissionChain, Plugin
from dray.server.admission.dynamic_admission import DynamicAdmission, admission_cel
from dray.server.admission.webhook_calls import ANSWER_BYTES

__all__ = ["ANSWER_BYTES", "AdmissionChain", "DynamicAdmission", "Plugin", "admission_cel"]
