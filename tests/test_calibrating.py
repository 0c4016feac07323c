"""Calibration: a model that is too sure, or not sure enough, is put right by held-out cells."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.calibrating import calibrate
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.layout import ColumnLayout
from postmatch.distributions.mixed import MixedColumns
from postmatch.tabular import TableModelConfig, members_of, table_model

NUMBER = ColumnSpec("number", step=0.01, knots=(-3.0, 0.0, 3.0))
SPECS = (NUMBER, NUMBER, ColumnSpec("category", size=3))
SMALL = TableModelConfig(
    latent_size=3, width=16, prior_width=16, head_width=16, num_blocks=1, column_components=1
)


def fixed_model(scale: float, members: int = 1) -> MatchedVAE:
    """Return a model that says the same of every row: a logistic number, a category's odds."""
    model = table_model(SPECS, TableModelConfig(**{**vars(SMALL), "num_members": members})).eval()
    for member in members_of(model):
        head = member.vae.head  # type: ignore[union-attr]
        layout = member.vae.layout
        with torch.no_grad():
            head.weight.zero_()  # type: ignore[union-attr, operator]
            bias = torch.zeros(layout.num_outputs)  # type: ignore[arg-type]
            spread = layout.scaled.spread  # type: ignore[union-attr]
            narrowest = 0.01 + 0.2 * layout.scaled.half_step  # type: ignore[union-attr]
            raw = torch.expm1(scale / spread - narrowest).log()  # type: ignore[operator]
            bias[: layout.num_mixture] = torch.stack(
                [torch.zeros(2), torch.zeros(2), raw]
            ).flatten()
            bias[-3:] = torch.tensor([2.0, 0.0, -1.0])
            head.bias.copy_(bias)  # type: ignore[union-attr, operator]
    return model


def rows(number: int) -> tuple[Tensor, Tensor]:
    """Return logistic numbers of scale 1/2, categories of known odds, and masks that hide all."""
    noise = torch.rand(number, 2).clamp(1e-6, 1.0 - 1e-6)
    levels = torch.distributions.Categorical(logits=torch.tensor([2.0, 0.0, -1.0]))
    centre = torch.zeros(())
    return torch.cat(
        [centre + 0.5 * noise.logit(), levels.sample(torch.Size([number, 1])).float()], 1
    ), torch.zeros(number, 3, dtype=torch.bool)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("scale", [0.2, 0.5, 0.8])
def test_scales_are_put_right(scale: float, members: int) -> None:
    model = fixed_model(scale, members)
    x, seen = rows(4000)
    calibrate(model, x, seen, ~seen)
    # The relative standard error of a logistic scale from so many cells, for the best estimate;
    # half as much again for one by a score of 32 draws.
    error = 1.5 * 0.84 / math.sqrt(8000)
    assert float(model.vae.widening) == pytest.approx(0.5 / scale, rel=4.0 * error + 0.02)  # type: ignore[arg-type]


def test_a_few_cells_that_lie_far_off_do_not_decide() -> None:
    model = fixed_model(0.5)
    x, seen = rows(2000)
    x[:10, :2] = 40.0  # one in two hundred, eighty scales away: the likelihood would follow
    calibrate(model, x, seen, ~seen)
    assert float(model.vae.widening) < 1.2  # type: ignore[arg-type]


def test_a_few_cells_change_little_and_none_change_nothing() -> None:
    model = fixed_model(0.05)
    x, seen = rows(4)
    few = torch.zeros_like(seen)
    few[0, 0] = True
    calibrate(model, x, seen, few)
    assert 0.5 < float(model.vae.widening) < 2.5  # type: ignore[arg-type]
    calibrate(model, x, seen, torch.zeros_like(seen))
    assert float(model.vae.widening) == 1.0  # type: ignore[arg-type]


def test_a_calibrated_density_still_integrates_to_one_and_keeps_its_mean() -> None:
    layout = ColumnLayout(SPECS, 3)
    parameters = torch.randn(layout.num_outputs)
    plain = MixedColumns(layout, parameters)
    wide = MixedColumns(layout, parameters, torch.tensor(1.7))
    grid = torch.linspace(-60.0, 60.0, 24_001)
    x = torch.stack([grid, grid, torch.zeros_like(grid)], 1)
    mass = wide.log_prob(x).exp()[:, :2].sum(0) * (grid[1] - grid[0])
    assert_close(mass, torch.ones(2), atol=2e-3, rtol=0.0)
    levels = torch.stack([torch.zeros(3), torch.zeros(3), torch.arange(3.0)], 1)
    assert wide.log_prob(levels)[:, 2].exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert_close(wide.mean[:2], plain.mean[:2])
    assert not torch.allclose(wide.log_prob(x), plain.log_prob(x))
    assert torch.equal(wide.log_prob(levels)[:, 2], plain.log_prob(levels)[:, 2])
    ones = MixedColumns(layout, parameters, torch.ones(()))
    assert_close(ones.log_prob(x), plain.log_prob(x))
