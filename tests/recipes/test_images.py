"""What the experiments on images share: features, scores, pictures."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.image_masks import HiddenHalf, mnist_masks
from postmatch.masks import Bernoulli
from postmatch.partial import PartialEncoder
from postmatch.randomness import seeded
from postmatch.recipes.features import features_of, fit_classifier, kept_classifier
from postmatch.recipes.gallery import HIDDEN, gallery, masked
from postmatch.recipes.inpainting_scores import (
    asked,
    filler,
    imputer,
    inpainting_scores,
    zero_decoder,
)
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

    def decode(x: Tensor, _: Tensor) -> Normal:
        return Normal(x + torch.tensor([0.12, 0.06]).repeat(2).view(4, 1, 1, 1, 1), 1e-9)

    scores = inpainting_scores(decode, images, Bernoulli(0.0), flat, mask_seeds=(0, 1))
    assert scores["psnr"] == pytest.approx(-20.0 * math.log10(0.09), abs=1e-4)
    each = -20.0 * 0.5 * (math.log10(0.12) + math.log10(0.06))
    assert scores["psnr_per_sample"] == pytest.approx(each, abs=1e-4)
    assert scores["psnr_std"] == pytest.approx(0.0, abs=1e-6)
    half = inpainting_scores(decode, images, HiddenHalf("left"), flat, mask_seeds=(0,))
    assert half["psnr"] == pytest.approx(scores["psnr"] + 10.0 * math.log10(2.0), abs=1e-4)


def test_masks_do_not_depend_on_how_many_images_are_asked_about_at_once() -> None:
    images = torch.randint(256, (1_300, 1, 28, 28), dtype=torch.uint8)
    found = []
    for count in (1, 2, 4):
        blocks = list(asked(images, mnist_masks(), torch.Generator().manual_seed(3), count))
        assert len(blocks) == math.ceil(3 / count)
        assert torch.equal(torch.cat([x for x, _ in blocks]), images / 255.0)
        found.append(torch.cat([observed for _, observed in blocks]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert 0.5 < found[0].float().mean() < 0.6  # .564 of pixels are seen


def test_images_without_an_error_are_left_out_of_the_mean() -> None:
    images, _ = bars(40)

    def decode(x: Tensor, _: Tensor) -> Normal:
        off = 0.1 * (torch.arange(len(x)) % 2).view(-1, 1, 1, 1)
        return Normal((x + off)[None], 1e-9)

    scores = inpainting_scores(decode, images, Bernoulli(0.0), flat, mask_seeds=(0,))
    assert scores["psnr"] == pytest.approx(20.0, abs=1e-4)


def test_draws_that_are_all_alike_are_seen_by_their_recall() -> None:
    images, _ = bars(200)
    same = images[:1] / 255.0

    def alike(x: Tensor, _: Tensor) -> Normal:
        return Normal(same.expand(2, *x.shape), 1e-9)

    def honest(x: Tensor, _: Tensor) -> Normal:
        return Normal(x.roll(1, 0).expand(2, *x.shape), 1e-9)

    poor, good = (
        inpainting_scores(decode, images, Bernoulli(0.0), flat, mask_seeds=(0,))
        for decode in (alike, honest)
    )
    assert good["recall"] > 0.95
    assert good["precision"] > 0.95
    assert poor["recall"] < 0.3


def test_a_collapsed_posterior_gains_by_means_of_pixels_and_not_by_drawn_ones() -> None:
    # Images are of 16 squares that are dark or bright, which nothing tells: their pixels are .1
    # from their mean. One model draws the squares, the other one knows that of pixels alone.
    def squares(*shape: int) -> Tensor:
        return (0.4 + 0.2 * torch.randint(2, (*shape, 1, 4, 4))).repeat_interleave(4, -2)

    def honest(x: Tensor, _: Tensor) -> Normal:
        return Normal(squares(10, len(x)).repeat_interleave(4, -1), 1e-9)

    def collapsed(x: Tensor, _: Tensor) -> Normal:
        return Normal(torch.full((10, *x.shape), 0.5), 0.1)

    def edges(x: Tensor) -> Tensor:
        return x.diff(dim=-1).abs().flatten(1)

    with seeded(7):  # not as the draws are
        images = (255.0 * squares(400).repeat_interleave(4, -1)).round().to(torch.uint8)
    good, poor = (
        inpainting_scores(decode, images, Bernoulli(0.0), edges, mask_seeds=(0,))
        for decode in (honest, collapsed)
    )
    of_mean, of_ten, of_one = (-10.0 * math.log10(0.1**2 * n) for n in (1.0, 1.1, 2.0))
    # A mean of logarithms is above that of a mean, most where the images have few squares.
    assert good["psnr"] == pytest.approx(of_ten, abs=0.15)
    assert good["psnr_per_sample"] == pytest.approx(of_one, abs=0.25)
    assert poor["psnr"] == pytest.approx(of_mean, abs=0.01)
    assert poor["psnr_per_sample"] == pytest.approx(of_mean, abs=0.01)  # draws are alike
    assert poor["drawn_psnr"] == pytest.approx(of_ten, abs=0.05)
    assert poor["drawn_psnr_per_sample"] == pytest.approx(of_one, abs=0.05)
    for name in ("psnr", "psnr_per_sample", "precision", "recall"):
        assert good[f"drawn_{name}"] == good[name]  # whose pixels have no noise
    for name in ("precision", "recall"):
        assert poor[f"drawn_{name}"] < 0.5 < 0.8 < good[name]


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
    filled = filler(zero_decoder(Echo(), num_draws=3))(x, observed)
    assert filled.shape == (3, 2, 1, 4, 4)
    assert torch.equal(filled[..., :2], x[..., :2].expand(3, -1, -1, -1, -1))
    assert filled[..., 2:].max() < 1e-3


class Blank(PartialEncoder):
    """Tells nothing but how bright images are."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor, observed: Tensor) -> Independent:
        """Return the same for every pixel."""
        return Independent(Normal(torch.full_like(x, self.mean), 0.5), 3)


@pytest.mark.parametrize(("mean", "expected"), [(0.8, 0.8), (1.5, 1.0)])
def test_images_are_imputed_as_a_conditional_does_and_stay_images(
    mean: float, expected: float
) -> None:
    x, observed = torch.full((2, 1, 4, 4), 0.5), torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    observed[..., :2] = True
    model = MatchedVAE(Echo(), Blank(mean))
    completed = imputer(model)(x, observed)
    assert torch.equal(completed, model.given(x, observed).impute().clamp(0.0, 1.0))
    # A third of the standard error that as many independent draws have, .5 / sqrt(32).
    assert_close(completed[..., 2:], torch.full((2, 1, 4, 2), expected), atol=0.03, rtol=0.0)
    assert torch.equal(completed[..., :2], x[..., :2])


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
