"""A VAE of images and its partial encoder, trained together."""

from collections.abc import Callable

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.hierarchy import Hierarchy
from postmatch.masks import MaskDistribution
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.image_batches import ImageBatches
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report
from postmatch.vaes.hierarchical import HierarchicalVAE


def fit_jointly(
    model: MatchedVAE,
    batch: ImageBatches,
    held_out: Tensor,
    masks: MaskDistribution,
    plan: Plan,
    *,
    guess: float = 0.0,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] | None = None,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train VAE and partial encoder at once.

    Args:
        model: On the device of the images.
        batch: Draws images.
        held_out: uint8; the weights that tell these best are kept, or if none the last.
        masks: What is observed.
        plan: How long and how fast.
        guess: Weight of the pixels that the partial encoder of a hierarchy guesses; 0 for none.
        checkpoints: Where to save the state.
        stop: Asked after every step whether to save and end early.
        show: Told of the progress.
    """
    generator = batch.generator
    guessing = Guessing(model, batch()).to(generator.device) if guess else None

    def losses_of(x: Tensor, noise: torch.Generator) -> Losses:
        observed = masks.sample((len(x), 1, *x.shape[2:]), noise)
        if guessing is None:
            return model.losses(x, None, observed, generator=noise)
        assert isinstance(model.vae, HierarchicalVAE)

        def guessed(posterior: Hierarchy) -> Tensor:
            return guess * guessing.loss(posterior, x, observed)

        each = model.vae.losses_with(
            model.partial, x, None, observed, generator=noise, guess=guessed
        )
        return {name: loss.mean() for name, loss in each.items()}

    def validate() -> float:
        fixed = torch.Generator(generator.device).manual_seed(0)
        parts = torch.split(held_out, batch.size)
        each = [(losses_of(part / 255.0, fixed), len(part)) for part in parts]
        found = [(losses["vae"] + losses["match"]) * rows for losses, rows in each]
        return float(sum(found)) / len(held_out)

    return train(
        guessing or model,
        lambda _: losses_of(batch(), generator),
        plan,
        validate=validate if len(held_out) else None,
        generators=[generator],
        checkpoints=checkpoints,
        stop=stop,
        show=show,
    )
