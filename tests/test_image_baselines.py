"""VAEAC of images against closed forms, and from the data to the result."""

import dataclasses
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.data.images import Images
from postmatch.image_metrics import psnr
from postmatch.randomness import seeded
from postmatch.recipes import image_judging, inpainting
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import CHANNELS, DATASETS, SIZES, Dataset
from postmatch.recipes.inpainting_config import config_of as own_config
from postmatch.recipes.inpainting_scores import filler
from postmatch.training.plan import plan_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "baselines"))

import image_run
import image_vaeac
from image_vaeac import Config, ImageVAEAC, build, config_of, decoder, fit, imputer

CPU = torch.device("cpu")
SIDE = 12  # of the images that a model is trained on for long


def blots(split: str) -> tuple[Tensor, Tensor]:
    """Return images of a bright half, and which half it is."""
    rows = 60 if split == "train" else 30
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    images = torch.randint(40, (rows, 1, 28, 28), generator=generator, dtype=torch.uint8)
    kind = torch.arange(rows) % 2
    images[kind == 0, :, :14] += 200
    images[kind == 1, :, 14:] += 200
    return images, kind


def small(dataset: Dataset = "mnist", **settings: Any) -> Config:
    sizes: dict[str, Any] = {"widths": (8, 12, 12), "num_blocks": 1, "latent_size": 3}
    sizes |= {"components": 2, "batch_size": 8}
    return dataclasses.replace(config_of(dataset), **(sizes | settings))


def some_images(dataset: Dataset = "mnist", rows: int = 6) -> tuple[Tensor, Tensor]:
    """Return noise and what is observed of it."""
    channels, size = CHANNELS[dataset], SIZES[dataset]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (rows, channels, size, size), generator=generator) / 255.0
    observed = torch.rand(rows, 1, size, size, generator=generator) < 0.5
    return x, observed


# The model


@pytest.mark.parametrize("dataset", ["mnist", "celeba"])
def test_a_model_that_says_nothing_loses_what_its_hidden_pixels_cost(dataset: Dataset) -> None:
    x, observed = some_images(dataset, rows=3)
    model = build(small(dataset))
    with torch.no_grad():
        for layer in (model.proposal.head.linear, model.prior.head.linear, model.generator.last):
            for parameter in layer.parameters():
                parameter.zero_()
    losses = model.losses(x, observed, 1.0, torch.Generator())
    # Every value is then a logistic in the middle of -1 to 1, and q(z | x) is p(z | x_o).
    scale = math.log(2.0) + math.exp(-7.0)
    level = (x.double() * 255.0).round()
    edges = [((2.0 * level + side) / 255.0 - 1.0) / scale for side in (-1.0, 1.0)]
    below = torch.sigmoid(edges[0]).masked_fill(level == 0, 0.0)
    mass = torch.sigmoid(edges[1]).masked_fill(level == 255, 1.0) - below
    cost = -(mass.log() * ~observed).sum() / len(x)
    assert losses["bound"].item() == pytest.approx(cost.item(), rel=1e-4)
    spread = math.log(2.0) + 1e-4
    assert losses["prior"].item() == pytest.approx(-3e-4 * (math.log(spread) - spread), rel=1e-4)


def test_the_bound_pays_for_what_the_proposal_knows_more_than_the_prior() -> None:
    x, observed = some_images()
    model = build(small())
    weights = (0.0, 0.5, 1.0)
    bounds = [
        model.losses(x, observed, beta, torch.Generator().manual_seed(0))["bound"]
        for beta in weights
    ]
    q, p = model.propose(x, observed), model.read(x, observed)[0]
    ratio = (q.stddev / p.stddev).square()
    each = ratio - 1.0 - ratio.log() + ((q.mean - p.mean) / p.stddev).square()
    divergence = 0.5 * each.sum(1).mean()
    assert divergence > 1e-5
    for beta, bound in zip(weights, bounds, strict=True):
        assert_close(bound - bounds[0], beta * divergence, rtol=0.0, atol=2e-3)


