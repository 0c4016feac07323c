"""From a VAE that is trained already to one that answers conditional questions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from postmatch.attached_encoder import AttachedEncoder, encoder_for, set_units
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.members import MemberMixture
from postmatch.encoded_rows import Rows, Targets, checked_rows, targets_of
from postmatch.image_masks import NothingObserved, mnist_masks
from postmatch.masks import MaskDistribution, Mixture, Pattern, UniformCount
from postmatch.partial_shapes import PartialSizes, Shapes, shapes_of
from postmatch.randomness import seeded
from postmatch.row_training import VALIDATIONS, facts_of, train_on_rows
from postmatch.training.plan import Losses, Plan, Progress
from postmatch.untouched import untouched
from postmatch.vaes.base import VAE
from postmatch.vaes.external import in_float32

_NOTHING = 0.05  # how often nothing of an image is observed


def attach(
    vae: VAE,
    data: Tensor,
    *,
    available: Tensor | None = None,
    masks: MaskDistribution | Tensor | None = None,
    steps: int = 4_000,
    max_seconds: float = 0.0,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    sizes: PartialSizes | None = None,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> MatchedVAE:
    r"""Return a VAE with a partial encoder, fitted to it by Posterior Matching (paper, eq. 5).

    Only the new part is trained, by :math:`-\mathbb{E} \log q_\theta(z \mid x_o)` at draws of
    :math:`q_\psi(z \mid x)`. The VAE itself stays as it is: weights, buffers, type, device, mode,
    which weights take a gradient; and so does torch's random state. It is asked in evaluation mode,
    and should be in that mode when the result is asked.

    Args:
        vae: Trained; of a foreign model, what ``from_functions`` or ``from_diffusers`` returned.
        data: Rows that it can encode, ``(rows, *features)``; they go to the VAE's device.
        available: Which cells the rows really hold, if the VAE takes holes.
        masks: What is observed in training, or such masks themselves, ``(number, ...)``, bool; by
            default any number of cells of rows, and halves, boxes and scattered pixels of images.
        steps: How many updates.
        max_seconds: Stop after this time; 0 for no limit.
        batch_size: Rows per update.
        learning_rate: The highest; it rises to it at first, and falls afterwards.
        sizes: Of the new networks.
        seed: Decides weights, batches, masks and noise.
        show: Told of the progress, beside the bar on stderr.

    Raises:
        TypeError: If ``vae`` is no VAE, or returns what is no distribution.
        ValueError: If the data do not fit it, or it does not tell finite numbers of them.
    """
    sizes = PartialSizes() if sizes is None else sizes
    if not isinstance(sizes, PartialSizes):
        raise TypeError(f"sizes must be PartialSizes, got {type(sizes).__name__}")
    asked = in_float32(checked_vae(vae))
    with untouched(asked), seeded(seed), torch.inference_mode(False), torch.enable_grad():
        rows = checked_rows(asked, data, available, seed)
        shapes = checked_shapes(asked, rows)
        chosen = _masks(masks, shapes, rows.x.device)
        targets = targets_of(asked, rows)
        partial = AttachedEncoder(encoder_for(asked, shapes, sizes), shapes, sizes, {})
        set_units(partial.to(rows.x.device), targets)
        report = train_on_rows(
            partial,
            _Task(asked, partial, targets, chosen).losses,
            rows,
            _plan(shapes, steps, max_seconds, learning_rate),
            batch_size=batch_size,
            seed=seed,
            label="attaching",
            show=show,
        )
        partial.facts |= facts_of(report, rows, seed)
    model = MatchedVAE(asked, partial)
    model.training = False  # not eval(), which would reach the VAE
    return model


@final
@dataclass(frozen=True)
class _Task:
    """What is trained on what."""

    vae: VAE
    partial: AttachedEncoder
    targets: Targets
    masks: MaskDistribution

    def losses(self, index: Tensor, generator: torch.Generator) -> Losses:
        """Return the match of some rows."""
        some = self.targets.rows.part(index)
        pixels, shape = self.partial.shapes.pixels, some.x.shape
        shape = torch.Size([len(some.x), 1, *shape[2:]]) if pixels else shape
        observed = self.masks.sample(shape, generator)
        if some.available is not None:
            observed = observed & some.available
        if type(self.vae).losses_with is not VAE.losses_with:  # the model matches in a way its own
            return MatchedVAE(self.vae, self.partial.encoder).losses(
                some.x, some.available, observed, train_vae=False, generator=generator
            )
        z = self.targets.draws(index, generator)
        return {"match": self.vae.match_at(self.partial(some.x, observed), z).mean()}


def _plan(shapes: Shapes, steps: int, max_seconds: float, learning_rate: float) -> Plan:
    rows = len(shapes.features) == 1  # and not images: linear layers alone
    return Plan(
        steps=steps,
        learning_rate=learning_rate,
        orthogonal_rate=3.0 * learning_rate if rows else 0.0,
        validate_every=max(1, steps // VALIDATIONS),
        max_seconds=max_seconds,
        precision="tf32",
    )


def checked_vae(vae: VAE) -> VAE:
    """Return what is a VAE, or say how to make one of it."""
    if not isinstance(vae, VAE):
        raise TypeError(
            f"vae must be a postmatch.VAE, got {type(vae).__name__}: make one with from_functions "
            "(postmatch.vaes.external) or from_diffusers (postmatch.vaes.external_diffusers)"
        )
    return vae


def checked_shapes(vae: VAE, rows: Rows) -> Shapes:
    """Return the shapes of a VAE, on which rows are tried."""
    some = rows.part(torch.arange(2, device=rows.x.device))
    try:
        with torch.no_grad():
            if isinstance(vae.encode(some.x, some.available), MemberMixture):
                raise TypeError(
                    "vae must be one model, got an ensemble: attach to each member of it"
                )
            return shapes_of(vae, some.x, some.available)
    except (RuntimeError, IndexError, ValueError) as error:
        shape, reason = tuple(rows.x.shape[1:]), str(error).strip().splitlines()[0]
        raise ValueError(f"rows of shape {shape} do not fit the VAE: {reason}") from error


def _masks(
    masks: MaskDistribution | Tensor | None, shapes: Shapes, device: torch.device
) -> MaskDistribution:
    """Return what is observed in training, tried at the shape of rows."""
    if masks is None:
        image = shapes.pixels and len(shapes.features) == 3
        parts = (mnist_masks(), UniformCount(), NothingObserved())
        masks = Mixture(parts, (0.7, 0.3 - _NOTHING, _NOTHING)) if image else UniformCount()
    elif isinstance(masks, Tensor):
        masks = Pattern(masks.to(device))
    elif not isinstance(masks, MaskDistribution):
        raise TypeError(f"masks must be a MaskDistribution or bool, got {type(masks).__name__}")
    shape = (2, *((1, *shapes.features[1:]) if shapes.pixels else shapes.features))
    drawn = masks.sample(shape, torch.Generator(device).manual_seed(0))
    if drawn.dtype != torch.bool or drawn.shape != shape:
        raise ValueError(
            f"masks must be bool of shape {shape}, got {drawn.dtype} of {tuple(drawn.shape)}"
        )
    return masks
