"""Maintenance of a fleet: take devices out of use and back, and validate them one by one.

`targets` says which devices a command means, `draining` decides what has to happen and does it step by step,
`validation` plans the checks of a fleet and judges their results, `reports` writes them for other programs.
Devices are the unit, not nodes: what is not named stays in use.
"""
