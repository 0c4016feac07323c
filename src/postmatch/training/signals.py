"""Ctrl-C and SIGTERM as a question that a run asks itself between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import final

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class Noted:
    """Which signal has come, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Return whether one has come."""
        return self.signal is not None

    def follow(self) -> None:
        """Do now what the signal asked for."""
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        if self.signal is not None:
            raise KeyboardInterrupt


@contextmanager
def signals_noted() -> Iterator[Noted]:
    """Note Ctrl-C and SIGTERM instead of obeying at once; a second one is obeyed at once.

    Outside the main thread, where Python allows no handlers, nothing is ever noted.
    """
    noted = Noted()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, _: FrameType | None) -> None:
        again = noted()
        noted.signal = number
        if again:
            noted.follow()

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
