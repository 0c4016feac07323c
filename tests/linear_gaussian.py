r"""A VAE whose every answer is known: :math:`x = W z + b + \varepsilon`, all of it Gaussian.

The model's own distributions come from precisions of z; the truths below come from covariances of
x. They are two derivations, so that neither can confirm the other's slip.
"""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal

from postmatch.conditioning import MatchedVAE
from postmatch.partial import PartialEncoder
from postmatch.vaes.base import VAE


@final
class LinearGaussianVAE(VAE):
    """Standard normal z, a linear decoder with its own noise per feature, an exact encoder.

    ``shift`` (in standard deviations) and ``log_scale`` spoil the encoder; they start at zero,
    where it is exact, and they are its only parameters of its own.
    """

    def __init__(self, weight: Tensor, bias: Tensor, noise: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.log_noise = nn.Parameter(noise.log())
        self.shift = nn.Parameter(weight.new_zeros(weight.shape[1]))
        self.log_scale = nn.Parameter(weight.new_zeros(()))

    def prior(self) -> Distribution:
        size = self.weight.shape[1]
        identity = torch.eye(size, dtype=self.weight.dtype)
        return MultivariateNormal(self.weight.new_zeros(size), scale_tril=identity)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        if available is None:
            available = torch.ones_like(x, dtype=torch.bool)
        return spoiled(self.posterior(x, available), self.shift, self.log_scale)

    def decode(self, z: Tensor) -> Distribution:
        return Normal(z @ self.weight.T + self.bias, self.log_noise.exp())

    def posterior(self, x: Tensor, observed: Tensor) -> MultivariateNormal:
        r"""Return :math:`p(z \mid x_o) = N(S W_o^\top R_o^{-1} (x_o - b_o), S)`."""
        ratio = observed * (-2.0 * self.log_noise).exp()  # (batch, features)
        identity = torch.eye(self.weight.shape[1], dtype=x.dtype)
        precision = identity + torch.einsum("bf,fi,fj->bij", ratio, self.weight, self.weight)
        residual = (x - self.bias).masked_fill(~observed, 0.0)
        covariance = torch.linalg.inv(precision)
        mean = torch.einsum("bij,fj,bf->bi", covariance, self.weight, ratio * residual)
        return MultivariateNormal(mean, scale_tril=torch.linalg.cholesky(covariance))


@final
class ExactPartial(PartialEncoder):
    """The exact :math:`q(z \\mid x_o)` of a linear-Gaussian VAE, or a spoiled one.

    Args:
        vae: Whose posterior it is; held, but not owned.
        scale: Factor on the standard deviations.
        shift: How far the mean is moved, in standard deviations.
    """

    def __init__(self, vae: LinearGaussianVAE, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.held = [vae]  # in a list, so that its parameters are not ours
        size = vae.weight.shape[1]
        direction = torch.ones(size, dtype=vae.weight.dtype) / math.sqrt(size)
        self.shift = nn.Parameter(shift * direction)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale), dtype=vae.weight.dtype))

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        exact = self.held[0].posterior(x, observed)
        exact = MultivariateNormal(exact.loc.detach(), scale_tril=exact.scale_tril.detach())
        return spoiled(exact, self.shift, self.log_scale)


def spoiled(exact: MultivariateNormal, shift: Tensor, log_scale: Tensor) -> MultivariateNormal:
    """Return a Gaussian with its mean moved by so many deviations, then its deviations scaled."""
    mean = exact.loc + exact.scale_tril @ shift
    return MultivariateNormal(mean, scale_tril=log_scale.exp() * exact.scale_tril)


def linear_gaussian(
    num_features: int = 6, latent_size: int = 4, *, dtype: torch.dtype = torch.float32
) -> LinearGaussianVAE:
    """Return a fixed model with correlated features of different sizes and noises."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(num_features, latent_size, generator=generator)
    bias = torch.randn(num_features, generator=generator)
    noise = 0.4 + 0.6 * torch.rand(num_features, generator=generator)
    return LinearGaussianVAE(weight.to(dtype), bias.to(dtype), noise.to(dtype))


def separate_gaussian() -> LinearGaussianVAE:
    """Return a model in which each feature tells of one latent, so that posteriors are diagonal."""
    weight = torch.tensor([[1.5, 0.0], [-0.8, 0.0], [0.0, 1.0], [0.0, 2.0]])
    return LinearGaussianVAE(weight, torch.tensor([0.5, 0.0, -1.0, 0.3]), torch.full((4,), 0.5))


def draw_rows(
    vae: LinearGaussianVAE, rows: int, num_observed: int | None = None, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Return rows of the model, and masks with so many features observed, or any number."""
    generator = torch.Generator().manual_seed(seed)
    num_features, latent_size = vae.weight.shape
    dtype = vae.weight.dtype
    z = torch.randn(rows, latent_size, generator=generator, dtype=dtype)
    noise = torch.randn(rows, num_features, generator=generator, dtype=dtype)
    rank = torch.rand(rows, num_features, generator=generator).argsort(1).argsort(1)
    count = torch.randint(num_features + 1, (rows, 1), generator=generator)
    with torch.no_grad():
        x = z @ vae.weight.T + vae.bias + vae.log_noise.exp() * noise
    return x, rank < (count if num_observed is None else num_observed)


