"""A small VQ-VAE of images with its partial encoder."""

import torch

from postmatch.conditioning import MatchedVAE
from postmatch.recipes.inpainting_codes import code_model


def small_model(
    channels: int = 1, factor: int = 2, size: int = 12, components: int = 0
) -> MatchedVAE:
    torch.manual_seed(0)
    return code_model(
        channels=channels,
        size=size,
        factor=factor,
        window=factor,
        num_codes=5,
        code_size=4,
        width=8,
        components=components,
        context=(8, 4, (1, 1, 1, 1)),
        fine=(0, 0),
        posterior=(6, 2, 0),
        prior=(6, 2),
        dropout=0.0,
    )
