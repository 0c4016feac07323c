"""Training something on rows that a frozen VAE has encoded."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from postmatch.encoded_rows import Rows
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report
from postmatch.training.progress import in_turn, progress_bar

VALIDATIONS = 40


def train_on_rows(
    module: nn.Module,
    losses: Callable[[Tensor, torch.Generator], Losses],
    rows: Rows,
    plan: Plan,
    *,
    batch_size: int,
    seed: int,
    label: str,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train a module on random rows, and keep the weights under which held-out rows fare best.

    Args:
        module: What is trained.
        losses: From places of rows, and a source of noise, to their mean losses.
        rows: How many there are, and how many are held out.
        plan: How long and how fast.
        batch_size: Rows per step.
        seed: Of batches and noise; held-out rows have noise of their own, always the same.
        label: Stands before the bar.
        show: Told of the progress, beside the bar.
    """
    device, size = rows.x.device, min(batch_size, rows.learned())
    generator = torch.Generator(device).manual_seed(seed)

    def loss(_: Tensor) -> Losses:
        index = torch.randint(rows.learned(), (size,), generator=generator, device=device)
        return losses(index, generator)

    def held_out() -> float:
        fixed = torch.Generator(device).manual_seed(seed + 1)
        index = torch.arange(rows.learned(), len(rows.x), device=device)
        parts = torch.split(index, size)
        found = [float(sum(losses(part, fixed).values())) * len(part) for part in parts]
        return sum(found) / len(index)

    with progress_bar(label) as bar:
        return train(
            module,
            loss,
            plan,
            validate=held_out if rows.held_out else None,
            generators=[generator],
            show=bar if show is None else in_turn(bar, show),
        )


def facts_of(report: Report, rows: Rows, seed: int) -> dict[str, Any]:
    """Return how something was trained, for a JSON file."""
    score = report.best_validation
    return {
        "rows": rows.learned(),
        "held_out_rows": rows.held_out,
        "steps": report.steps,
        "seconds": round(report.seconds, 1),
        "held_out_match": score if math.isfinite(score) else None,
        "seed": seed,
    }