@pytest.mark.parametrize("dataset", ["mnist", "celeba"])
def test_prior_and_generator_read_all_that_is_visible_and_nothing_hidden(dataset: Dataset) -> None:
    x, observed = some_images(dataset, rows=2)
    model = build(small(dataset))
    z = torch.randn(2, 3)
    x.requires_grad_()
    prior, maps = model.read(x, observed)
    means = model.generate(z, maps).mean
    hidden = ~observed.expand_as(x)
    for found in (prior.mean.sum(), prior.stddev.sum(), means.square().sum()):
        (pull,) = torch.autograd.grad(found, x, retain_graph=True)
        assert pull[hidden].abs().max() == 0.0
        assert (pull[~hidden] != 0.0).double().mean() > 0.9
    (pull,) = torch.autograd.grad(model.propose(x, observed).mean.sum(), x)
    assert (pull != 0.0).double().mean() > 0.9  # the proposal reads everything


def test_the_generator_knows_z_and_what_is_hidden() -> None:
    x, observed = some_images()
    model = build(small())
    _, maps = model.read(x, observed)
    z = torch.randn(6, 3, requires_grad=True)
    outputs = model.generator(z, maps)
    (pull,) = torch.autograd.grad(outputs.square().sum(), z)
    assert pull.abs().min() > 0.0
    blank = torch.full_like(x, 0.5)  # what stands in the place of hidden pixels
    _, others = model.read(blank, ~observed)
    assert not torch.equal(model.read(blank, observed)[1][0], others[0])


@pytest.mark.parametrize("junk", [1e6, float("nan")])
def test_filled_images_keep_what_is_observed_and_take_nothing_from_what_is_hidden(
    junk: float,
) -> None:
    x, observed = some_images("celeba")
    fill = filler(decoder(build(small("celeba")).eval(), num_draws=3))
    found = []
    for given in (x, torch.where(observed, x, junk)):
        with seeded(2):
            found.append(fill(given, observed))
    assert torch.equal(*found)
    seen = observed.expand_as(x)
    for one in found[0]:
        assert torch.equal(one[seen], x[seen])
        assert 0.0 <= one.min() <= one.max() <= 1.0
    assert not torch.equal(found[0][0], found[0][1])  # draws differ


def test_draws_are_means_of_the_generator_at_draws_of_the_prior() -> None:
    x, observed = some_images(rows=1)
    model = build(small()).eval()
    with torch.no_grad():
        model.generator.first.weight.mul_(30.0)  # so that z matters
        many = filler(decoder(model, 200))(x, observed)
        prior, maps = model.read(x, observed)
        z = prior.mean + prior.stddev * torch.randn(200, 1, 3)
        own = torch.stack([model.generate(one, maps).mean for one in z])
    hidden = ~observed.expand_as(x)
    for moment in (1, 2):
        powers = [values[:, hidden].double() ** moment for values in (many, own)]
        error = torch.stack([p.var(0) / 200 for p in powers]).sum(0).sqrt()
        assert ((powers[0].mean(0) - powers[1].mean(0)).abs() < 6.0 * error).all()


def test_what_it_imputes_is_the_mean_of_very_many_draws() -> None:
    x, observed = some_images(rows=2)
    model = build(small()).eval()
    with torch.no_grad():
        model.generator.first.weight.mul_(30.0)
        many = filler(decoder(model, 2_000))(x, observed)
        even, fewer = (imputer(model, count)(x, observed) for count in (512, 1))
    hidden = ~observed.expand_as(x)
    error = (many[:, hidden].var(0) / 2_000).sqrt()
    assert ((even - many.mean(0))[hidden].abs() < 6.0 * error).all()
    assert ((fewer - many.mean(0))[hidden].abs() > 6.0 * error).any()
    assert torch.equal(even[~hidden], x[~hidden])


# Its training


