r"""A VAE that is not Gaussian, with answers by quadrature: :math:`x = (2 z, z^2) + \varepsilon`.

Seeing the second feature leaves two values of z: its posterior has two modes. Densities of z are
constant on the cells of a fine grid, so that they can be drawn from and evaluated exactly.
"""

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from postmatch.conditioning import MatchedVAE
from postmatch.partial import PartialEncoder
from postmatch.vaes.base import VAE, log_likelihood, or_everything

GRID = torch.linspace(-12.0, 12.0, 4_801, dtype=torch.float64)
CENTRES = 0.5 * (GRID[1:] + GRID[:-1])
CELL = float(GRID[1] - GRID[0])
NOISE = 0.5


@final
class OnGrid(Distribution):
    """Real numbers, as vectors of length 1, whose density is constant on the cells of a grid.

    Args:
        log_mass: Logarithms of the cells' probabilities, up to a constant, ``(batch, cells)``.
        scale: Factor by which the distribution is stretched around its mean.
        shift: How far it is moved, in standard deviations before stretching.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, log_mass: Tensor, scale: float = 1.0, shift: float = 0.0) -> None:
        self.log_mass = log_mass.log_softmax(-1)
        mass = self.log_mass.exp()
        self.middle = mass @ CENTRES
        spread = (mass @ CENTRES.square() - self.middle.square()).sqrt()
        self.scale, self.moved = scale, shift * spread
        super().__init__(log_mass.shape[:-1], torch.Size([1]), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Choose a cell, and a place in it."""
        shape = torch.Size(sample_shape) + self.batch_shape
        sums = self.log_mass.exp().cumsum(-1)
        uniform = torch.rand(*shape, dtype=torch.float64)
        rows = uniform.reshape(-1, *self.batch_shape).movedim(0, -1).contiguous()
        cell = torch.searchsorted(sums, rows * sums[..., -1:]).clamp_max(len(CENTRES) - 1)
        cell = cell.movedim(-1, 0).reshape(shape)
        z = GRID[cell] + CELL * torch.rand(*shape, dtype=torch.float64)
        return (self.middle + self.scale * (z - self.middle) + self.moved).unsqueeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the cell that each number comes from."""
        z = (value[..., 0] - self.moved - self.middle) / self.scale + self.middle
        cell = ((z - GRID[0]) / CELL).floor().long()
        inside = (cell >= 0) & (cell < len(CENTRES))
        log_mass = self.log_mass.expand(*cell.shape, -1)
        found = log_mass.gather(-1, cell.clamp(0, len(CENTRES) - 1).unsqueeze(-1))[..., 0]
        return torch.where(inside, found - math.log(CELL * self.scale), -math.inf)

    def places(self) -> Tensor:
        """Return where the cells' centres are, ``(batch, cells)``."""
        middle = self.middle.unsqueeze(-1)
        return middle + self.scale * (CENTRES - middle) + self.moved.unsqueeze(-1)


@final
class CurvedVAE(VAE):
    """Standard normal z on the grid, two curved features, an exact encoder."""

    def prior(self) -> Distribution:
        return OnGrid(-0.5 * CENTRES.square())

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        return self.posterior(x, or_everything(available, x))

    def decode(self, z: Tensor) -> Distribution:
        return Normal(torch.cat([2.0 * z, z.square()], dim=-1), NOISE)

    def posterior(
        self, x: Tensor, observed: Tensor, scale: float = 1.0, shift: float = 0.0
    ) -> OnGrid:
        decoded = self.decode(CENTRES[:, None, None].expand(-1, len(x), 1))
        log_x = log_likelihood(decoded, x, observed).T  # (batch, cells)
        return OnGrid(log_x - 0.5 * CENTRES.square(), scale, shift)


@final
class CurvedPartial(PartialEncoder):
    """The exact posterior of a curved VAE given what is observed, or a spoiled one."""

    def __init__(self, vae: CurvedVAE, scale: float, shift: float) -> None:
        super().__init__()
        self.held, self.scale, self.shift = [vae], scale, shift

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        return self.held[0].posterior(x, observed, self.scale, self.shift)


def curved_model(scale: float = 1.0, shift: float = 0.0) -> MatchedVAE:
    """Return the model, its partial posterior spoiled as told."""
    vae = CurvedVAE()
    return MatchedVAE(vae, CurvedPartial(vae, scale, shift))


def draw_curved(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows of the model, and masks of which each hides one or the other feature."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    first = torch.rand(rows, generator=generator) < 0.5
    return torch.cat([2.0 * z, z.square()], 1) + NOISE * noise, torch.stack([first, ~first], 1)


def quadrature(latent: Distribution, vae: CurvedVAE, x: Tensor, hidden: Tensor) -> Tensor:
    r"""Return :math:`\log \int p(x_u \mid z)\, q(z \mid x_o)\, dz` cell by cell."""
    assert isinstance(latent, OnGrid)
    decoded = vae.decode(latent.places().T.unsqueeze(-1))
    return (log_likelihood(decoded, x, hidden) + latent.log_mass.T).logsumexp(0)
