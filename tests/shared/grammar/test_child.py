"""What two threads do with one process's sockets."""

import socket
import threading

import pytest

from pillion.grammar.child import Line
from pillion.grammar.wire import send


def test_a_line_in_use_is_closed_when_it_is_no_more():
    """Else its number is the next process's, and who has just begun to wait would wait there for ever."""
    ours, theirs = socket.socketpair()
    line, heard = Line(ours), []

    def use() -> None:
        heard.append(line.receive())
        line.close()

    waits, closes = threading.Thread(target=use), threading.Thread(target=line.close)
    waits.start()
    while not line._using.locked():
        assert waits.is_alive()
    closes.start()
    closes.join(0.05)
    assert ours.fileno() >= 0 and not heard
    send(theirs, "late")
    for thread in (waits, closes):
        thread.join(10)
        assert not thread.is_alive()
    assert len(heard) == 1 and ours.fileno() == -1
    for closed in (lambda: line.send("more"), line.receive):
        with pytest.raises(OSError):
            closed()
    theirs.close()
