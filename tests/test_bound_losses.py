"""Training the VAE, too, on the bound of conditional questions, against closed forms."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from linear_gaussian import (
    LinearGaussianVAE,
    draw_rows,
    exact_log_conditional,
    exact_log_evidence,
    exact_log_predictive,
    exact_model,
    linear_gaussian,
)


def holes(vae: LinearGaussianVAE, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows with NaN holes, what is available of them, and what is observed of that."""
    x, available = draw_rows(vae, rows, num_observed=4)
    _, some = draw_rows(vae, rows, num_observed=3, seed=2)
    return x.masked_fill(~available, math.nan), available, available & some


def test_bounds_are_the_closed_forms_when_posteriors_are_exact() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, available, observed = holes(vae, 50)
    found = exact_model(vae).bound_losses(x, available, observed)
    rows = x.nan_to_num()
    whole = exact_log_evidence(vae, rows, available)
    part = exact_log_conditional(vae, rows, observed, available & ~observed)
    # Every draw of z gives the same value, so one is enough.
    assert_close(-found["vae"], whole.mean(), atol=1e-8, rtol=0.0)
    assert_close(-found["conditional"], part.mean(), atol=1e-8, rtol=0.0)


@pytest.mark.parametrize(("scale", "shift"), [(0.7, 0.0), (1.5, 0.0), (1.0, 1.0)])
def test_the_conditional_bound_stays_below_the_density_of_sample(
    scale: float, shift: float
) -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 200, num_observed=3)
    model = exact_model(vae, scale, shift)
    truth = exact_log_predictive(vae, model.given(x, observed).latent, x, ~observed).mean()
    drawn = torch.stack(
        [-model.bound_losses(x, None, observed)["conditional"] for _ in range(50)]
    ).detach()
    assert drawn.mean() < truth + 2.0 * drawn.std() / math.sqrt(len(drawn))


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of a loss in every parameter that it depends on."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: g for name, g in zip(names, parts, strict=True) if g is not None}


def test_in_theta_the_gradient_is_that_of_the_match() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 30)
    model = exact_model(vae, 0.7, 1.0)
    torch.manual_seed(3)
    mine = gradients(model, model.bound_losses(x, None, observed)["conditional"])
    torch.manual_seed(3)
    theirs = gradients(model, model.losses(x, None, observed, train_vae=False)["match"])
    assert set(theirs) == {"partial.shift", "partial.log_scale"}
    for name, expected in theirs.items():
        assert_close(mine[name], expected)
        assert expected.norm() > 0.1
    assert {"vae.weight", "vae.log_noise", "vae.shift"} < set(mine)  # and the VAE learns from it


def test_the_encoders_entropy_keeps_z_from_shrinking() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 2_000)
    model = exact_model(vae)
    torch.manual_seed(3)
    # At the exact posterior nothing can be gained by a narrower encoder. What is left is the mean
    # of the score, whose variance is 2 per entry of z.
    bound = gradients(model, model.bound_losses(x, None, observed)["conditional"])
    error = math.sqrt(2.0 * vae.weight.shape[1] / len(x))
    assert bound["vae.log_scale"].abs() < 4.0 * error
    torch.manual_seed(3)
    match = gradients(model, model.losses(x, None, observed, train_target=True)["match"])
    assert match["vae.log_scale"] > 8.0 * error  # the match alone would narrow it


def test_the_weight_of_the_kl_term_falls_on_both_bounds() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 20)
    model = exact_model(vae, 0.7)
    values = []
    for beta in (0.0, 0.5, 1.0):
        torch.manual_seed(3)
        values.append(model.bound_losses(x, None, observed, beta=beta))
    for name in ("vae", "conditional"):
        none, half, whole = (each[name] for each in values)
        assert_close(half, (none + whole) / 2.0)
        assert (whole - none).abs() > 0.1
