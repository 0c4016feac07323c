"""A masked residual network: its outputs for entry i see the entries before i alone (MADE)."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.linear import Linear, linear
from postmatch.nets.precision import full_precision


@final
class MaskedLinear(nn.Module):
    """A linear layer with some of its weights held at zero."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        fan_out, fan_in = mask.shape
        linear = nn.Linear(fan_in, fan_out)
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("mask", mask.to(linear.weight.dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of ``x``."""
        return linear(x, self.weight, self.bias, self.mask)


@final
class MaskedResidualNet(nn.Module):
    """All conditionals of a vector in one pass: column i of the output sees the inputs before i.

    Hidden unit u has degree m(u) between 0 and size - 1, sorted, the same in every layer: it sees
    the first m inputs. Nothing mixes units (no normalisation), so that :meth:`generate` can build
    a vector input by input and compute each unit once, with the arithmetic of a single pass.

    Args:
        size: Length of the vector.
        outputs: Numbers returned for each entry.
        width: Hidden units; at least ``size``.
        num_blocks: Residual blocks of two layers.
        context_size: Length of a context vector that every output may see; 0 for none.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(
        self, size: int, outputs: int, width: int, num_blocks: int, context_size: int = 0
    ) -> None:
        super().__init__()
        if width < size:
            raise ValueError(f"width must be at least size ({size}), got {width}")
        self.size, self.outputs, self.width = size, outputs, width
        degree = torch.arange(width) * size // width
        # ends[i]: how many units output i may see: the first ones, since degrees are sorted
        self.ends = [int((degree <= i).sum()) for i in range(size)]
        sees_units = degree[:, None] >= degree[None, :]
        sees_inputs = degree[:, None] > torch.arange(size)[None, :]
        seen_by_output = torch.arange(size).repeat(outputs)[:, None] >= degree[None, :]
        self.first = MaskedLinear(sees_inputs)
        self.inner = nn.ModuleList(MaskedLinear(sees_units) for _ in range(num_blocks))
        self.outer = nn.ModuleList(MaskedLinear(sees_units) for _ in range(num_blocks))
        self.last = MaskedLinear(seen_by_output)
        self.has_context = context_size > 0
        if self.has_context:
            self.context_in = Linear(context_size, width, bias=False)
            # The first outputs see few hidden units, so the context also reaches them directly.
            self.context_out = Linear(context_size, size * outputs, bias=False)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Return ``(..., outputs, size)`` for ``z`` of shape ``(..., size)``."""
        start, skip = self._project(context)
        hidden = self.first(z) + start
        for inner, outer in zip(self.inner, self.outer, strict=True):
            hidden = hidden + outer(F.silu(inner(F.silu(hidden))))
        out = full_precision(self.last(F.silu(hidden)) + skip)
        return torch.unflatten(out, -1, (self.outputs, self.size))

    def generate(
        self, batch: torch.Size, context: Tensor | None, choose: Callable[[int, Tensor], Tensor]
    ) -> Tensor:
        """Return ``(*batch, size)`` built entry by entry, ``z_i = choose(i, outputs_i)``.

        Args:
            batch: Shape of the batch of vectors.
            context: Broadcastable to ``(*batch, context_size)``, or None.
            choose: From i and the outputs for entry i, ``(outputs, *batch)``, to that entry.
        """
        start, skip = self._project(context)
        if context is not None:
            leading = (None,) * (len(batch) + 1 - context.dim())
            start, skip = start[leading].movedim(-1, 0), skip[leading].movedim(-1, 0)
        # Units first, so that those of one degree are one block of memory. One tensor holds the
        # input of each linear layer, as far as it is known.
        like, rows = self.first.weight, batch.numel()
        z = like.new_empty(self.size, rows)
        layers = [like.new_empty(self.width, rows) for _ in range(2 * len(self.inner) + 1)]
        begin = 0
        for i, end in enumerate(self.ends):
            new, own = slice(begin, end), slice(i, None, self.size)
            hidden = _block(self.first, z, new, i)
            if context is not None:  # projected once, whatever the number of samples
                hidden = hidden.view(len(hidden), *batch).add_(start[new]).view(len(hidden), rows)
            layers[0][new] = F.silu(hidden)
            for b, (inner, outer) in enumerate(zip(self.inner, self.outer, strict=True)):
                layers[2 * b + 1][new] = F.silu(_block(inner, layers[2 * b], new, end))
                hidden += _block(outer, layers[2 * b + 1], new, end)
                layers[2 * b + 2][new] = F.silu(hidden)
            out = _block(self.last, layers[-1], own, end).view(self.outputs, *batch)
            z[i] = choose(i, out if context is None else out + skip[own]).flatten()
            begin = end
        return z.mT.reshape(*batch, self.size)

    def _project(self, context: Tensor | None) -> tuple[Tensor, Tensor]:
        if (context is not None) != self.has_context:
            raise ValueError("context must be given exactly when context_size is positive")
        if context is None:
            zero = self.first.weight.new_zeros(())
            return zero, zero
        return self.context_in(context), self.context_out(context)


def _block(layer: nn.Module, known: Tensor, units: slice, end: int) -> Tensor:
    """Return some outputs of a masked layer from its first ``end`` inputs, ``(units, rows)``.

    Units of one degree see each other and all before them, so within a block nothing is masked.
    """
    assert isinstance(layer, MaskedLinear)
    return torch.addmm(layer.bias[units, None], layer.weight[units, :end], known[:end])
