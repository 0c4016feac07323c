"""Where networks that compute in half precision end."""

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)


def full_precision(outputs: Tensor) -> Tensor:
    """Return what a network says in float32 if it is in half precision.

    Seven bits are enough to add up products, and too few for a density: two values one part in a
    hundred apart would be the same.
    """
    return outputs.float() if outputs.dtype in _HALF else outputs
