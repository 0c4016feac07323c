"""How many threads small networks deserve."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")

_lock = threading.Lock()
_inside = 0
_outside_threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one CPU thread for a while, and as many as before afterwards.

    The tensors of a table's model fit in a core's cache. Shared among threads, each operation waits
    for the slowest of them: on idle cores little is gained, and on busy ones a step takes many
    times as long.
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


def for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call a function on every item, as many at a time as torch had threads outside.

    Where threads are no use within an operation, they are between operations: each works on rows of
    its own, and torch holds no lock while it computes.
    """
    items = list(items)
    with _lock:
        outside = _outside_threads if _inside else torch.get_num_threads()
    workers = min(len(items), outside)
    inference = torch.is_inference_mode_enabled()

    def call(item: Item) -> None:
        with torch.inference_mode(inference):  # which each thread has for itself
            function(item)

    if workers < 2:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(call, items))
