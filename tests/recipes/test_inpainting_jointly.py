"""A VAE of images and its partial encoder, trained together, and then the latter alone."""

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
    "plain": ("conv", 0.0, 10),
    "hierarchy": ("vdvae", 0.0, 40),
    "guessing": ("vdvae", 1.0, 40),
}
ALONE = 0.4


def bright_halves(rows: int) -> Tensor:
    """Return images that are bright above or below, as a few of their pixels tell."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(40, (rows, 1, 28, 28), generator=generator, dtype=torch.uint8)
    images[0::2, :, :14] += 200
    images[1::2, :, 14:] += 200
    return images


TRAINED, HELD_OUT, JUDGED = torch.split(bright_halves(56), [32, 8, 16])


def small(model: Model = "vdvae", guess: float = 0.0, steps: int = 6, alone: float = 0.0) -> Config:
    return dataclasses.replace(
        config_of("mnist", model), encoder="28x1,28d4,7d7,1x1", decoder="1x1,7m1,28m7", width=12,
        bottleneck=4, latent_channels=2, latent_size=4, components=2, batch_size=8, warmup=5,
        average=0.9, learning_rate=1e-2, precision="float32", guess=guess, steps=steps,
        partial_alone=alone,
    )  # fmt: skip


class Part(NamedTuple):
    """What one call of the training loop was given, what it left, and what it told."""

    before: nn.Module
    after: nn.Module
    report: Report


class Fit(NamedTuple):
    """A training, and its parts."""

    config: Config
    model: MatchedVAE
    report: Report
    parts: list[Part]
    shown: list[Progress]


@pytest.fixture(scope="module", params=FITS)
def fitted(request: pytest.FixtureRequest) -> Fit:
    """Return a training of two parts."""
    return noted_fit(small(*FITS[request.param], ALONE))


def noted_fit(config: Config) -> Fit:
    """Fit, and take copies of what is trained before and after each part."""
    parts: list[Part] = []
    shown: list[Progress] = []

    def noted(module: nn.Module, *args: Any, **how: Any) -> Report:
        before = copy.deepcopy(module)
        report = train(module, *args, **how)
        parts.append(Part(before, copy.deepcopy(module), copy.deepcopy(report)))
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inpainting_jointly, "train", noted)
        model, report = fit(config, TRAINED, HELD_OUT, show=shown.append)
    return Fit(config, model, report, parts, shown)


def model_in(module: nn.Module) -> MatchedVAE:
    """Return the model of what is trained, which may have layers beside it that guess."""
    model = module.model if isinstance(module, Guessing) else module
    assert isinstance(model, MatchedVAE)
    return model


def changed(before: nn.Module, after: nn.Module) -> list[bool]:
    """Return of each parameter and buffer whether any bit of it is another."""
    old, new = before.state_dict(), after.state_dict()
    assert old.keys() == new.keys()
    return [not torch.equal(old[name], new[name]) for name in old]


def left_to_match(model: MatchedVAE, images: Tensor, seed: int) -> float:
    """Return the mean loss of the match, with masks and noise of this seed."""
    noise, x = torch.Generator().manual_seed(seed), images / 255.0
    observed = masks_of("mnist").sample((len(x), 1, 28, 28), noise)
    with torch.no_grad():
        return float(model.losses(x, None, observed, train_vae=False, generator=noise)["match"])


def test_both_learn_and_then_the_partial_encoder_alone(fitted: Fit) -> None:
    together, alone = fitted.parts
    for before, after, _ in (together, alone):
        assert all(changed(model_in(before).partial, model_in(after).partial))
    assert all(changed(model_in(together.before).vae, model_in(together.after).vae))
    assert not any(changed(model_in(alone.before).vae, model_in(alone.after).vae))
    assert not any(changed(together.after, alone.before))
    assert not any(changed(model_in(alone.after), fitted.model))


def test_what_guesses_pixels_learns_in_both_parts() -> None:
    fitted = noted_fit(small(guess=1.0, alone=ALONE))
    for before, after, _ in fitted.parts:
        assert isinstance(before, Guessing)
        assert isinstance(after, Guessing)
        assert all(changed(before.layers, after.layers))


def test_steps_and_seconds_of_both_parts_are_counted(fitted: Fit) -> None:
    together, alone = (part.report for part in fitted.parts)
    expected = {40: (24, 16), 10: (6, 4)}[fitted.config.steps]
    assert (together.steps, alone.steps) == expected
    assert fitted.report.steps == fitted.config.steps
    assert fitted.report.seconds == together.seconds + alone.seconds
    assert fitted.report.history == alone.history


def test_after_both_parts_everything_can_be_trained_again(fitted: Fit) -> None:
    together, alone = (model_in(part.before) for part in fitted.parts)
    for vae, learns in ((together.vae, True), (alone.vae, False), (fitted.model.vae, True)):
        assert {p.requires_grad for p in vae.parameters()} == {learns}
    for model in (together, alone, fitted.model):
        assert {p.requires_grad for p in model.partial.parameters()} == {True}


def test_weights_of_the_part_alone_are_chosen_by_the_match_alone(fitted: Fit) -> None:
    left = left_to_match(fitted.model, HELD_OUT, seed=0)
    assert_close(fitted.report.best_validation, left, rtol=1e-4, atol=1e-4)
    assert fitted.report.best_validation == min(score for _, score in fitted.report.history)


@pytest.mark.parametrize("fitted", ["hierarchy", "guessing"], indirect=True)
def test_alone_a_partial_encoder_comes_nearer_to_what_it_matches(fitted: Fit) -> None:
    # Images that neither taught it nor chose its weights.
    before, after = (
        left_to_match(model_in(module), JUDGED, seed=1) for module in fitted.parts[1][:2]
    )
    assert 0.0 < after < 0.8 * before


def test_progress_of_both_parts_is_told_as_one(fitted: Fit) -> None:
    fractions = [progress.fraction for progress in fitted.shown]
    # After every tenth step of a part, and at its end.
    steps = {40: [10, 20, 24, 34, 40], 10: [6, 10]}[fitted.config.steps]
    assert_close(fractions, [step / fitted.config.steps for step in steps])
    assert fractions[-1] == 1.0


@pytest.mark.parametrize(
    ("alone", "places"),
    [(0.0, ["step-0000000006"]), (0.5, ["alone/step-0000000003", "together/step-0000000003"])],
)
def test_each_part_has_its_own_checkpoints_if_there_are_two(
    tmp_path: Path, alone: float, places: list[str]
) -> None:
    _, report = fit(small(alone=alone), TRAINED, HELD_OUT, checkpoints=tmp_path)
    states = sorted(tmp_path.rglob("step-*"))
    assert [str(state.relative_to(tmp_path)) for state in states] == places
    assert report.steps == 6


def test_without_a_part_alone_there_is_one_part_in_which_both_learn() -> None:
    fitted = noted_fit(small())
    (together,) = fitted.parts
    assert all(changed(model_in(together.before).vae, fitted.model.vae))
    assert fitted.report == together.report
    assert fitted.report.steps == 6


@pytest.mark.parametrize("fitted", ["guessing"], indirect=True)
@pytest.mark.parametrize("cut_at", [0.2, 0.8], ids=["together", "alone"])
def test_a_training_that_was_cut_off_in_either_part_goes_on_where_it_was(
    tmp_path: Path, fitted: Fit, cut_at: float
) -> None:
    fractions: list[float] = []

    def cut_off(progress: Progress) -> None:
        fractions.append(progress.fraction)
        if progress.fraction >= cut_at:
            signal.raise_signal(signal.SIGINT)

    def note(progress: Progress) -> None:
        fractions.append(progress.fraction)

    with pytest.raises(KeyboardInterrupt):
        fit(fitted.config, TRAINED, HELD_OUT, checkpoints=tmp_path, show=cut_off)
    begun, reached = len(fractions), fractions[-1]
    assert cut_at <= reached < 1.0
    assert (tmp_path / "alone").exists() == (reached > 1.0 - ALONE)
    resumed, report = fit(fitted.config, TRAINED, HELD_OUT, checkpoints=tmp_path, show=note)
    assert reached < fractions[begun]  # nothing is done twice
    assert fractions[-1] == 1.0
    assert not any(changed(fitted.model, resumed))
    assert report.steps == fitted.report.steps
    assert report.history == fitted.report.history


def test_parts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="partial_alone is no setting of vqvae, whose posterior"):
        dataclasses.replace(config_of("mnist", "vqvae"), partial_alone=0.5)
    for part in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"partial_alone must be in \[0, 1\), got {part}"):
            small(alone=part)