def exact_model(vae: LinearGaussianVAE, scale: float = 1.0, shift: float = 0.0) -> MatchedVAE:
    """Return the VAE with its exact partial encoder, or with a spoiled one."""
    return MatchedVAE(vae, ExactPartial(vae, scale, shift))


# The truths: all in double precision, all from the joint Gaussian of x.


def gaussian_log_prob(x: Tensor, mean: Tensor, covariance: Tensor, counted: Tensor) -> Tensor:
    """Return the log density of the counted entries of each row, the others integrated out."""
    x, mean, covariance = x.double(), mean.double(), covariance.double()
    residual = (x - mean).masked_fill(~counted, 0.0)[..., None]
    block = _block(covariance, counted)
    square = (residual * torch.linalg.solve(block, residual)).sum((-1, -2))
    size = counted.sum(-1).double()
    return -0.5 * (square + torch.logdet(block) + size * math.log(2.0 * math.pi))


def marginal(vae: LinearGaussianVAE) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of x."""
    weight = vae.weight.detach().double()
    noise = vae.log_noise.detach().double().exp()
    return vae.bias.detach().double(), weight @ weight.T + torch.diag(noise.square())


def exact_log_evidence(vae: LinearGaussianVAE, x: Tensor, counted: Tensor) -> Tensor:
    r"""Return :math:`\log p(x_o)` of the counted features."""
    mean, covariance = marginal(vae)
    return gaussian_log_prob(x, mean, covariance, counted)


def exact_log_conditional(
    vae: LinearGaussianVAE, x: Tensor, observed: Tensor, hidden: Tensor | None = None
) -> Tensor:
    r"""Return :math:`\log p_\phi(x_u \mid x_o)`, with u all that is not observed by default."""
    hidden = ~observed if hidden is None else hidden
    known = observed | hidden
    return exact_log_evidence(vae, x, known) - exact_log_evidence(vae, x, observed)


def exact_conditional(vae: LinearGaussianVAE, x: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return mean and covariance of x given x_o; where observed, x itself and zero."""
    mean, covariance = marginal(vae)
    residual = (x.double() - mean).masked_fill(~observed, 0.0)
    both = observed[:, :, None] & observed[:, None, :]
    inverse = torch.linalg.inv(_block(covariance, observed)).masked_fill(~both, 0.0)
    gain = covariance @ inverse  # (batch, features, features)
    spread = covariance - gain @ covariance
    return mean + torch.einsum("bij,bj->bi", gain, residual), spread


def predictive(vae: LinearGaussianVAE, latent: MultivariateNormal) -> tuple[Tensor, Tensor]:
    r"""Return mean and covariance of :math:`\int p(x \mid z)\, q(z)\, dz`."""
    weight = vae.weight.detach().double()
    noise = vae.log_noise.detach().double().exp()
    mean = latent.loc.double() @ weight.T + vae.bias.detach().double()
    covariance = weight @ latent.covariance_matrix.double() @ weight.T
    return mean, covariance + torch.diag(noise.square())


def exact_log_predictive(
    vae: LinearGaussianVAE, latent: MultivariateNormal, x: Tensor, hidden: Tensor
) -> Tensor:
    r"""Return :math:`\log p_{\theta\phi}(x_u \mid x_o)` for a Gaussian q(z given x_o)."""
    return gaussian_log_prob(x, *predictive(vae, latent), hidden)


def _block(covariance: Tensor, counted: Tensor) -> Tensor:
    """Return the counted block of each covariance, with the identity elsewhere."""
    both = counted[:, :, None] & counted[:, None, :]
    return covariance.masked_fill(~both, 0.0) + torch.diag_embed((~counted).double())
