"""Mailboxes and a supervisor: each service is a small actor system."""

from pillion.actors.mailbox import Full, Mailbox
from pillion.actors.supervisor import Exit, Stop, Supervisor

__all__ = ["Exit", "Full", "Mailbox", "Stop", "Supervisor"]
