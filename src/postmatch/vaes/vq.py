"""The VAE of images whose latent variable is a grid of codes (van den Oord et al., 2017)."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional as F

from postmatch.distributions.codes import CodeGrid, PointMass
from postmatch.distributions.discretised import DiscretisedLogistics
from postmatch.distributions.gaussian import Gaussian
from postmatch.distributions.pixels import Pixels
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.nets.precision import full_precision
from postmatch.vaes.base import VAE, log_likelihood, require_complete

_MIN_SCALE = 1e-5


@final
class Codebook(nn.Module):
    r"""Vectors that follow the mean of the features they stand for (VQ-VAE, appendix A.1).

    .. math:: N_k \leftarrow \gamma N_k + (1 - \gamma)\, n_k, \qquad
        m_k \leftarrow \gamma m_k + (1 - \gamma) \sum_{j \to k} f_j, \qquad e_k = m_k / N_k

    A code that nothing was near to for long starts again at a feature of the present batch, the
    likelier the farther that is from its vector, squared (as k-means++ does): where one vector
    fits, a second one would be of no use, and which of them is nearest would be chance.

    Args:
        num_codes: How many vectors there are.
        size: Their length.
        decay: :math:`\gamma`.
        smoothing: What is added to every count, so that none is zero.
        patience: Updates without use after which a code starts again.
    """

    vectors: Tensor
    counts: Tensor
    sums: Tensor
    idle: Tensor

    def __init__(
        self,
        num_codes: int,
        size: int,
        decay: float = 0.99,
        smoothing: float = 1e-5,
        patience: int = 100,
    ) -> None:
        super().__init__()
        self.decay, self.smoothing, self.patience = decay, smoothing, patience
        widest = math.sqrt(3.0 / size)  # vectors of length 1 on average
        vectors = torch.empty(num_codes, size).uniform_(-widest, widest)
        self.register_buffer("vectors", vectors)
        self.register_buffer("counts", torch.ones(num_codes))
        self.register_buffer("sums", vectors.clone())
        self.register_buffer("idle", torch.zeros(num_codes, dtype=torch.long))

    def forward(self, codes: Tensor) -> Tensor:
        """Return the vectors of codes, ``(..., size)``."""
        return F.embedding(codes, self.vectors)

    @torch.no_grad()
    def nearest(self, features: Tensor) -> Tensor:
        """Return the code whose vector is nearest to each of the features, ``(...)``."""
        with torch.autocast(features.device.type, enabled=False):
            product = full_precision(features) @ self.vectors.mT
        return (0.5 * self.vectors.square().sum(-1) - product).argmin(-1)

    @torch.no_grad()
    def update(
        self, features: Tensor, codes: Tensor, generator: torch.Generator | None = None
    ) -> None:
        """Move the vectors towards the features of their codes, and start idle ones again.

        It asks nothing of the host and changes tensors in place, so that a GPU can record it.
        Features that are not finite change nothing.

        Args:
            features: ``(..., size)``.
            codes: The nearest ones, ``(...)``.
            generator: Of where idle codes start again; torch's global state otherwise.
        """
        features, pull = full_precision(features).flatten(0, -2), 1.0 - self.decay
        chosen = F.one_hot(codes.flatten(), len(self.vectors)).to(features.dtype)
        used = chosen.sum(0)
        with torch.autocast(features.device.type, enabled=False):
            counts, sums = self.counts.lerp(used, pull), self.sums.lerp(chosen.mT @ features, pull)
        total, spare = counts.sum(), self.smoothing
        share = (counts + spare) / (total + spare * len(counts))
        vectors = sums / (share * total)[:, None]
        idle = (self.idle + 1).masked_fill(used > 0, 0)

        again = (idle >= self.patience)[:, None]
        misfit = (features - self(codes.flatten())).square().sum(-1)
        seed = features[_drawn(misfit, used.shape, generator)]
        vectors, sums = torch.where(again, seed, vectors), torch.where(again, seed, sums)
        counts = counts.masked_fill(again[:, 0], 1.0)
        idle = idle.masked_fill(again[:, 0], 0)

        sound = features.isfinite().all()
        for name, new in (("vectors", vectors), ("counts", counts), ("sums", sums), ("idle", idle)):
            buffer = self.get_buffer(name)
            buffer.copy_(torch.where(sound, new, buffer))


def _drawn(weight: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Return places drawn in proportion to weights, in a way that a GPU can record."""
    total = weight.cumsum(0)
    uniform = torch.rand(shape, generator=generator, device=weight.device)
    return torch.searchsorted(total, uniform * total[-1], right=True).clamp_max(len(weight) - 1)


