"""Custom kinds: definitions, their structural schemas, and the objects made by them."""

from dray.server.custom.custom_kinds import CustomKinds

__all__ = ["CustomKinds"]
