"""The recipe of acquisition on small sizes: everything runs, and policies are what they say."""

import pytest
import torch

from postmatch.acquisition import acquire
from postmatch.recipes.acquisition import (
    SIDE,
    Config,
    FixedOrder,
    Network,
    RandomOrder,
    best_fixed_order,
    fit,
    offers,
    read,
)

SMALL = {"steps": 3, "gain_steps": 2, "batch_size": 4, "num_offers": 3, "precision": "float32"}


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_all_networks_are_trained_and_choose_pixels(network: Network) -> None:
    images = torch.randint(256, (8, 1, 28, 28), dtype=torch.uint8)
    fitted = fit(Config(network=network, **SMALL), images)  # type: ignore[arg-type]
    steps = {part: report.steps for part, report in fitted.reports.items()}
    assert steps == {"model": 3, "amortised": 2, "lookahead": 2}
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