@pytest.fixture(scope="module")
def trained() -> tuple[ImageVAEAC, Any]:
    """Return a model of the middle of images, and how its training went."""
    config = small(
        widths=(8, 8), components=1, steps=150, warmup=10, average=0.9, learning_rate=1e-2,
        kl_warmup=0.2,
    )  # fmt: skip
    images = middle("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "mnist", SIDE)
        return fit(config, images, images[:8])


def middle(split: str) -> Tensor:
    edge = (28 - SIDE) // 2
    return blots(split)[0][:, :, edge:-edge, edge:-edge]


def test_training_brings_the_bound_near_what_can_be_foretold(
    trained: tuple[ImageVAEAC, Any],
) -> None:
    _, report = trained
    observed = masks_of("mnist").sample((8, 1, SIDE, SIDE), torch.Generator().manual_seed(0))
    # The noise of each hidden pixel, which nothing foretells.
    floor = int((~observed).sum()) / 8 * math.log(40.0)
    assert floor < report.best_validation < floor + 0.2 * (report.history[0][1] - floor)
    assert report.skipped == 0


def test_a_trained_model_knows_which_half_is_bright(trained: tuple[ImageVAEAC, Any]) -> None:
    x = middle("test") / 255.0
    observed = masks_of("mnist").sample((len(x), 1, SIDE, SIDE), torch.Generator().manual_seed(1))
    mean = torch.where(observed, x, middle("train").float().mean(0) / 255.0)
    gain = psnr(filler(decoder(trained[0]))(x, observed), x) - psnr(mean[None], x)
    # From an error of 100 levels to one of the noise, whose deviation is 11.5: 18.8 decibels.
    assert 12.0 < gain.mean() < 20.0


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, having made images and networks small."""
    pytest.importorskip("PIL")
    monkeypatch.setattr(image_judging, "load_images", lambda name: Images(name, blots))
    monkeypatch.setattr(image_run, "config_of", small)
    quick = partial(image_judging.Judging, mask_seeds=(0, 1), classifier_steps=3)
    monkeypatch.setattr(image_run, "Judging", quick)
    return tmp_path


def test_the_script_trains_judges_and_judges_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--steps", "4", "--test-rows", "24", "--device", "cpu", "-o", str(folder)]
    assert image_run.main(["--seed", "5", *words]) == 0
    path = folder / "inpainting-mnist-vaeac.json"
    found = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == found
    about = {key: found[key] for key in ("experiment", "dataset", "model", "seed", "rows")}
    assert about == {
        "experiment": "inpainting",
        "dataset": "mnist",
        "model": "vaeac",
        "seed": 5,
        "rows": {"train": 54, "test": 24},
    }
    assert found["steps"] == found["config"]["steps"] == 4
    assert found["mask_seeds"] == [0, 1]
    assert set(found["parameters"]) == {"proposal", "prior", "generator"}
    assert 3.0 < found["metrics"]["psnr"] < 40.0
    assert 0.0 < found["metrics"]["recall"] <= 1.0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert image_run.main(["--evaluate-only", *words]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == found["metrics"]
    assert again["history"] == found["history"]


def test_its_numbers_are_those_of_our_own_recipe() -> None:
    assert image_vaeac.JUDGED == inpainting._JUDGED
    for dataset in DATASETS:
        theirs, ours = (plan_of(c) for c in (config_of(dataset), own_config(dataset, "vdvae")))
        if dataset == "celeba":  # at which a long training of our hierarchy came to nothing
            assert theirs.orthogonal_rate == 2 * ours.orthogonal_rate == 0.01
            theirs = dataclasses.replace(theirs, orthogonal_rate=ours.orthogonal_rate)
        assert dataclasses.replace(theirs, precision=ours.precision) == ours


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--test-rows", "19"], "--test-rows must be at least 20, got 19"),
        (["--device", "abacus"], "device must be auto, cpu, cuda or mps, got 'abacus'"),
    ],
)
def test_what_cannot_be_asked_for_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        image_run.main(words)
    assert message in capsys.readouterr().err


def test_what_is_not_there_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--evaluate-only", "--steps", "1", "--device", "cpu", "-o", str(folder)]
    assert image_run.main(words) == 1
    assert "inpainting-mnist-vaeac.json is not there: train" in capsys.readouterr().err
    with pytest.raises(ValueError, match="dataset must be one of mnist, omniglot, celeba, got 'x'"):
        config_of("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a side that is a multiple of 8, got 28"):
        build(small(widths=(8, 8, 8, 8)))
