"""One training run in several processes, each with its share of every batch.

Started by ``torchrun``, processes hold the same weights, compute gradients of their own rows, and
step by the mean of all gradients. Gradients lie end to end already, so averaging them takes one
call each for matrices and vectors: what DistributedDataParallel does, in a single bucket.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


def num_processes() -> int:
    """Return how many processes train together; 1 if this one is alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process among them, 0 for the one that tells and writes."""
    return dist.get_rank() if num_processes() > 1 else 0


@contextmanager
def together() -> Iterator[None]:
    """Join the processes that ``torchrun`` started, if it did; leave them at the end.

    Each takes a GPU of its own where there are any.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not dist.is_available():
        yield
        return
    # Before there is a group: one that is there when this is imported, which optimisers do, stays
    # as a default of its functions. Never let go, its threads may abort a Python that shuts down.
    import torch.distributed.nn.functional

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over the processes."""
    count = num_processes()
    if count > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor.div_(count)


def share(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by that of the first process."""
    if num_processes() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def agreed(number: float) -> float:
    """Return the first process's number, so that all decide alike."""
    if num_processes() == 1:
        return number
    told = torch.tensor(number, dtype=torch.float64)
    dist.broadcast(told, 0)
    return told.item()


def any_of(told: bool) -> bool:
    """Return whether it is true in any process."""
    if num_processes() == 1:
        return told
    count = torch.tensor(int(told))
    dist.all_reduce(count)
    return bool(count > 0)


def wait_for_all() -> None:
    """Go on when every process has come this far."""
    if num_processes() > 1:
        dist.barrier()
