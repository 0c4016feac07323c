"""A VAE with another prior than its own."""

from typing import final

from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.vaes.base import VAE


@final
class WithPrior(VAE):
    """Another VAE with a prior in place of its own; all else is its own.

    Args:
        body: Whose encoder and decoder these are.
        learned: Returns p(z) when it is called.
    """

    def __init__(self, body: VAE, learned: nn.Module) -> None:
        super().__init__()
        self.body, self.learned = body, learned
        kept = (told for told in body.assumptions if not told.startswith("p(z)"))
        self.assumptions = tuple(kept)

    def prior(self) -> Distribution:
        """Return the other prior."""
        distribution: Distribution = self.learned()
        return distribution

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) of the body."""
        return self.body.encode(x, available)

    def decode(self, z: Tensor) -> Distribution:
        """Return p(x | z) of the body."""
        return self.body.decode(z)

    def point(self, decoded: Distribution) -> Tensor:
        """Return what the body takes for its best guess."""
        return self.body.point(decoded)
