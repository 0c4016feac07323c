"""What a model says of encoded rows, block by block."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.mixed import MixedColumns
from postmatch.randomness import RowNoise, noise_blocks
from postmatch.tabular import TableModelConfig
from postmatch.threads import for_each, one_thread

POINT_SAMPLES = 32  # draws of z that a best value and its probability are averaged over
INTERVAL_SAMPLES = 256  # draws that a quantile is taken from: those of fewer lie too close together

_MOST_NUMBERS = 1 << 21  # in one layer of one block of an answer: below, Python takes the time


@final
class RowAnswers:
    """The answers of one model about rows of x, the only source of them.

    Neither the order, nor the company, nor the cutting of rows changes an answer.

    Args:
        model: In its mode of evaluation.
        specs: The columns of x.
        config: The sizes of the model.
    """

    def __init__(
        self, model: MatchedVAE, specs: Sequence[ColumnSpec], config: TableModelConfig
    ) -> None:
        self.model, self.specs, self.config = model, specs, config

    @property
    def device(self) -> torch.device:
        """Where the model answers."""
        return next(self.model.parameters()).device

    def points(
        self, x: Tensor, observed: Tensor, num_samples: int = POINT_SAMPLES, seed: int = 0
    ) -> Tensor:
        """Return the best completed rows: means, or the most probable levels."""
        best = x.clone()

        def fill(rows: Tensor, answer: Conditional) -> None:
            best[rows] = answer.impute(num_samples, seed).cpu()

        self.ask(x, observed, num_samples, fill)
        return best

    def probabilities(
        self,
        x: Tensor,
        observed: Tensor,
        at: Tensor,
        num_samples: int = POINT_SAMPLES,
        seed: int = 0,
    ) -> Tensor:
        """Return how probable, or how dense, the values ``at`` are in each hidden cell."""
        probability = torch.ones_like(x)

        def fill(rows: Tensor, answer: Conditional) -> None:
            decoded = answer.marginals(num_samples, seed)
            here = at[rows].to(self.device)
            probability[rows] = decoded.log_prob(here).exp().mean(0).cpu()

        self.ask(x, observed, num_samples, fill)
        return probability

    def chances(
        self,
        x: Tensor,
        observed: Tensor,
        column: int,
        num_samples: int = POINT_SAMPLES,
        seed: int = 0,
    ) -> Tensor:
        """Return the probability of each level of a column, in rows that hide it."""
        chances = torch.zeros(len(x), self.specs[column].size)

        def fill(rows: Tensor, answer: Conditional) -> None:
            decoded = answer.marginals(num_samples, seed)
            assert isinstance(decoded, MixedColumns)
            chances[rows] = decoded.probs(column).mean(0).cpu()

        self.ask(x, observed, num_samples, fill)
        return chances

    def quantiles(
        self,
        x: Tensor,
        observed: Tensor,
        levels: Sequence[float],
        num_samples: int = INTERVAL_SAMPLES,
        seed: int = 0,
    ) -> Tensor:
        """Return x at each level, ``(levels, rows, columns)``; categories at their best."""
        found = x.repeat(len(levels), 1, 1)
        category = [i for i, spec in enumerate(self.specs) if spec.kind == "category"]

        def fill(rows: Tensor, answer: Conditional) -> None:
            found[:, rows] = answer.quantiles(levels, num_samples, seed).cpu()
            if category:
                best = answer.impute(POINT_SAMPLES, seed).cpu()
                found[:, rows[:, None], category] = best[:, category]

        self.ask(x, observed, num_samples, fill)
        return found

    @one_thread()
    @torch.inference_mode()
    def draws(
        self, x: Tensor, observed: Tensor, num_samples: int, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """Return joint draws of what is hidden, ``(samples, rows, columns)``."""
        drawn = x.repeat(num_samples, 1, 1)

        def fill(numbered: tuple[int, Tensor]) -> None:
            block, rows = numbered
            answer = self._given(x, observed, rows)
            for draws in self._blocks(torch.arange(num_samples), len(rows)):
                seeds = [(seed, block, int(draw)) for draw in draws]
                noise = RowNoise(seeds, rows + offset, self.device)
                drawn[draws[:, None], rows] = answer.sample_from(noise).cpu()

        self._for_each(fill, noise_blocks(_with_holes(observed), offset))
        return drawn

    @one_thread()
    @torch.inference_mode()
    def log_prob(
        self,
        x: Tensor,
        seen: Tensor,
        scored: Tensor,
        num_samples: int,
        seed: int = 0,
        *,
        precise: bool = False,
    ) -> Tensor:
        """Return the log-likelihood of the scored cells given those seen, per row, in float64."""
        model, device, dtype = self._for_scores(precise=precise)
        total = torch.zeros(len(x), dtype=torch.float64)

        def fill(rows: Tensor) -> None:
            here, known = x[rows].to(device, dtype), (seen | scored)[rows].to(device)
            answer = model.given(here, seen[rows].to(device))
            total[rows] = answer.log_prob(here, known, num_samples, seed).cpu().double()

        self._for_each(fill, self._blocks(scored.any(1).nonzero()[:, 0], num_samples))
        return total

    @one_thread()
    @torch.inference_mode()
    def ask(
        self,
        x: Tensor,
        observed: Tensor,
        num_samples: int,
        fill: Callable[[Tensor, Conditional], None],
    ) -> None:
        """Call ``fill`` with the numbers of some rows with holes and the answer to them.

        Args:
            x: ``(rows, columns)``.
            observed: Of the same shape.
            num_samples: How many draws ``fill`` will ask for at most, which decides how many rows
                it gets at once.
            fill: Called on a CPU from several threads, each time with other rows.
        """

        def call(rows: Tensor) -> None:
            fill(rows, self._given(x, observed, rows))

        self._for_each(call, self._blocks(_with_holes(observed), num_samples))

    def _for_each(self, function: Callable[[Any], None], blocks: Iterable[Any]) -> None:
        """Call a function on every block of rows, on a CPU with several at a time."""
        if self.device.type == "cpu":
            for_each(function, blocks)
        else:
            for block in blocks:
                function(block)

    def _given(self, x: Tensor, observed: Tensor, rows: Tensor) -> Conditional:
        return self.model.given(x[rows].to(self.device), observed[rows].to(self.device))

    def _blocks(self, rows: Tensor, num_samples: int) -> list[Tensor]:
        """Split rows so that the widest layer of a block's answer keeps a moderate size."""
        each = 3 * self.config.column_components
        widths = [spec.size if spec.kind == "category" else each for spec in self.specs]
        widest = max(self.config.width, sum(widths))
        size = max(1, _MOST_NUMBERS // (widest * max(1, num_samples)))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _for_scores(self, *, precise: bool) -> tuple[MatchedVAE, torch.device, torch.dtype]:
        if not precise:
            return self.model, self.device, torch.float32
        device = torch.device("cpu") if self.device.type == "mps" else self.device
        return copy.deepcopy(self.model).to(device, torch.float64), device, torch.float64


def _with_holes(observed: Tensor) -> Tensor:
    return (~observed).any(1).nonzero()[:, 0]
