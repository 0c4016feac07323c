"""A gated PixelCNN: each place of a grid sees those before it in reading order."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.linear import Linear
from postmatch.nets.precision import full_precision

_CONDITION_STD = 0.05  # at 1, the condition would close most gates before training


@final
class Condition(nn.Module):
    """What every block is told at every position: where it is, and what the grid is given.

    Args:
        grid: Height and width.
        width: Hidden units.
        outputs: Numbers returned for each position.
        vector_size: Length of a vector that the whole grid is given; 0 for none.
        map_channels: Channels of a map whose positions are those of the grid; 0 for none.
    """

    def __init__(
        self, grid: tuple[int, int], width: int, outputs: int, vector_size: int, map_channels: int
    ) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(*grid, width))
        self.from_vector = Linear(vector_size, width, bias=False) if vector_size else None
        self.from_map = Linear(map_channels, width, bias=False) if map_channels else None
        self.project = Linear(width, outputs)
        nn.init.normal_(self.project.weight, std=_CONDITION_STD)
        nn.init.zeros_(self.project.bias)

    def forward(self, vector: Tensor | None, spatial: Tensor | None) -> Tensor:
        """Return ``(..., height, width, outputs)``."""
        if (vector is not None) != (self.from_vector is not None):
            raise ValueError("vector must be given exactly when vector_size is positive")
        if (spatial is not None) != (self.from_map is not None):
            raise ValueError("spatial must be given exactly when map_channels is positive")
        total: Tensor = self.position
        if vector is not None and self.from_vector is not None:
            total = total + self.from_vector(vector)[..., None, None, :]
        if spatial is not None and self.from_map is not None:
            if spatial.shape[-2:] != total.shape[-3:-1]:
                grid, came = tuple(self.position.shape[:2]), tuple(spatial.shape[-2:])
                raise ValueError(f"spatial must have the grid's size {grid}, got {came}")
            total = total + self.from_map(spatial.movedim(-3, -1))
        told: Tensor = self.project(F.silu(total))
        return told


@final
class GatedBlock(nn.Module):
    """One step of both stacks; channels are last, and any axes lead.

    The vertical stack sees the row above, the horizontal one what is to the left, and the vertical
    one. A causal convolution is a linear map of the window that a position sees: so one step
    serves a whole grid, a row and a single position alike.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.above = Linear(6 * width, 2 * width, bias=False)
        self.left = Linear(2 * width, 2 * width, bias=False)
        self.link = Linear(width, 2 * width, bias=False)
        self.vertical_out = Linear(width, width)
        self.horizontal_out = Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def look_up(self, v: Tensor, window: Tensor, told: Tensor) -> Tensor:
        """Return the next ``v``, ``(..., channels)``, from the two rows that end with its own."""
        change: Tensor = self.vertical_out(self.dropout(F.glu(self.above(window) + told)))
        return v + change

    def look_left(self, h: Tensor, window: Tensor, told: Tensor) -> Tensor:
        """Return the next ``h``, ``(..., channels)``, from its left neighbour and itself."""
        change: Tensor = self.horizontal_out(self.dropout(F.glu(self.left(window) + told)))
        return h + change


@final
class WideLayer(nn.Module):
    """What the logits are made of where the map need not pass the gates of narrow blocks.

    Args:
        width: Channels of the horizontal stack.
        map_channels: Those of the map.
        outputs: Units.
    """

    def __init__(self, width: int, map_channels: int, outputs: int) -> None:
        super().__init__()
        self.from_stack = Linear(width, outputs)
        self.from_map = Linear(map_channels, outputs, bias=False)

    def told(self, spatial: Tensor) -> Tensor:
        """Return what a map says of every position, ``(..., height, width, outputs)``."""
        each: Tensor = self.from_map(spatial.movedim(-3, -1))
        return each

    def forward(self, h: Tensor, told: Tensor) -> Tensor:
        """Return ``(..., outputs)`` of positions from the stack and from what the map says."""
        return F.silu(self.from_stack(h) + told)


