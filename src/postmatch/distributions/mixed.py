"""One distribution for a row of columns of different types."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from postmatch.distributions.layout import CategoryGroup, ColumnLayout
from postmatch.distributions.noise import (
    choose_component,
    from_noise,
    noise_size,
    standard_logistic,
)

_NARROWEST = 0.01  # scale of a component, in spreads: what is sharper is an atom
_UNIFORMS = 3  # per column: component or level, value within it, place within the resolution


@final
class MixedColumns(Distribution):
    r"""Independent columns: logistic mixtures for what has an order, categoricals otherwise.

    A number is known to a resolution, so it stands for the interval of width w around it:

    .. math:: p(x) = \frac1w \sum_k \pi_k \left[ F_k(x + w/2) - F_k(x - w/2) \right]

    which is a normalised density below 1 / w; for whole numbers and levels the same sum without
    1 / w is a mass. A value that many cells share is an atom: a component whose place is known and
    whose interval is all it has. No network could learn that place by following gradients, since
    the sharper a component is, the more its least movement matters. ``log_prob`` has one value per
    column and is never summed.

    Args:
        layout: What the parameters mean.
        parameters: ``(*batch, layout.num_outputs)``.
        widening: A factor on the scales of components; None for 1.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self, layout: ColumnLayout, parameters: Tensor, widening: Tensor | None = None
    ) -> None:
        self.layout, self.parameters, self.widening = layout, parameters, widening
        batch_shape = parameters.shape[:-1] + torch.Size([len(layout.specs)])
        super().__init__(batch_shape, torch.Size(), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density or mass of every column, ``(*batch, columns)``."""
        parts = [self._log_scaled(value.index_select(-1, self.layout.scaled.index))]
        for group in self.layout.category_groups:
            log_levels = self._levels(group).log_softmax(-2)
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
            parts.append(self._levels(group).argmax(-2).to(parts[0].dtype))
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
            probs = self._levels(group).softmax(-2).mean(0)
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
        return self._levels(group).softmax(-2)[..., :size, int(place)]

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
            code = choose_component(self._levels(group), own, dim=-2)
            parts.append(code.to(parts[0].dtype))
        return torch.cat(parts, dim=-1).index_select(-1, self.layout.order)

    def _means(self) -> Tensor:
        """Return the mixtures' means, ``(*batch, scaled columns)``."""
        scaled = self.layout.scaled
        logits, centre, _ = self._raw_components()
        means = scaled.centre + scaled.spread * (logits.softmax(-2) * centre).sum(-2)
        atoms = self.layout.atoms
        if not atoms.most:
            return means
        weights = self._atom_logits().softmax(-2)  # within atoms, and below against the rest
        at_atoms = (weights * atoms.value.nan_to_num()).sum(-2)
        share = self._log_atom_share(logits).exp()
        own = means.index_select(-1, atoms.index)
        return means.index_copy(-1, atoms.index, own + share * (at_atoms - own))

    def _atom_logits(self) -> Tensor:
        """Return ``(*batch, atoms, columns with atoms)``, minus infinity where there is none."""
        atoms = self.layout.atoms
        own = self.parameters[..., self.layout.num_mixture :][..., : atoms.value.numel()]
        logits = torch.unflatten(own, -1, atoms.value.shape)
        return logits.masked_fill(atoms.value.isnan(), -torch.inf)

    def _log_atom_share(self, logits: Tensor) -> Tensor:
        """Return the log probability that a number is at any of its atoms."""
        smooth = logits.logsumexp(-2).index_select(-1, self.layout.atoms.index)
        return F.logsigmoid(self._atom_logits().logsumexp(-2) - smooth)

    def _raw_components(self) -> tuple[Tensor, ...]:
        shape = (3, self.layout.num_components, len(self.layout.scaled.index))
        out = torch.unflatten(self.parameters[..., : self.layout.num_mixture], -1, shape)
        return out.unbind(-3)

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, centres and scales, ``(*batch, components, scaled columns)``."""
        logits, centre, raw = self._raw_components()
        # A component much narrower than the resolution says nothing more, so there it stops.
        narrowest = _NARROWEST + 0.2 * self.layout.scaled.half_step
        scale = F.softplus(raw) + narrowest
        return logits, centre, scale if self.widening is None else scale * self.widening

    def _levels(self, group: CategoryGroup) -> Tensor:
        """Return the logits of categories, ``(*batch, levels, columns of the group)``."""
        return group.logits(self.parameters)

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
        log_mass = (logits + log_below + log_above + log_between).logsumexp(-2)
        log_total = logits.logsumexp(-2)
        if self.layout.atoms.most:
            log_mass, log_total = self._with_atoms(value, log_mass, log_total)
        return log_mass - log_total - scaled.log_width

    def _with_atoms(
        self, value: Tensor, log_mass: Tensor, log_total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the atoms' part to masses that are not normalised yet and to their normalisers."""
        atoms, logits = self.layout.atoms, self._atom_logits()
        own_mass, own_total = (t.index_select(-1, atoms.index) for t in (log_mass, log_total))
        hit, which = atoms.hit(value)
        batch = own_mass.shape[:-1]
        which = which.expand(*batch, -1).unsqueeze(-2)
        at_atom = logits.expand(*batch, *logits.shape[-2:]).gather(-2, which).squeeze(-2)
        own_mass = torch.where(hit, torch.logaddexp(own_mass, at_atom), own_mass)
        own_total = torch.logaddexp(own_total, logits.logsumexp(-2))
        return (
            log_mass.index_copy(-1, atoms.index, own_mass),
            log_total.index_copy(-1, atoms.index, own_total),
        )

    def _draw_scaled(self, uniform: Tensor) -> Tensor:
        scaled = self.layout.scaled
        logits, centre, scale = self._components()
        k = choose_component(logits, uniform[..., 0], dim=-2)
        atoms, at_atom, atom = self.layout.atoms, None, None
        if atoms.most:
            k, at_atom, atom = self._choose_atoms(logits, uniform[..., 0], k)
        k = k.unsqueeze(-2)
        shape = (*k.shape[:-2], *logits.shape[-2:])
        centre = centre.expand(shape).gather(-2, k).squeeze(-2)
        scale = scale.expand(shape).gather(-2, k).squeeze(-2)
        value = centre + scale * standard_logistic(uniform[..., 1])
        smooth = value + scaled.half_step * (2.0 * uniform[..., 2] - 1.0)
        grid = scaled.grid.clamp_min(1e-30)
        x, smooth = (scaled.centre + scaled.spread * v for v in (value, smooth))
        whole = scaled.anchor + grid * ((x - scaled.anchor) / grid).round()
        x = torch.where(scaled.grid > 0.0, whole, smooth).clamp(scaled.lowest, scaled.highest)
        if at_atom is None or atom is None:
            return x
        own = torch.where(at_atom, atom, x.index_select(-1, atoms.index))
        return x.index_copy(-1, atoms.index, own)

    def _choose_atoms(
        self, logits: Tensor, uniform: Tensor, k: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the components, now chosen beside the atoms, whether it is an atom, and which."""
        atoms = self.layout.atoms
        own = logits.index_select(-1, atoms.index)
        every = torch.cat([own, self._atom_logits()], dim=-2)
        place = choose_component(every, uniform.index_select(-1, atoms.index), dim=-2)
        count = self.layout.num_components
        k = k.index_copy(-1, atoms.index, place.clamp_max(count - 1))
        which = (place - count).clamp_min(0)
        values = atoms.value.expand(*which.shape[:-1], *atoms.value.shape)
        return k, place >= count, values.gather(-2, which.unsqueeze(-2)).squeeze(-2)


@noise_size.register
def _(distribution: MixedColumns) -> int | None:
    return len(distribution.layout.specs) * _UNIFORMS


@from_noise.register
def _(distribution: MixedColumns, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
