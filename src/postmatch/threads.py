"""How many threads small networks deserve."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_outside_threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one CPU thread for a while, and as many as before afterwards.

    The tensors of a table's model fit in a core's cache. Shared among threads, each operation waits
    for the slowest of them: on two idle cores nothing is gained, and on busy ones a step was seen
    to take fifteen times as long.
    """
    global _inside, _outside_threads
    with _lock:
        if _inside == 0:
            _outside_threads = torch.get_num_threads()
        _inside += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_outside_threads)
        with _lock:
            _inside -= 1
