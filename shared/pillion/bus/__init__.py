"""The Redis side: connections, streams, leases and hand-over scripts."""

from pillion.bus.connection import UNREACHABLE, Connection, Denied, retrying
from pillion.bus.keys import Keys
from pillion.bus.lease import Lease
from pillion.bus.scripts import LeaseLost
from pillion.bus.streams import MAX_DELIVERIES, Entry, Group, Tail, append

__all__ = [
    "MAX_DELIVERIES",
    "UNREACHABLE",
    "Connection",
    "Denied",
    "Entry",
    "Group",
    "Keys",
    "Lease",
    "LeaseLost",
    "Tail",
    "append",
    "retrying",
]
