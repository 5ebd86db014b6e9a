"""`dra.net`: the machine's network interfaces, moved into the container that claims them."""

from dray.drivers.network.driver import NetworkDriver

__all__ = ["NetworkDriver"]
