"""What the experiments on images share: features, scores, pictures."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from postmatch.image_masks import HiddenHalf
from postmatch.masks import Bernoulli
from postmatch.recipes.features import features_of, fit_classifier, kept_classifier
from postmatch.recipes.gallery import HIDDEN, gallery, masked
from postmatch.recipes.inpainting_scores import inpainting_scores, zero_filler
from postmatch.vaes.base import VAE


def bars(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return noisy images of an upright or a level bar, and which it is."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 60, (rows, 1, 16, 16), generator=generator, dtype=torch.uint8)
    kind = torch.randint(2, (rows,), generator=generator)
    place = torch.randint(2, 14, (rows,), generator=generator)
    for i in range(rows):
        (images[i, 0] if kind[i] else images[i, 0].mT)[int(place[i])] = 220
    return images, 7 * kind + 2  # labels need not count from zero


def test_a_classifier_learns_what_its_features_then_tell() -> None:
    images, labels = bars(400)
    classifier = fit_classifier(images, labels, steps=60, batch_size=64)
    unseen, truth = bars(200, seed=1)
    with torch.no_grad():
        found = classifier(unseen / 255.0).argmax(1)
    assert ((found == 1) == (truth == 9)).double().mean() > 0.95
    features = features_of(classifier, unseen / 255.0)
    assert features.shape == (200, 128)
    centres = torch.stack([features[truth == label].mean(0) for label in (2, 9)])
    nearest = torch.cdist(features, centres).argmin(1)
    assert ((nearest == 1) == (truth == 9)).double().mean() > 0.95


def test_a_classifier_is_trained_once_and_then_read(tmp_path: Path) -> None:
    images, labels = bars(40)
    first, digest = kept_classifier(tmp_path / "one", images, labels, steps=2)
    again, same = kept_classifier(tmp_path / "one", images, labels, steps=9)  # which it is not
    assert digest == same
    assert torch.equal(features_of(first, images / 255.0), features_of(again, images / 255.0))
    assert kept_classifier(tmp_path / "two", images, labels, steps=3)[1] != digest
    assert kept_classifier(tmp_path / "three", images, None, steps=1)[0].last.out_features == 4
    with pytest.raises(ValueError, match="one does not hold the weights of this model"):
        kept_classifier(tmp_path / "one", images, None)


def flat(x: Tensor) -> Tensor:
    """Return pixels as features."""
    return x.flatten(1)


def test_errors_are_those_of_the_hidden_pixels_averaged_over_the_image() -> None:
    images, _ = bars(60)

    def fill(x: Tensor, observed: Tensor) -> Tensor:
        off = torch.tensor([0.2, 0.1]).repeat(2).view(4, 1, 1, 1, 1)
        return torch.where(observed, x, x + off)

    scores = inpainting_scores(fill, images, Bernoulli(0.0), flat, mask_seeds=(0, 1))
    assert scores["psnr"] == pytest.approx(-20.0 * math.log10(0.15), abs=1e-4)
    each = -20.0 * 0.5 * (math.log10(0.2) + math.log10(0.1))
    assert scores["psnr_per_sample"] == pytest.approx(each, abs=1e-4)
    assert scores["psnr_std"] == pytest.approx(0.0, abs=1e-6)
    half = inpainting_scores(fill, images, HiddenHalf("left"), flat, mask_seeds=(0,))
    assert half["psnr"] == pytest.approx(scores["psnr"] + 10.0 * math.log10(2.0), abs=1e-4)


def test_images_without_an_error_are_left_out_of_the_mean() -> None:
    images, _ = bars(40)

    def fill(x: Tensor, observed: Tensor) -> Tensor:
        off = 0.1 * (torch.arange(len(x)) % 2).view(-1, 1, 1, 1)
        return torch.where(observed, x, x + off)[None]

    scores = inpainting_scores(fill, images, Bernoulli(0.0), flat, mask_seeds=(0,))
    assert scores["psnr"] == pytest.approx(20.0, abs=1e-4)


def test_draws_that_are_all_alike_are_seen_by_their_recall() -> None:
    images, _ = bars(200)
    same = images[:1] / 255.0

    def alike(x: Tensor, observed: Tensor) -> Tensor:
        return torch.where(observed, x, same).expand(2, *x.shape)

    def honest(x: Tensor, observed: Tensor) -> Tensor:
        return torch.where(observed, x, x.roll(1, 0)).expand(2, *x.shape)

    poor, good = (
        inpainting_scores(fill, images, Bernoulli(0.0), flat, mask_seeds=(0,))
        for fill in (alike, honest)
    )
    assert good["recall"] > 0.95
    assert good["precision"] > 0.95
    assert poor["recall"] < 0.3


class Echo(VAE):
    """A VAE whose z is the image with a little noise."""

    def prior(self) -> Independent:
        """Return some distribution."""
        return Independent(Normal(torch.zeros(1, 4, 4), 1.0), 3)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Independent:
        """Return the image."""
        return Independent(Normal(x, 1e-4), 3)

    def decode(self, z: Tensor) -> Normal:
        """Return the image again."""
        return Normal(z, 1.0)


def test_an_encoder_without_a_match_sees_zeros_in_the_holes() -> None:
    x, observed = torch.full((2, 1, 4, 4), 0.5), torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    observed[..., :2] = True
    filled = zero_filler(Echo(), num_draws=3)(x, observed)
    assert filled.shape == (3, 2, 1, 4, 4)
    assert torch.equal(filled[..., :2], x[..., :2].expand(3, -1, -1, -1, -1))
    assert filled[..., 2:].max() < 1e-3


def test_a_gallery_shows_images_what_is_seen_and_what_was_filled() -> None:
    x, observed = torch.zeros(2, 1, 3, 4), torch.ones(2, 1, 3, 4, dtype=torch.bool)
    observed[..., 0] = False
    picture = gallery(x, observed, [torch.ones_like(x)], scale=2)
    assert picture.dtype == torch.uint8
    assert picture.shape == (3, 2 * (2 * 3 + 2), 3 * (2 * 4 + 2))
    blue = (torch.tensor(HIDDEN) * 255.0).round().to(torch.uint8)
    assert torch.equal(picture[:, 0, 10], blue)  # the hidden first column of what is seen
    assert picture[:, 0, 0].tolist() == [0, 0, 0]
    assert picture[:, 0, 20].tolist() == [255, 255, 255]
    assert masked(x.masked_fill(~observed, torch.nan), observed).isfinite().all()