@final
class VQVAE(VAE):
    r"""Images through a grid of codes; each code names one of the vectors that are decoded.

    The posterior is a point, the code nearest to the encoder's output at each position. Pixels are
    Gaussian, with one learned number as their standard deviation, or of 256 levels. The prior is a
    network of its own, fitted after all else: its loss is ``match(vae.encode(x), vae.prior())``.

    Args:
        encoder: From images to features, ``(batch, size, height, width)``, at the grid's size.
        decoder: From such a map of vectors to the means of the image, or to its logistics.
        codebook: The vectors.
        prior_net: An unconditional PixelCNN over the grid; None if nobody asks for the prior.
        scale: The standard deviation before training.
        commitment: Weight of the mean squared distance of features from their vectors.
        logistic_channels: Those of images of 256 levels, of which the decoder returns what
            :class:`~postmatch.distributions.discretised.DiscretisedLogistics` takes; 0 if it
            returns means.
        image_shape: Channels, height and width of all images, if rows are to be checked.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        codebook: Codebook,
        prior_net: PixelCNN | None = None,
        scale: float = 1.0,
        commitment: float = 0.25,
        logistic_channels: int = 0,
        image_shape: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.encoder, self.decoder, self.codebook = encoder, decoder, codebook
        self.prior_net, self.commitment = prior_net, commitment
        self.logistic_channels = logistic_channels
        self.log_scale: nn.Parameter | None = None
        if not logistic_channels:
            self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def prior(self) -> Distribution:
        """Return the distribution of the prior's own network."""
        if self.prior_net is None:
            raise ValueError("this VQVAE has no prior: give it a prior_net, and fit that to codes")
        return CodeGrid(self.prior_net)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return the point mass on the codes of complete images."""
        require_complete(available)
        with torch.no_grad():
            return PointMass(self.codebook.nearest(self._features(x)))

    def decode(self, z: Tensor) -> Distribution:
        """Return the pixels of codes ``(..., height, width)``."""
        return self._pixels(self.codebook(z))

    def loss(
        self,
        x: Tensor,
        available: Tensor | None = None,
        *,
        beta: float | Tensor = 1.0,  # noqa: ARG002
        posterior: Distribution | None = None,  # noqa: ARG002
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Return the loss of each image; in training mode, also update the codebook.

        .. math:: -\log p_\phi(x \mid e) + \lambda \operatorname{mean} (f - e)^2

        with f the encoder's output and e its nearest vectors, through which the gradient of the
        first term passes on to f as if they were f.

        Args:
            x: A batch of images.
            available: Must be True everywhere, or None.
            beta: Of no effect: the KL term does not depend on the weights.
            posterior: Of no use: codes have no gradient, so the encoder runs again.
            generator: Of where idle codes start again; torch's global state otherwise.
        """
        require_complete(available)
        features = self._features(x)
        codes = self.codebook.nearest(features)
        vectors: Tensor = self.codebook(codes)
        if self.training:
            self.codebook.update(features.detach(), codes, generator)
        straight = features + (vectors - features).detach()
        distance = (features - vectors).square().flatten(1).mean(1)
        return self.commitment * distance - log_likelihood(self._pixels(straight), x)

    def _features(self, x: Tensor) -> Tensor:
        """Return the encoder's output, ``(batch, height, width, size)``."""
        features: Tensor = full_precision(self.encoder(x)).movedim(-3, -1)
        return features

    def _pixels(self, vectors: Tensor) -> Distribution:
        """Return what the decoder says of vectors ``(..., height, width, size)``."""
        rows = vectors.reshape(-1, *vectors.shape[-3:])
        maps: Tensor = self.decoder(rows.movedim(-1, -3))  # (rows, maps, height, width)
        maps = full_precision(maps).view(*vectors.shape[:-3], *maps.shape[1:])
        if self.log_scale is None:
            return DiscretisedLogistics(maps, self.logistic_channels)
        return Pixels(Gaussian(maps, self.log_scale.exp() + _MIN_SCALE))
