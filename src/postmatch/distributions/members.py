"""A latent vector that also names which of several models it belongs to."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.noise import from_noise, noise_size


@final
class MemberMixture(Distribution):
    r"""The distribution of :math:`(m, z)`: m uniform over the members, z from the m-th part.

    A value is one vector, ``(..., 1 + size)``, whose first entry is m.

    Args:
        parts: One distribution over vectors for each member, all of one shape.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts = tuple(parts)
        self.has_rsample = all(part.has_rsample for part in self.parts)
        first = self.parts[0]
        event_shape = torch.Size([1 + first.event_shape[0]])
        super().__init__(first.batch_shape, event_shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log of the joint density of member and vector."""
        member, z = value[..., 0], value[..., 1:]
        each = torch.stack([part.log_prob(z) for part in self.parts], dim=-1)
        chosen = each.gather(-1, member.long().unsqueeze(-1)).squeeze(-1)
        return chosen - math.log(len(self.parts))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw members and their vectors."""
        with torch.no_grad():
            return self._draw(torch.Size(sample_shape), gradient=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw members and their vectors, with a gradient for the vectors."""
        return self._draw(torch.Size(sample_shape), gradient=True)

    def _draw(self, sample_shape: torch.Size, gradient: bool) -> Tensor:
        draws = [
            p.rsample(sample_shape) if gradient else p.sample(sample_shape) for p in self.parts
        ]
        z = torch.stack(draws, dim=-2)  # (..., members, size)
        member = torch.randint(len(self.parts), z.shape[:-2], device=z.device)
        index = member[..., None, None].expand(*z.shape[:-2], 1, z.shape[-1])
        chosen = z.gather(-2, index).squeeze(-2)
        return torch.cat([member.unsqueeze(-1).to(z.dtype), chosen], dim=-1)

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws; noise that rows share, ``(samples, 1, size)``, costs one part a sample."""
        member = (uniform[..., 0] * len(self.parts)).long().clamp(max=len(self.parts) - 1)
        rest = uniform[..., 1:]
        if uniform.dim() == 3 and uniform.shape[1] == 1:
            shape = (len(uniform), *self.batch_shape, self.event_shape[0])
            out = uniform.new_empty(shape)
            for m, part in enumerate(self.parts):
                own = (member[:, 0] == m).nonzero().squeeze(1)
                if len(own):  # of few samples, some parts have none
                    out[own, ..., 0] = float(m)
                    out[own, ..., 1:] = from_noise(part, rest[own])
            return out
        z = torch.stack([from_noise(part, rest) for part in self.parts], dim=-2)
        index = member[..., None, None].expand(*z.shape[:-2], 1, z.shape[-1])
        first = member.unsqueeze(-1).expand(*z.shape[:-2], 1).to(z.dtype)
        return torch.cat([first, z.gather(-2, index).squeeze(-2)], dim=-1)


@noise_size.register
def _(distribution: MemberMixture) -> int | None:
    sizes = [noise_size(part) for part in distribution.parts]
    return None if sizes[0] is None else 1 + sizes[0]


@from_noise.register
def _(distribution: MemberMixture, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
