"""Streams of rows: every row is met, a run that was cut off goes on at the very next one."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from postmatch.training.checkpoints import Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Plan
from postmatch.training.sources import StreamedRows

SIZES = (8, 12, 6)


def blocks(start: int) -> Iterator[Tensor]:
    """Yield the numbers from 0 to 25 in blocks of different lengths."""
    for i, size in enumerate(SIZES):
        if i >= start:
            yield torch.arange(sum(SIZES[:i]), sum(SIZES[:i]) + size).float()[:, None]


def batches(rows: StreamedRows, number: int) -> list[list[float]]:
    found = []
    for _ in range(number):
        rows.advance()
        found.append(rows.batch[:, 0].tolist())
    return found


def test_every_pass_meets_every_row_in_another_order() -> None:
    rows = StreamedRows(blocks, batch_size=2)
    first, second = batches(rows, 13), batches(rows, 13)
    met = [list(itertools.chain(*found)) for found in (first, second)]
    assert sorted(met[0]) == sorted(met[1]) == list(range(26))
    assert met[0] != met[1]
    assert met[0] != sorted(met[0])
    assert first == batches(StreamedRows(blocks, batch_size=2), 13)
    assert first != batches(StreamedRows(blocks, batch_size=2, seed=1), 13)


def test_the_last_batch_of_a_block_is_filled_up_from_it() -> None:
    rows = StreamedRows(blocks, batch_size=5)
    found = batches(rows, 2)
    assert all(len(batch) == 5 for batch in found)
    assert set(found[0]) | set(found[1]) == set(range(8))
    assert rows.position() == (0, 0, 10)


@pytest.mark.parametrize("after", [0, 1, 4, 5, 12, 13, 17, 30])
def test_from_any_position_the_stream_goes_on_the_same(after: int) -> None:
    whole = StreamedRows(blocks, batch_size=2)
    batches(whole, after)
    again = StreamedRows(blocks, batch_size=2)
    again.seek(*whole.position())
    assert batches(again, 20) == batches(whole, 20)


def test_a_stream_without_enough_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer rows than batch_size"):
        StreamedRows(blocks, batch_size=9)
    with pytest.raises(ValueError, match="at least one block"):
        StreamedRows(lambda _: iter(()), batch_size=1)


def fit(folder: Path | None, stop_at: int = 0) -> Tensor:
    """Fit a line through streamed rows and return its weights."""
    torch.manual_seed(0)
    net, rows, taken = nn.Linear(1, 1), StreamedRows(blocks, batch_size=2), 0

    def loss(_: Tensor) -> dict[str, Tensor]:
        nonlocal taken
        taken += 1
        return {"square": (net(rows.batch) - 3.0 * rows.batch).square().mean()}

    train(
        net,
        loss,
        Plan(50, learning_rate=0.1, warmup=1),
        source=rows,
        checkpoints=None if folder is None else Checkpoints(folder, every_seconds=0.0),
        stop=lambda: taken == stop_at,
    )
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("stop_at", [1, 13, 29])
def test_training_on_a_stream_is_resumed_bit_for_bit(tmp_path: Path, stop_at: int) -> None:
    fit(tmp_path, stop_at)
    assert torch.equal(fit(tmp_path), fit(None))
