"""Whether kernels of our own can be used."""

from functools import cache
from importlib.util import find_spec

from torch import Tensor


def can_fuse(x: Tensor) -> bool:
    """Return whether there are kernels for where a tensor is."""
    return x.is_cuda and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
