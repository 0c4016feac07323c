"""What cannot be asked of a model is refused where it comes in, by the argument's name."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_gaussian import draw_rows, exact_model, linear_gaussian
from small_codes import small_model
from small_hierarchies import images, moved

Change = Callable[[Tensor, Tensor], tuple[Any, Any]]


def seen_as(value: float) -> Change:
    """Return a change that puts a value where it is seen."""
    return lambda x, observed: (torch.where(observed, value, x), observed)


OF_ANY_ROWS: list[tuple[Change, type[Exception], str]] = [
    (lambda x, o: (x.numpy(), o), TypeError, "x must be a tensor, got ndarray"),
    (lambda x, o: (x, o.numpy()), TypeError, "observed must be a tensor, got ndarray"),
    (lambda x, _: (x, None), TypeError, "observed must be a tensor, got NoneType"),
    (lambda x, o: (x, o.float()), ValueError, "observed must be bool, got torch.float32"),
    (lambda x, o: (x.long(), o), ValueError, "x must hold floating point numbers, got torch.int64"),
    (lambda x, o: (x, o[:1]), ValueError, "observed must have one entry per feature of x"),
    (seen_as(torch.nan), ValueError, "x must be finite where it is observed"),
    (seen_as(torch.inf), ValueError, "x must be finite where it is observed"),
]
OF_IMAGES: list[tuple[Change, type[Exception], str]] = [
    (seen_as(255.0), ValueError, "x must lie in [0, 1] where it is observed, got values from 0 to"),
    (seen_as(-1.0), ValueError, "x must lie in [0, 1] where it is observed, got values from -1 to"),
    (lambda x, o: (x.double(), o), ValueError, "x must be of the model's type, torch.float32, got"),
    (lambda x, o: (x[:, 0], o), ValueError, "x must be (batch, 1, "),
]


@pytest.mark.parametrize(("change", "error", "message"), OF_ANY_ROWS)
def test_rows_of_a_table(change: Change, error: type[Exception], message: str) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 5)
    with pytest.raises(error, match=re.escape(message)):
        exact_model(vae).given(*change(x, observed))


@pytest.mark.parametrize(("change", "error", "message"), OF_ANY_ROWS + OF_IMAGES)
@pytest.mark.parametrize("kind", ["codes", "levels"])
def test_images(kind: str, change: Change, error: type[Exception], message: str) -> None:
    model, size = (small_model(), 12) if kind == "codes" else (moved(), 8)
    x, observed = images(5, size=size)
    model.given(x, observed)
    with pytest.raises(error, match=re.escape(message)):
        model.given(*change(x, observed))


def test_given_refuses_masks_that_do_not_fit() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 5)
    model = exact_model(vae)
    with pytest.raises(ValueError, match=r"observed must be bool, got torch\.float32"):
        model.given(x, observed.float())
    for wrong in (observed[:4], observed[0], observed[:, :5], observed[:, :1]):
        with pytest.raises(ValueError, match=r"one entry per feature.*\(5, 6\)"):
            model.given(x, wrong)


def test_an_image_mask_has_one_entry_for_all_channels_of_a_pixel() -> None:
    vae = linear_gaussian()
    model = exact_model(vae)
    x = torch.zeros(2, 3, 4, 5)
    with pytest.raises(ValueError, match="one entry per feature"):
        model.given(x, torch.ones(2, 1, 4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="one entry per feature"):
        model.given(x, torch.ones(2, 2, 4, 5, dtype=torch.bool))


@pytest.mark.parametrize("hidden", [torch.nan, 255.0, -1e30])
def test_hidden_pixels_may_hold_anything(hidden: float) -> None:
    x, observed = images(5, size=12)
    model = small_model().eval()
    expected = model.given(x, observed).impute(2)
    found = model.given(torch.where(observed, x, hidden), observed).impute(2)
    assert torch.equal(found, expected)


def test_pixels_that_rounding_brought_beyond_are_taken() -> None:
    x, observed = images(5, size=12)
    beside = torch.where(observed, 1.0 + 1e-6, x)
    filled = small_model().eval().given(beside, observed).impute(2)
    assert torch.equal(filled[observed], beside[observed])


def test_rows_that_are_scored_are_those_that_were_asked_about() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 5)
    answer = exact_model(vae).given(x, observed)
    for score in (answer.log_prob, answer.log_prob_ratio):
        for other in (x[:1], x[:, :5], x[0]):
            shapes = f"(5, 6), got {tuple(other.shape)}"
            with pytest.raises(ValueError, match=re.escape(f"shape of the rows given, {shapes}")):
                score(other)
