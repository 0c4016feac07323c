"""Small hierarchies of latent images."""

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.partial_hierarchy import HierarchicalEncoder
from postmatch.vaes.hierarchical import HierarchicalVAE, hierarchical_vae

SMALL = HierarchyLayout("8x1,8d2,4x1,4d4,1x1", "1x2,4m1,4x1,8m4", 16, 8, 2)


def moved(layout: HierarchyLayout = SMALL, channels: int = 1) -> MatchedVAE:
    """Return a model far from the start, where levels expect the same whatever came before."""
    vae, partial = hierarchical_vae(layout, channels, num_components=3)
    model = MatchedVAE(vae, partial)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def parts(model: MatchedVAE) -> tuple[HierarchicalVAE, HierarchicalEncoder]:
    assert isinstance(model.vae, HierarchicalVAE)
    assert isinstance(model.partial, HierarchicalEncoder)
    return model.vae, model.partial


def images(rows: int, channels: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    """Return images, and which of their pixels are observed."""
    return torch.randint(256, (rows, channels, size, size)) / 255, torch.rand(
        rows, 1, size, size
    ) < 0.5
