"""Admission: the last word on a write, after authorisation and around validation.

The door is `AdmissionChain`: it runs the plugins in kube-apiserver's order. A
plugin may complete a new object (`mutate`), refuse one in its final form
(`validate`), or protect one from deletion (`validate_delete`). Refusals are the
API errors that Kubernetes gives.
"""

from dray.server.admission.chain import AdmissionChain, Plugin

__all__ = ["AdmissionChain", "Plugin"]
