"""One distribution for a row of columns of different types."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from postmatch.distributions.layout import ColumnLayout
from postmatch.distributions.noise import (
    choose_component,
    from_noise,
    noise_size,
    standard_logistic,
)

_UNIFORMS = 3  # per column: component or level, value within it, place within the resolution


@final
class MixedColumns(Distribution):
    r"""Independent columns: logistic mixtures for what has an order, categoricals otherwise.

    A number is known to a resolution, so it stands for the interval of width w around it:

    .. math:: p(x) = \frac1w \sum_k \pi_k \left[ F_k(x + w/2) - F_k(x - w/2) \right]

    which is a normalised density below 1 / w; for whole numbers and levels the same sum without
    1 / w is a mass. ``log_prob`` has one value per column and is never summed.

    Args:
        layout: What the parameters mean.
        parameters: ``(*batch, layout.num_outputs)``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, layout: ColumnLayout, parameters: Tensor) -> None:
        self.layout, self.parameters = layout, parameters
        batch_shape = parameters.shape[:-1] + torch.Size([len(layout.specs)])
        super().__init__(batch_shape, torch.Size(), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density or mass of every column, ``(*batch, columns)``."""
        parts = [self._log_scaled(value.index_select(-1, self.layout.scaled.index))]
        for group in self.layout.category_groups:
            log_levels = group.logits(self.parameters).log_softmax(-2)
            code = value.index_select(-1, group.index).long().unsqueeze(-2)
            batch: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
                code.shape[:-2], log_levels.shape[:-2]
            )
            code = code.expand(*batch, *code.shape[-2:])
            log_levels = log_levels.expand(*batch, *log_levels.shape[-2:])
            parts.append(log_levels.gather(-2, code).squeeze(-2))
        return torch.cat(parts, dim=-1).index_select(-1, self.layout.order)

    @property
    def mean(self) -> Tensor:
        """Expected value of numbers and of the codes of ordered levels; the likeliest category."""
        scaled, numbers = self.layout.scaled, self._means()
        if scaled.ordered:
            code = torch.arange(scaled.levels, device=numbers.device, dtype=numbers.dtype)
            numbers[..., scaled.ordered] = self.ordered_probs() @ code
        parts = [numbers]
        for group in self.layout.category_groups:
            parts.append(group.logits(self.parameters).argmax(-2).to(parts[0].dtype))
        return torch.cat(parts, dim=-1).index_select(-1, self.layout.order)

    def point(self) -> Tensor:
        """Return the best single value of each column for the mixture over the first axis.

        The mean of numbers; of levels the most probable one, after averaging probabilities.
        """
        scaled, numbers = self.layout.scaled, self._means().mean(0)
        if scaled.ordered:
            numbers[..., scaled.ordered] = self.ordered_probs().mean(0).argmax(-1).to(numbers.dtype)
        parts = [numbers]
        for group in self.layout.category_groups:
            probs = group.logits(self.parameters).softmax(-2).mean(0)
            parts.append(probs.argmax(-2).to(numbers.dtype))
        return torch.cat(parts, dim=-1).index_select(-1, self.layout.order)

    def ordered_probs(self) -> Tensor:
        """Return the probability of each level, ``(*batch, ordered columns, levels)``."""
        scaled = self.layout.scaled
        batch = self.parameters.shape[:-1]
        each = []
        for level in range(scaled.levels):
            value = self.parameters.new_full((*batch, len(scaled.index)), float(level))
            each.append(self._log_scaled(value)[..., scaled.ordered].exp())
        probs = torch.stack(each, dim=-1)
        sizes = (scaled.highest[scaled.ordered] + 1)[:, None]
        return probs.masked_fill(torch.arange(scaled.levels, device=probs.device) >= sizes, 0.0)

    def probs(self, column: int) -> Tensor:
        """Return the probabilities of one column's levels, ``(*batch, levels)``."""
        specs = self.layout.specs
        if not 0 <= column < len(specs) or specs[column].kind == "number":
            raise ValueError(f"column must be that of levels, got {column}")
        size = specs[column].size
        place = (self.layout.scaled.index == column).nonzero()
        if len(place):
            return self.ordered_probs()[..., self.layout.scaled.ordered.index(int(place)), :size]
        (group,) = (g for g in self.layout.category_groups if column in g.index)
        place = (group.index == column).nonzero()
        return group.logits(self.parameters).softmax(-2)[..., :size, int(place)]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw rows, ``(*sample_shape, *batch, columns)``."""
        shape = torch.Size(sample_shape) + self.batch_shape[:-1]
        size = len(self.layout.specs) * _UNIFORMS
        with torch.no_grad():
            return self.from_noise(torch.rand(*shape, size, device=self.parameters.device))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from three uniforms per column."""
        uniform = torch.unflatten(uniform, -1, (len(self.layout.specs), _UNIFORMS))
        parts = [self._draw_scaled(uniform.index_select(-2, self.layout.scaled.index))]
        for group in self.layout.category_groups:
            own = uniform.index_select(-2, group.index)[..., 0]
            code = choose_component(group.logits(self.parameters), own, dim=-2)
            parts.append(code.to(parts[0].dtype))
        return torch.cat(parts, dim=-1).index_select(-1, self.layout.order)

    def _means(self) -> Tensor:
        """Return the mixtures' means, ``(*batch, scaled columns)``."""
        scaled = self.layout.scaled
        logits, centre, _ = self._raw_components()
        return scaled.centre + scaled.spread * (logits.softmax(-2) * centre).sum(-2)

    def _raw_components(self) -> tuple[Tensor, ...]:
        shape = (3, self.layout.num_components, len(self.layout.scaled.index))
        out = torch.unflatten(self.parameters[..., : self.layout.num_mixture], -1, shape)
        return out.unbind(-3)

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, centres and scales, ``(*batch, components, scaled columns)``."""
        logits, centre, raw = self._raw_components()
        # A component much narrower than the resolution says nothing more, so there it stops.
        return logits, centre, F.softplus(raw) + 0.2 * self.layout.scaled.half_step

    def _log_scaled(self, value: Tensor) -> Tensor:
        """Return log masses or densities, by F(b) - F(a) = F(b) F(-a) (1 - e^(a - b))."""
        scaled = self.layout.scaled
        logits, centre, scale = self._components()
        offset = ((value - scaled.centre) / scaled.spread).unsqueeze(-2) - centre
        half = scaled.half_step
        log_below = F.logsigmoid((offset + half) / scale)
        log_above = F.logsigmoid((half - offset) / scale)
        log_between = (-torch.expm1(-2.0 * half / scale)).log()
        if scaled.ordered:  # the outermost levels reach to infinity
            lowest = (value <= scaled.lowest).unsqueeze(-2)
            highest = (value >= scaled.highest).unsqueeze(-2)
            log_below = log_below.masked_fill(highest, 0.0)
            log_above = log_above.masked_fill(lowest, 0.0)
            log_between = log_between.masked_fill(lowest | highest, 0.0)
        log_mass = (logits.log_softmax(-2) + log_below + log_above + log_between).logsumexp(-2)
        return log_mass - scaled.log_width

    def _draw_scaled(self, uniform: Tensor) -> Tensor:
        scaled = self.layout.scaled
        logits, centre, scale = self._components()
        k = choose_component(logits, uniform[..., 0], dim=-2).unsqueeze(-2)
        shape = (*k.shape[:-2], *logits.shape[-2:])
        centre = centre.expand(shape).gather(-2, k).squeeze(-2)
        scale = scale.expand(shape).gather(-2, k).squeeze(-2)
        value = centre + scale * standard_logistic(uniform[..., 1])
        smooth = value + scaled.half_step * (2.0 * uniform[..., 2] - 1.0)
        grid = scaled.grid.clamp_min(1e-30)
        x, smooth = (scaled.centre + scaled.spread * v for v in (value, smooth))
        whole = scaled.anchor + grid * ((x - scaled.anchor) / grid).round()
        return torch.where(scaled.grid > 0.0, whole, smooth).clamp(scaled.lowest, scaled.highest)


@noise_size.register
def _(distribution: MixedColumns) -> int | None:
    return len(distribution.layout.specs) * _UNIFORMS


@from_noise.register
def _(distribution: MixedColumns, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
