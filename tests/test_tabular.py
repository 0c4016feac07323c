"""The default model of a table: its members train side by side, and stop together."""

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.columns import ColumnSpec
from postmatch.fitting import fit_matched, held_out_cells
from postmatch.randomness import seeded
from postmatch.tabular import FitOptions, TableModelConfig, plan_for, table_model
from postmatch.training.plan import Progress

SPECS = (ColumnSpec("number"), ColumnSpec("number"), ColumnSpec("category", size=3))
SMALL = TableModelConfig(
    latent_size=3, width=16, prior_width=16, head_width=16, num_blocks=1, num_members=3
)


def rows() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    x[:, 2] = (x[:, 0] > 0).float()
    return x, torch.rand(200, 3) < 0.8


def fitted(workers: int, x: Tensor | None = None, **settings: object) -> MatchedVAE:
    usual, available = rows()
    x = usual if x is None else x
    _, plan, options = plan_for(SPECS, 200)
    plan = replace(plan, steps=30, validate_every=30, slack=0.0)  # judged once, at the end
    with seeded(0):
        model = table_model(SPECS, SMALL)
        fit_matched(model, x, available, plan, options, workers=workers, **settings)  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("workers", [2, 5])
def test_members_trained_at_the_same_time_are_the_same_bit_for_bit(workers: int) -> None:
    torch.manual_seed(1)
    alone = fitted(1).state_dict()
    torch.manual_seed(2)  # torch's global state is no part of it
    together = fitted(workers).state_dict()
    assert all(torch.equal(value, together[name]) for name, value in alone.items())


def test_no_member_learns_from_cells_that_are_held_out() -> None:
    x, available = rows()
    hidden = held_out_cells(available, FitOptions(), seed=0)
    assert 20 < hidden.sum() < 80
    plain = dict(fitted(1).named_parameters())  # the calibration, a buffer, may know them
    others = {
        "hidden": x.where(~hidden, 1.0 - x),  # the levels 0 and 1 change places
        "one more": x.where(~hidden, 1.0 - x).index_fill(0, torch.tensor(0), 1.0),
    }
    same = {
        name: [torch.equal(value, plain[key]) for key, value in fitted(1, other).named_parameters()]
        for name, other in others.items()
    }
    assert all(same["hidden"])
    assert not any(same["one more"][:3])  # so that the test can see what was learned from


def test_progress_of_members_side_by_side_only_grows_and_ends_at_one() -> None:
    told: list[Progress] = []
    fitted(2, show=told.append)
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)


def test_an_error_stops_all_members() -> None:
    def show(_: Progress) -> None:
        raise RuntimeError("enough")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="enough"):
        fitted(2, show=show)
    assert threading.active_count() == before
