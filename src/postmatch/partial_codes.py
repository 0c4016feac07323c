"""The head that turns features of an image into a distribution over grids of codes."""

from typing import final

from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.codes import CodeGrid
from postmatch.nets.pixelcnn import PixelCNN

_VECTOR_AXES = 2


@final
class CodeGridHead(nn.Module):
    """Features to the distribution that a PixelCNN defines given them.

    Args:
        net: The PixelCNN; it says whether it takes a vector, a map, or both.
    """

    def __init__(self, net: PixelCNN) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor | tuple[Tensor, Tensor]) -> Distribution:
        """Return the distribution, batch shape ``(batch,)``.

        Args:
            features: A vector for each row, ``(batch, size)``, or a map at the resolution of the
                grid, ``(batch, channels, height, width)``, or the two of them.
        """
        if isinstance(features, tuple):
            return CodeGrid(self.net, *features)
        if features.dim() == _VECTOR_AXES:
            return CodeGrid(self.net, features)
        return CodeGrid(self.net, spatial=features)
