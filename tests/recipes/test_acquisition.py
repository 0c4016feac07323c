"""The recipe of acquisition on small sizes: everything runs, and policies are what they say."""

import json
from pathlib import Path

import pytest
import torch
from torch.distributions import Distribution, Independent, Normal

from postmatch.acquisition import acquire
from postmatch.cli import main
from postmatch.conditioning import MatchedVAE
from postmatch.data.images import Images
from postmatch.partial import PartialEncoder
from postmatch.recipes import acquisition_run
from postmatch.recipes.acquisition import (
    SIDE,
    Config,
    Network,
    Objective,
    build,
    fit,
    offers,
    read,
)
from postmatch.recipes.acquisition_pictures import trajectories
from postmatch.recipes.gallery import HIDDEN
from postmatch.recipes.orders import FixedOrder, RandomOrder, best_fixed_order

SMALL = {
    "steps": 3,
    "joint_steps": 2,
    "gain_steps": 2,
    "batch_size": 4,
    "gain_batch_size": 4,
    "num_offers": 3,
}
SMALL |= {"precision": "float32"}


@pytest.mark.parametrize("network", ["mlp", "conv"])
@pytest.mark.parametrize("objective", ["bound", "match"])
def test_all_networks_are_trained_and_choose_pixels(network: Network, objective: Objective) -> None:
    images = torch.randint(256, (8, 1, 28, 28), dtype=torch.uint8)
    fitted = fit(Config(network=network, objective=objective, **SMALL), images)  # type: ignore[arg-type]
    steps = {part: report.steps for part, report in fitted.reports.items()}
    assert steps == {"model": 3, "amortised": 2, "together": 2, "lookahead": 2}
    x, nothing = read(images), torch.zeros(8, 1, SIDE, SIDE, dtype=torch.bool)
    for acquirer in (fitted.amortised, fitted.lookahead):
        path = acquire(acquirer, x, nothing, 3)
        assert (path.observed[-1].flatten(1).sum(1) == 3).all()


def test_images_are_made_small_without_smoothing() -> None:
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 0, 0] = 255
    # The first of 16 samples lies at 0.375 of a pixel from the first of 28, in both directions.
    small = read(image)
    assert small.shape == (1, 1, SIDE, SIDE)
    assert small[0, 0, 0, 0].item() == pytest.approx(0.625**2, abs=1e-6)
    assert small.flatten()[1:].abs().max() == 0.0


def test_orders_are_kept() -> None:
    every, x = offers(), torch.zeros(2, 1, SIDE, SIDE)
    nothing = torch.zeros(2, 1, SIDE, SIDE, dtype=torch.bool)
    fixed = FixedOrder(every, torch.tensor([7, 200, 3]))
    assert acquire(fixed, x, nothing, 3).offers.tolist() == [[7, 200, 3]] * 2
    assert best_fixed_order(fixed, x, 3).tolist() == [7, 200, 3]
    paths = [acquire(RandomOrder(every, seed), x, nothing, 20).offers for seed in (0, 0, 1)]
    assert torch.equal(paths[0], paths[1])
    assert not torch.equal(paths[0], paths[2])
    assert not torch.equal(paths[0][0], paths[0][1])
    assert all(len(set(row)) == 20 for row in paths[0].tolist())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, with noise in the place of MNIST."""
    images = torch.randint(256, (12, 1, 28, 28), dtype=torch.uint8)
    splits = {"train": images, "test": images[:4]}
    monkeypatch.setattr(
        acquisition_run,
        "load_images",
        lambda name: Images(name, lambda split: (splits[split], None)),
    )
    return tmp_path


def test_a_run_writes_curves_of_every_way(folder: Path) -> None:
    config = Config(**SMALL)  # type: ignore[arg-type]
    result = acquisition_run.run(folder, config=config, num_steps=2, test_rows=3)
    assert set(result["curves"]) == set(acquisition_run.WAYS)
    assert all(len(curve) == 3 for curve in result["curves"].values())
    starts = {round(curve[0], 6) for curve in result["curves"].values()}
    assert len(starts) == 1  # nothing was looked at yet
    assert json.loads((folder / "acquisition-mnist-mlp.json").read_text()) == result
    for name in ("acquisition-mnist-mlp.png", "acquisition-mnist-mlp-trajectories.png"):
        assert (folder / name).stat().st_size > 1_000


def test_the_command_writes_and_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "acquisition", "-o", str(folder), "--device", "cpu"]
    assert main([*words, "--network", "transformer"]) == 1
    assert "--network must be one of mlp, conv, got 'transformer'" in capsys.readouterr().err
    assert main([*words, "--steps", "1", "--test-rows", "1"]) == 0
    assert "amortised" in capsys.readouterr().out


def test_the_error_counts_what_is_hidden_over_all_pixels() -> None:
    class Known(PartialEncoder):
        def forward(self, x: torch.Tensor, observed: torch.Tensor) -> Distribution:
            return Independent(Normal(torch.zeros(len(x), 10), 1.0), 1)

    vae = build(Config(precision="float32")).vae
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()  # every pixel is expected to be one half
    x = torch.ones(2, 1, SIDE, SIDE)
    fixed = FixedOrder(offers(), torch.arange(4))
    found = acquisition_run.curve(MatchedVAE(vae, Known()), fixed, x, 4)
    exact = [(0.25 * (256 - k) / 256) ** 0.5 for k in range(5)]
    assert found == pytest.approx(exact, abs=1e-6)


def test_trajectories_show_what_was_looked_at_and_how_the_rest_was_filled() -> None:
    torch.manual_seed(0)
    model, x = build(Config()).eval(), torch.rand(3, 1, SIDE, SIDE)
    fixed = FixedOrder(offers(), torch.arange(40, 46))
    figure = trajectories(model, fixed, x, 6)
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "0 pixels",
        "",
        "5 pixels",
        "",
        "truth",
    ]
    drawn = torch.as_tensor(figure.axes[0].images[0].get_array()) / 255.0
    rows = torch.stack(drawn.chunk(3, dim=0))  # of one image each
    nothing, prior, five, filled, truth = (
        part[:, : 4 * SIDE : 4, : 4 * SIDE : 4].movedim(-1, 1) for part in rows.chunk(5, dim=2)
    )
    blue = torch.tensor(HIDDEN).view(3, 1, 1).expand(x.shape[0], 3, SIDE, SIDE)
    observed = torch.zeros_like(x, dtype=torch.bool)
    assert torch.allclose(nothing, blue, atol=1e-2)
    assert torch.allclose(prior, model.given(x, observed).impute(50), atol=1e-2)
    observed.view(3, -1)[:, 40:45] = True
    assert torch.allclose(five, torch.where(observed, x, blue), atol=1e-2)
    assert torch.allclose(filled, model.given(x, observed).impute(50), atol=1e-2)
    assert torch.allclose(truth, x.expand(-1, 3, -1, -1), atol=1e-2)
