"""The Redis side: connections, streams, leases, hand-over scripts, and whether the data is still there."""

from pillion.bus.connection import UNREACHABLE, Connection, Denied, Unwritable, retrying
from pillion.bus.durable import Durable
from pillion.bus.keys import Keys
from pillion.bus.lease import Lease
from pillion.bus.loss import Watch
from pillion.bus.reader import Reader
from pillion.bus.scripts import DataLost, LeaseLost
from pillion.bus.streams import MAX_DELIVERIES, Entry, Group, Tail, append

__all__ = [
    "MAX_DELIVERIES",
    "UNREACHABLE",
    "Connection",
    "DataLost",
    "Denied",
    "Durable",
    "Entry",
    "Group",
    "Keys",
    "Lease",
    "LeaseLost",
    "Reader",
    "Tail",
    "Unwritable",
    "Watch",
    "append",
    "retrying",
]
