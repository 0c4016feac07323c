"""Asking a model something, and leaving it as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from postmatch.folders import digest


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode inside the block, and every part in its own mode after it.

    Its parameters take no gradient inside, and their own flags come back, too.
    """
    modes = [(part, part.training) for part in module.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    module.eval()
    module.requires_grad_(False)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def fingerprint(module: nn.Module) -> str:
    """Return what tells a module's weights and buffers from any others: names, types and bytes.

    It is the same on every device and however the numbers lie in memory.
    """
    parts = []
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor):
            head = f"{name} {value.dtype} {tuple(value.shape)};".encode()
            parts += [head, _bytes(value)]
    return digest(b"".join(parts))


def _bytes(value: Tensor) -> bytes:
    plain = value.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
