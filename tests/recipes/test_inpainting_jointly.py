"""A VAE of images and its partial encoder, trained together."""

import copy
import dataclasses
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.recipes import inpainting_jointly
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.inpainting import fit, masks_of
from postmatch.recipes.inpainting_config import Config, Model, config_of
from postmatch.training.engine import train
from postmatch.training.plan import Progress, Report

FITS: dict[str, tuple[Model, float, int]] = {
    "plain": ("conv", 0.0, 8),
    "hierarchy": ("vdvae", 0.0, 24),
    "guessing": ("vdvae", 1.0, 24),
}


def bright_halves(rows: int) -> Tensor:
    """Return images that are bright above or below, as a few of their pixels tell."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(40, (rows, 1, 28, 28), generator=generator, dtype=torch.uint8)
    images[0::2, :, :14] += 200
    images[1::2, :, 14:] += 200
    return images


TRAINED, HELD_OUT = torch.split(bright_halves(40), [32, 8])


def small(model: Model, guess: float, steps: int) -> Config:
    return dataclasses.replace(
        config_of("mnist", model), encoder="28x1,28d4,7d7,1x1", decoder="1x1,7m1,28m7", width=12,
        bottleneck=4, latent_channels=2, latent_size=4, components=2, batch_size=8, warmup=5,
        average=0.9, learning_rate=1e-2, precision="float32", guess=guess, steps=steps,
    )  # fmt: skip


class Fit(NamedTuple):
    """A training: what it was asked, what it was given and left, and what it told."""

    config: Config
    before: nn.Module
    after: nn.Module
    model: MatchedVAE
    report: Report


@pytest.fixture(scope="module", params=FITS)
def fitted(request: pytest.FixtureRequest) -> Fit:
    """Fit, and take copies of what is trained before and after it."""
    config, seen = small(*FITS[request.param]), []

    def noted(module: nn.Module, *args: Any, **how: Any) -> Report:
        before = copy.deepcopy(module)
        report = train(module, *args, **how)
        seen.append((before, copy.deepcopy(module)))
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inpainting_jointly, "train", noted)
        model, report = fit(config, TRAINED, HELD_OUT)
    ((before, after),) = seen
    return Fit(config, before, after, model, report)


def changed(before: nn.Module, after: nn.Module) -> list[bool]:
    """Return of each parameter and buffer whether any bit of it is another."""
    old, new = before.state_dict(), after.state_dict()
    assert old.keys() == new.keys()
    return [not torch.equal(old[name], new[name]) for name in old]


def test_vae_partial_encoder_and_what_guesses_pixels_all_learn(fitted: Fit) -> None:
    assert isinstance(fitted.before, Guessing) == (fitted.config.guess > 0.0)
    assert all(changed(fitted.before, fitted.after))
    assert fitted.report.steps == fitted.config.steps


def test_weights_are_chosen_by_vae_and_match_of_held_out_images(fitted: Fit) -> None:
    noise, x = torch.Generator().manual_seed(0), HELD_OUT / 255.0
    observed = masks_of("mnist").sample((len(x), 1, 28, 28), noise)
    with torch.no_grad():
        losses = fitted.model.losses(x, None, observed, generator=noise)
    found = float(losses["vae"] + losses["match"])
    assert_close(fitted.report.best_validation, found, rtol=1e-4, atol=1e-4)
    assert fitted.report.best_validation == min(score for _, score in fitted.report.history)


@pytest.mark.parametrize("fitted", ["guessing"], indirect=True)
def test_guesses_that_were_cut_off_go_on_where_they_were(tmp_path: Path, fitted: Fit) -> None:
    fractions: list[float] = []

    def cut_off(progress: Progress) -> None:
        fractions.append(progress.fraction)
        if progress.fraction >= 0.3:
            signal.raise_signal(signal.SIGINT)

    def note(progress: Progress) -> None:
        fractions.append(progress.fraction)

    with pytest.raises(KeyboardInterrupt):
        fit(fitted.config, TRAINED, HELD_OUT, checkpoints=tmp_path, show=cut_off)
    begun, reached = len(fractions), fractions[-1]
    assert 0.3 <= reached < 1.0
    resumed, report = fit(fitted.config, TRAINED, HELD_OUT, checkpoints=tmp_path, show=note)
    assert reached < fractions[begun]  # nothing is done twice
    assert fractions[-1] == 1.0
    assert not any(changed(fitted.model, resumed))
    assert report.history == fitted.report.history
