"""A masked residual network whose output i depends on the inputs before i alone (MADE)."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
        return F.linear(x, self.weight * self.mask, self.bias)


@final
class MaskedResidualNet(nn.Module):
    """All conditionals of a vector in one pass: row i of the output sees the inputs before i.

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

    def __init__(
        self, size: int, outputs: int, width: int, num_blocks: int, context_size: int = 0
    ) -> None:
        super().__init__()
        if width < size:
            raise ValueError(f"width must be at least size ({size}), got {width}")
        self.size, self.outputs, self.width = size, outputs, width
        degree = torch.arange(width) * size // width
        # ends[i]: how many units output i may see, which are the first ones since degrees are sorted
        self.ends = [int((degree <= i).sum()) for i in range(size)]
        sees_units = degree[:, None] >= degree[None, :]
        sees_inputs = degree[:, None] > torch.arange(size)[None, :]
        seen_by_output = torch.arange(size).repeat_interleave(outputs)[:, None] >= degree[None, :]
        self.first = MaskedLinear(sees_inputs)
        self.inner = nn.ModuleList(MaskedLinear(sees_units) for _ in range(num_blocks))
        self.outer = nn.ModuleList(MaskedLinear(sees_units) for _ in range(num_blocks))
        self.last = MaskedLinear(seen_by_output)
        self.has_context = context_size > 0
        if self.has_context:
            self.context_in = nn.Linear(context_size, width, bias=False)
            # The first outputs see few hidden units, so the context also reaches them directly.
            self.context_out = nn.Linear(context_size, size * outputs, bias=False)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Return ``(..., size, outputs)`` for ``z`` of shape ``(..., size)``."""
        start, skip = self._project(context)
        hidden = self.first(z) + start
        for inner, outer in zip(self.inner, self.outer, strict=True):
            hidden = hidden + outer(F.silu(inner(F.silu(hidden))))
        out: Tensor = self.last(F.silu(hidden)) + skip
        return out.unflatten(-1, (self.size, self.outputs))

    def generate(
        self, rows: int, context: Tensor | None, choose: Callable[[int, Tensor], Tensor]
    ) -> Tensor:
        """Return ``(rows, size)`` built entry by entry, ``z_i = choose(i, output_i)``.

        Args:
            rows: How many vectors.
            context: ``(rows, context_size)``, or None.
            choose: From i and the outputs for entry i, ``(rows, outputs)``, to that entry.
        """
        start, skip = self._project(context)
        like = self.first.weight
        z = like.new_zeros(rows, self.size)
        # One buffer before each linear layer, holding the activations of the units known so far.
        entry = like.new_empty(rows, self.width)
        inside = [like.new_empty(rows, self.width) for _ in self.inner]
        between = [like.new_empty(rows, self.width) for _ in self.inner]
        begin = 0
        for i, end in enumerate(self.ends):
            new = slice(begin, end)
            hidden = F.linear(z[:, :i], self.first.weight[new, :i], self.first.bias[new])
            hidden = hidden + (start[..., new] if context is not None else 0.0)
            known = entry
            known[:, new] = F.silu(hidden)
            for inner, outer, within, after in zip(
                self.inner, self.outer, inside, between, strict=True
            ):
                within[:, new] = F.silu(_rows_of(inner, known, new, end))
                hidden = hidden + _rows_of(outer, within, new, end)
                known = after
                known[:, new] = F.silu(hidden)
            own = slice(i * self.outputs, (i + 1) * self.outputs)
            out = _rows_of(self.last, known, own, end)
            z[:, i] = choose(i, out + (skip[..., own] if context is not None else 0.0))
            begin = end
        return z

    def _project(self, context: Tensor | None) -> tuple[Tensor, Tensor]:
        if (context is not None) != self.has_context:
            raise ValueError("context must be given exactly when context_size is positive")
        if context is None:
            zero = self.first.weight.new_zeros(())
            return zero, zero
        return self.context_in(context), self.context_out(context)


def _rows_of(layer: nn.Module, known: Tensor, rows: slice, end: int) -> Tensor:
    """Return some outputs of a masked layer from its first ``end`` inputs.

    Units of one degree see each other and all before them, so within these rows nothing is masked.
    """
    assert isinstance(layer, MaskedLinear)
    return F.linear(known[:, :end], layer.weight[rows, :end], layer.bias[rows])
