"""A VQ-VAE of pairs of bars, which it completes as they were drawn."""

import math

import pytest
import torch
from torch import Tensor, nn

from postmatch.conditioning import MatchedVAE
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.nets.residual_conv import (
    MapAndSummary,
    ResidualConvDecoder,
    ResidualConvEncoder,
)
from postmatch.objectives import match
from postmatch.partial import MaskedEncoder
from postmatch.partial_codes import CodeGridHead
from postmatch.vaes.vq import VQVAE, Codebook

LEVELS = 4


def bars(left: Tensor, right: Tensor, generator: torch.Generator) -> Tensor:
    """Return 16x8 images with a bar in each half at these levels, and a little noise."""
    rows = torch.arange(len(left))
    x = torch.zeros(len(left), 1, LEVELS, 4, 2, 4)  # a level is 4 rows of pixels, a half 4 columns
    x[rows, 0, left, :, 0] = 1.0
    x[rows, 0, right, :, 1] = 1.0
    x = x.view(len(left), 1, 4 * LEVELS, 8)
    return x + 0.05 * torch.randn(x.shape, generator=generator)


def all_bars(generator: torch.Generator, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """Return every image there is but for the noise, and the level of its left bar.

    The right bar is at the level of the left one or the next, as likely.
    """
    left = torch.arange(LEVELS).repeat(2 * repeats)
    step = torch.arange(2).repeat_interleave(LEVELS).repeat(repeats)
    return bars(left, (left + step) % LEVELS, generator), left


def half_masks(rows: int) -> Tensor:
    """Return masks that show nothing, the left half, the right half or both, equally often."""
    shown = torch.tensor([[False, False], [True, False], [False, True], [True, True]])
    shown = shown.repeat_interleave(rows // 4, dim=0)[:, None, None]
    return shown.repeat_interleave(4, dim=-1).expand(-1, 1, 4 * LEVELS, 8)


@pytest.fixture(scope="module")
def trained() -> MatchedVAE:
    """Return a model that was trained in the three stages: codes, their prior, and the match."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    vae = VQVAE(
        ResidualConvEncoder(1, 16, 8, hidden=8, num_blocks=1),
        ResidualConvDecoder(8, 16, 1, hidden=8, num_blocks=1),
        Codebook(12, 8, patience=20),
        PixelCNN(12, (LEVELS, 2), 16, 3),
        scale=0.3,
    )
    net = ResidualConvEncoder(2, 16, 8, hidden=8, num_blocks=1)
    summary = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
    head = CodeGridHead(PixelCNN(12, (LEVELS, 2), 16, 3, 16, 8))
    model = MatchedVAE(vae, MaskedEncoder(MapAndSummary(net, summary), head))

    def stage(module: nn.Module, steps: int, rate: float, repeats: int, loss) -> None:  # noqa: ANN001
        optimiser = torch.optim.Adam(module.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, steps)
        for _ in range(steps):
            x, _ = all_bars(generator, repeats)
            optimiser.zero_grad()
            loss(x).backward()
            optimiser.step()
            schedule.step()

    stage(vae, 200, 5e-3, 2, lambda x: vae.loss(x, generator=generator).mean())
    vae.eval()
    stage(vae.prior_net, 100, 1e-2, 1, lambda x: match(vae.encode(x), vae.prior()).mean())
    stage(
        model.partial,
        200,
        1e-2,
        4,  # once with every mask
        lambda x: model.losses(x, None, half_masks(len(x)), train_vae=False)["match"],
    )
    return model.eval()


def levels(x: Tensor, half: int) -> Tensor:
    """Return the level that is brightest in one half of each image."""
    parts = x.unflatten(-1, (2, 4)).unflatten(-3, (LEVELS, 4))  # (..., levels, 4, halves, 4)
    return parts[..., half, :].mean((-1, -2)).squeeze(-2).argmax(-1)


@torch.no_grad()
def test_a_trained_model_rebuilds_its_images(trained: MatchedVAE) -> None:
    x, _ = all_bars(torch.Generator().manual_seed(1))
    rebuilt = trained.vae.decode(trained.vae.encode(x).sample()).mean
    assert (rebuilt - x).square().mean().sqrt() < 0.1


@torch.no_grad()
def test_a_fitted_prior_draws_images_like_those_it_has_seen(trained: MatchedVAE) -> None:
    drawn = trained.vae.decode(trained.vae.prior().sample(torch.Size([400]))).mean
    step = (levels(drawn, 1) - levels(drawn, 0)) % LEVELS
    # 5 in 100 may be wrong, for a short training.
    assert (step <= 1).double().mean() > 0.95 - 4.5 * math.sqrt(0.05 * 0.95 / 400)


@torch.no_grad()
def test_given_a_half_the_other_half_is_one_of_the_two_that_match_it(trained: MatchedVAE) -> None:
    generator = torch.Generator().manual_seed(2)
    x, left = all_bars(generator, repeats=10)
    observed = torch.zeros(80, 1, 4 * LEVELS, 8, dtype=torch.bool)
    observed[..., :4] = True
    answer = trained.given(x.masked_fill(~observed, math.nan), observed)
    step = (levels(answer.sample(50), 1) - left) % LEVELS
    share = torch.stack([(step == k).double().mean() for k in range(LEVELS)])
    # Each of the two has half of the draws, to what 4000 draws tell and .05 for a short training.
    assert (share[:2] - 0.5).abs().max() < 4.5 * math.sqrt(0.25 / 4000) + 0.05
    assert share[2:].sum() < 0.03
    # So a right half that matches is likelier than one that does not, on average by far.
    step = 2 + torch.arange(80) % 2
    wrong = bars(left, (left + step) % LEVELS, generator)
    better = answer.log_prob(x, num_samples=40) - answer.log_prob(wrong, num_samples=40)
    assert better.mean() > math.log(0.45 / 0.03)
    # The mean of a hidden half shows both bars at half brightness.
    parts = answer.impute(64).unflatten(-1, (2, 4)).unflatten(-3, (LEVELS, 4))[..., 1, :]
    bright = parts.mean((-1, -2)).squeeze(1)  # (batch, levels)
    rows = torch.arange(80)
    for k, expected in enumerate((0.5, 0.5, 0.0, 0.0)):
        assert (bright[rows, (left + k) % LEVELS].mean() - expected).abs() < 0.1


@torch.no_grad()
def test_given_nothing_both_halves_match_each_other(trained: MatchedVAE) -> None:
    nothing = torch.zeros(1, 1, 4 * LEVELS, 8, dtype=torch.bool)
    drawn = trained.given(torch.full(nothing.shape, math.nan), nothing).sample(400)
    step = (levels(drawn, 1) - levels(drawn, 0)) % LEVELS
    assert (step <= 1).double().mean() > 0.95 - 4.5 * math.sqrt(0.05 * 0.95 / 400)
    assert len(levels(drawn, 0).unique()) == LEVELS