@final
class PixelCNN(nn.Module):
    r"""All conditionals of a grid of codes in one pass (van den Oord et al., 2016).

    .. math:: p(z) = \prod_i p(z_i \mid z_1, \dots, z_{i-1}), \qquad i \text{ in reading order}

    Both stacks start out shifted, the vertical one by a row and the horizontal one by a column, so
    that whatever a block sees at a position comes before it.

    Args:
        num_codes: How many codes there are, each with a logit; or how many outputs there are for
            each position if it holds numbers.
        grid: Height and width of the grid.
        width: Channels of each stack.
        num_blocks: Each adds a row above and a column to either side to what a position sees.
        vector_size: Length of a vector that the grid is given; 0 for none.
        map_channels: Channels of a map of the grid's size that it is given; 0 for none.
        dropout: In each block.
        channels: How many numbers each position holds; 0 if it holds a code.
        head_width: Units of a layer before the logits, which the map reaches without the blocks;
            0 for none.

    Raises:
        ValueError: If there is such a layer and no map for it.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(
        self,
        num_codes: int,
        grid: tuple[int, int],
        width: int = 96,
        num_blocks: int = 10,
        vector_size: int = 0,
        map_channels: int = 0,
        dropout: float = 0.0,
        channels: int = 0,
        head_width: int = 0,
    ) -> None:
        super().__init__()
        self.num_codes, self.grid, self.width = num_codes, grid, width
        self.held = (channels,) if channels else ()  # shape of what a position holds
        self.embed: nn.Embedding | Linear = (
            Linear(channels, width) if channels else nn.Embedding(num_codes, width)
        )
        self.condition = Condition(grid, width, num_blocks * 4 * width, vector_size, map_channels)
        self.blocks = nn.ModuleList(GatedBlock(width, dropout) for _ in range(num_blocks))
        if head_width and not map_channels:
            raise ValueError("head_width needs a map: map_channels must be positive")
        self.wide = WideLayer(width, map_channels, head_width) if head_width else None
        self.last = Linear(head_width or width, num_codes)

    def forward(
        self, codes: Tensor, vector: Tensor | None = None, spatial: Tensor | None = None
    ) -> Tensor:
        """Return logits, ``(..., codes, height, width)``, for codes ``(..., height, width)``.

        Args:
            codes: Of type ``torch.long``, or numbers, ``(..., height, width, channels)``; leading
                axes end with those of the condition.
            vector: ``(..., vector_size)``, if one was announced.
            spatial: ``(..., map_channels, height, width)``, if one was announced.
        """
        told = self._told(vector, spatial)
        embedded = self.embed(codes)  # (..., height, width, channels)
        v, h = _moved_down(embedded), _moved_right(embedded)
        seen = F.elu(v)
        for block, (told_v, told_h) in zip(self._each(), told, strict=True):
            v = block.look_up(v, _window_above(_moved_down(seen), seen), told_v)
            seen, own = F.elu(v), F.elu(h)
            window = torch.cat([_moved_right(own), own], dim=-1)
            h = block.look_left(h, window, block.link(seen) + told_h)
        return self._logits(h, self._told_last(spatial)).movedim(-1, -3)

    @torch.no_grad()
    def generate(
        self,
        batch: torch.Size,
        vector: Tensor | None,
        spatial: Tensor | None,
        choose: Callable[[int, Tensor], Tensor],
    ) -> Tensor:
        """Return ``(*batch, height, width)`` built code by code, ``z_i = choose(i, logits_i)``.

        Where positions hold numbers, these are the last axis.

        Each activation is computed once: those of the vertical stack when their row begins, those
        of the horizontal one when its position comes.

        Args:
            batch: Shape of the batch of grids; it ends with that of the condition.
            vector: As in :meth:`forward`.
            spatial: As in :meth:`forward`.
            choose: From i and the logits of code i, ``(*batch, codes)``, to that code.
        """
        height, width = self.grid
        told, like = self._told(vector, spatial), self.embed.weight
        told_last = self._told_last(spatial)
        dtype = like.dtype if self.held else torch.long
        codes = torch.zeros(*batch, height, width, *self.held, dtype=dtype, device=like.device)
        nothing = like.new_zeros(*batch, width, self.width)
        above = [nothing for _ in self.blocks]  # what each block saw one row up
        for row in range(height):
            v = self.embed(codes.select(len(batch), row - 1)) if row else nothing
            seen, beside = F.elu(v), []
            for i, (block, (told_v, told_h)) in enumerate(zip(self._each(), told, strict=True)):
                window, above[i] = _window_above(above[i], seen), seen
                v = block.look_up(v, window, told_v[..., row, :, :])
                seen = F.elu(v)
                beside.append(block.link(seen) + told_h[..., row, :, :])
            at_last = None if told_last is None else told_last[..., row, :, :]
            self._fill_row(codes.select(len(batch), row), beside, at_last, row * width, choose)
        return codes

    def _fill_row(
        self,
        codes: Tensor,
        beside: list[Tensor],
        at_last: Tensor | None,
        start: int,
        choose: Callable[[int, Tensor], Tensor],
    ) -> None:
        """Choose the codes of a row, given what its horizontal stack is told, block by block."""
        batch = beside[0].shape[:-2]
        nothing = self.embed.weight.new_zeros(*batch, self.width)
        left = [nothing for _ in self.blocks]  # what each block saw one column to the left
        h = nothing
        for column, told in enumerate(zip(*[b.unbind(-2) for b in beside], strict=True)):
            for i, block in enumerate(self._each()):
                own = F.elu(h)
                window, left[i] = torch.cat([left[i], own], dim=-1), own
                h = block.look_left(h, window, told[i])
            here = None if at_last is None else at_last[..., column, :]
            code = choose(start + column, self._logits(h, here))
            codes.select(len(batch), column).copy_(code)
            h = self.embed(code)

    def _told(self, vector: Tensor | None, spatial: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Return what each block's two stacks are told, ``(..., height, width, 2 * channels)``."""
        pieces = self.condition(vector, spatial).chunk(2 * len(self.blocks), dim=-1)
        return list(zip(pieces[::2], pieces[1::2], strict=True))

    def _told_last(self, spatial: Tensor | None) -> Tensor | None:
        """Return what the layer before the logits is told, ``(..., height, width, units)``."""
        return None if self.wide is None or spatial is None else self.wide.told(spatial)

    def _logits(self, h: Tensor, told: Tensor | None) -> Tensor:
        """Return the logits of positions, ``(..., codes)``, from the end of both stacks."""
        state = F.elu(h)
        if self.wide is not None and told is not None:
            state = self.wide(state, told)
        return full_precision(self.last(state))

    def _each(self) -> list[GatedBlock]:
        return [block for block in self.blocks if isinstance(block, GatedBlock)]


def _window_above(above: Tensor, own: Tensor) -> Tensor:
    """Return three columns of two rows, ``(..., width, 6 * channels)``: a row and that above it."""
    both = torch.cat([above, own], dim=-1)
    return torch.cat([_moved_right(both), both, F.pad(both, (0, 0, -1, 1))], dim=-1)


def _moved_down(x: Tensor) -> Tensor:
    """Return ``(..., height, width, channels)`` moved by a row, the first one zero."""
    return F.pad(x, (0, 0, 0, 0, 1, -1))


def _moved_right(x: Tensor) -> Tensor:
    """Return ``(..., width, channels)`` moved by a column, the first one zero."""
    return F.pad(x, (0, 0, 1, -1))
