"""EDDI against the closed form, and from the data to the result it is added to."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from linear_gaussian import LinearGaussianVAE, draw_rows, exact_conditional, linear_gaussian
from postmatch.conditioning import MatchedVAE
from postmatch.data.images import Images
from postmatch.offers import Offers
from postmatch.recipes import acquisition_run
from postmatch.recipes.acquisition import Config

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "baselines"))

import eddi
import eddi_run
from eddi import EddiReward, Embedding, PointNet, build

FEATURES = 6


class Evidence(nn.Module):
    """What each feature adds to the precision of z, and to its precision times its mean."""

    def __init__(self, vae: LinearGaussianVAE) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, x: Tensor) -> Tensor:
        vae = self.vae
        scaled = vae.weight * (-2.0 * vae.log_noise).exp()[:, None]
        precision = (vae.weight[:, :, None] * scaled[:, None, :]).flatten(1)
        moved = (x - vae.bias).unsqueeze(-1) * scaled
        return torch.cat([precision.expand(*x.shape, -1), moved], dim=-1)


class Posterior(nn.Module):
    """From sums of evidence to the exact posterior."""

    def forward(self, total: Tensor) -> MultivariateNormal:
        size = math.isqrt(total.shape[-1])
        precision, moved = total.split([size * size, size], dim=-1)
        precision = precision.unflatten(-1, (size, size)) + torch.eye(size, dtype=total.dtype)
        mean = torch.linalg.solve(precision, moved)
        return MultivariateNormal(mean, precision_matrix=precision, validate_args=False)


def test_the_reward_is_the_information_about_all_else_that_is_hidden() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 12)
    model = MatchedVAE(vae, PointNet(Evidence(vae), Posterior()))
    hidden, offers = ~observed, Offers.each([FEATURES])
    parts = [EddiReward(model, offers, 64, seed)(x, observed) for seed in range(8)]
    found = torch.stack(parts)[:, hidden]
    # I(x_i; x_rest | x_o) = log(var(x_i | x_o) / var(x_i | x_o, x_rest)) / 2
    _, now = exact_conditional(vae, x, observed)
    exact = torch.full(observed.shape, -math.inf, dtype=torch.float64)
    for i in range(FEATURES):
        others = torch.ones_like(observed)
        others[:, i] = False
        _, then = exact_conditional(vae, x, others)
        exact[:, i] = 0.5 * (now[:, i, i] / then[:, i, i]).log()
    error = found.std(0) / len(parts) ** 0.5  # of eight randomised nets of 64 points each
    assert ((found.mean(0) - exact[hidden]).abs() < 5.0 * error + 1e-3).all()
    assert (parts[0][observed] == -math.inf).all()
    assert exact[hidden].max() > 0.3


@pytest.fixture
def encoder() -> PointNet:
    torch.manual_seed(0)
    return PointNet(Embedding(5, 3, 8), nn.Linear(8, 2))


@pytest.mark.parametrize("junk", [0.0, 1e6, math.nan])
def test_the_set_encoder_never_reads_hidden_values(encoder: PointNet, junk: float) -> None:
    x, observed = torch.rand(20, 5), torch.rand(20, 5) < 0.5
    assert_close(encoder(x.masked_fill(~observed, junk), observed), encoder(x, observed))
    assert not torch.allclose(encoder(x + 1.0, observed), encoder(x, observed))


def test_the_set_encoder_knows_features_by_their_names_alone(encoder: PointNet) -> None:
    x, observed, order = torch.rand(20, 5), torch.rand(20, 5) < 0.5, torch.tensor([3, 1, 4, 0, 2])
    before = encoder(x, observed)
    assert not torch.allclose(encoder(x[:, order], observed[:, order]), before)
    encoder.embed.names = nn.Parameter(encoder.embed.names[order])  # type: ignore[union-attr,index,assignment]
    assert_close(encoder(x[:, order], observed[:, order]), before)


def test_training_lowers_the_bound_on_what_is_observed() -> None:
    torch.manual_seed(0)
    images = torch.rand(1, 1, 16, 16).round().expand(8, -1, -1, -1)
    config = Config(steps=30, batch_size=2, learning_rate=2e-2, precision="float32")
    model, _ = eddi.fit(config, images)
    observed = torch.rand(images.shape) < 0.2
    filled = model.given(images, observed).impute()
    wrong = (filled - images)[~observed].square().mean()
    assert wrong < 0.2  # of an untrained model: all pixels by one half, 0.25


def test_errors_are_added_to_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = torch.randint(256, (8, 1, 28, 28), dtype=torch.uint8)
    images = Images("mnist", lambda _: (pixels, None))
    monkeypatch.setattr(acquisition_run, "load_images", lambda _: images)
    monkeypatch.setattr(eddi_run, "load_images", lambda _: images)
    words = ["-o", str(tmp_path), "--device", "cpu", "--steps", "2"]
    assert eddi_run.main(words) == 1
    assert "run postmatch reproduce acquisition first" in capsys.readouterr().err
    small = Config(
        steps=1,
        joint_steps=1,
        gain_steps=1,
        batch_size=4,
        gain_batch_size=4,
        num_offers=3,
        precision="float32",
    )
    ours = acquisition_run.run(
        tmp_path, config=small, ways=("amortised",), num_steps=2, test_rows=3
    )
    before = (tmp_path / "acquisition-mnist-mlp.png").read_bytes()
    assert eddi_run.main(words) == 0
    added = json.loads(capsys.readouterr().out.splitlines()[-1])
    result = json.loads((tmp_path / "acquisition-mnist-mlp.json").read_text())
    assert result["curves"] == ours["curves"] | {"eddi": added["curve"]}
    assert len(added["curve"]) == 3
    assert (added["steps"], added["seed"]) == (2, 0)
    assert (tmp_path / "acquisition-mnist-mlp.png").read_bytes() != before


def test_sizes_are_those_of_our_own_perceptrons() -> None:
    model = build(Config())
    widths = [layer.out_features for layer in model.partial.read if isinstance(layer, nn.Linear)]  # type: ignore[union-attr]
    assert widths == [50, 100, 200]
