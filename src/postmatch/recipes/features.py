"""Features of images, by which sets of them are compared: those of a small classifier."""

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.randomness import seeded
from postmatch.recipes.results import read_weights, write_weights
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress

_AT_ONCE = 2_000  # images


@final
class Classifier(nn.Module):
    """A small convolutional classifier, whose last features are what it knows of an image.

    Args:
        channels: Of the images.
        num_classes: How many classes it tells apart.
        width: Filters of its first layer; the others have more.
    """

    def __init__(self, channels: int, num_classes: int, width: int = 32) -> None:
        super().__init__()
        sizes = (channels, width, 2 * width, 4 * width)
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            layers += [nn.Conv2d(fan_in, fan_out, 3, 2, 1), nn.GroupNorm(8, fan_out), nn.GELU()]
            layers += [nn.Conv2d(fan_out, fan_out, 3, 1, 1), nn.GroupNorm(8, fan_out), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.last = nn.Linear(sizes[-1], num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return ``(batch, 4 * width)`` of images in [0, 1]."""
        pooled: Tensor = self.body(x - 0.5).mean((2, 3))
        return pooled

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, ``(batch, classes)``."""
        logits: Tensor = self.last(self.features(x))
        return logits


def fit_classifier(
    images: Tensor,
    labels: Tensor | None,
    *,
    steps: int = 3_000,
    batch_size: int = 256,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Classifier:
    """Return a classifier of these images, uint8, on the device they are on.

    Args:
        images: ``(rows, channels, height, width)``.
        labels: A whole number for each; those that occur are the classes. None to learn by how many
            quarters an image was turned, for which one has to know what it shows.
        steps: How many updates.
        batch_size: Images per update.
        seed: Of weights and batches.
        show: Told of the progress.
    """
    device = images.device
    known, classes = torch.arange(4), torch.zeros(0, dtype=torch.long)
    if labels is not None:
        known, classes = torch.unique(labels.to(device), return_inverse=True)
    with seeded(seed):
        classifier = Classifier(images.shape[1], len(known)).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    size = min(batch_size, len(images))

    def loss(_: Tensor) -> Losses:
        drawn = torch.randint(len(images), (size,), generator=generator, device=device)
        x = images[drawn] / 255.0
        if labels is not None:
            return {"classes": F.cross_entropy(classifier(x), classes[drawn])}
        quarters = torch.randint(4, (size,), generator=generator, device=device)
        turned = torch.stack([x.rot90(quarter, (2, 3)) for quarter in range(4)])
        x = turned[quarters, torch.arange(size, device=device)]
        return {"classes": F.cross_entropy(classifier(x), quarters)}

    plan = Plan(steps=steps, learning_rate=1e-3, weight_decay=0.05)
    train(classifier, loss, plan, generators=[generator], show=show)
    return classifier.eval()


def kept_classifier(
    path: Path, images: Tensor, labels: Tensor | None, *, steps: int = 3_000
) -> tuple[Classifier, str]:
    """Return the classifier of a file, trained and written if there is none, and a digest of it.

    A GPU does not train the same one twice, and features of two of them do not compare.

    Args:
        path: Where its weights are, in half precision.
        images: As for :func:`fit_classifier`.
        labels: Likewise.
        steps: Likewise.
    """
    if not path.exists():
        write_weights(path, fit_classifier(images, labels, steps=steps))
    num_classes = 4 if labels is None else len(torch.unique(labels))
    classifier = read_weights(path, Classifier(images.shape[1], num_classes))
    return classifier.to(images.device).eval(), hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@torch.no_grad()
def features_of(classifier: Classifier, images: Tensor) -> Tensor:
    """Return features of images in [0, 1], ``(rows, size)``."""
    return torch.cat([classifier.features(block) for block in torch.split(images, _AT_ONCE)])
