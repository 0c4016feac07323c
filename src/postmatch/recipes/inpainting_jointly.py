"""A VAE of images and its partial encoder, trained together, and then perhaps the latter alone."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.hierarchy import Hierarchy
from postmatch.masks import MaskDistribution
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.phases import below, between, joined, parted
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
    alone: float = 0.0,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] | None = None,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train VAE and partial encoder at once, and then the partial encoder with the VAE as it is.

    As long as both learn, the partial encoder follows a target that moves. Alone it catches up,
    and its steps are short, since nothing goes back through the VAE.

    Args:
        model: On the device of the images.
        batch: Draws images.
        held_out: uint8; the weights that tell these best are kept, or if none the last.
        masks: What is observed.
        plan: Of both parts, which share its steps and its time.
        guess: Weight of the pixels that the partial encoder of a hierarchy guesses; 0 for none.
        alone: The part of the plan in which it learns alone, at its end.
        checkpoints: Where to save the state, of each part if there are two.
        stop: Asked after every step whether to save and end early.
        show: Told of the progress.
    """
    losses = _Losses(model, masks, batch, guess)

    def run(plan: Plan, checkpoints: Checkpoints | None, start: float, end: float) -> Report:
        return train(
            losses.trained,
            lambda _: losses.of(batch(), batch.generator),
            plan,
            validate=(lambda: losses.held_out(held_out)) if len(held_out) else None,
            generators=[batch.generator],
            checkpoints=checkpoints,
            stop=stop,
            show=between(start, end, show),
        )

    if not alone:
        return run(plan, checkpoints, 0.0, 1.0)
    early, late = parted(plan, 1.0 - alone)
    first = run(early, below(checkpoints, "together"), 0.0, 1.0 - alone)
    if first.stopped_by == "interruption":
        return first
    model.vae.requires_grad_(False)
    try:
        second = run(late, below(checkpoints, "alone"), 1.0 - alone, 1.0)
    finally:
        model.vae.requires_grad_(True)
    return joined(first, second)


@final
class _Losses:
    """What a model errs by on images, as long as its VAE learns too and afterwards."""

    def __init__(
        self, model: MatchedVAE, masks: MaskDistribution, batch: ImageBatches, guess: float
    ) -> None:
        self.model, self.masks, self.batch, self.guess = model, masks, batch, guess
        device = batch.generator.device
        self.guessing = Guessing(model, batch()).to(device) if guess else None
        self.trained = self.guessing or model

    def of(self, x: Tensor, noise: torch.Generator) -> Losses:
        """Return the losses of a batch."""
        observed = self.masks.sample((len(x), 1, *x.shape[2:]), noise)
        train_vae = any(p.requires_grad for p in self.model.vae.parameters())
        guessing = self.guessing
        if guessing is None:
            return self.model.losses(x, None, observed, train_vae=train_vae, generator=noise)
        assert isinstance(self.model.vae, HierarchicalVAE)

        def guessed(posterior: Hierarchy) -> Tensor:
            return self.guess * guessing.loss(posterior, x, observed)

        each = self.model.vae.losses_with(
            self.model.partial,
            x,
            None,
            observed,
            train_vae=train_vae,
            generator=noise,
            guess=guessed,
        )
        return {name: loss.mean() for name, loss in each.items()}

    def held_out(self, images: Tensor) -> float:
        """Return those of VAE and match, or of the match alone, with the same masks each time."""
        fixed = torch.Generator(images.device).manual_seed(0)
        parts = torch.split(images, self.batch.size)
        each = [(self.of(part / 255.0, fixed), len(part)) for part in parts]
        found = [(losses.get("vae", 0.0) + losses["match"]) * rows for losses, rows in each]
        return float(sum(found)) / len(images)
