"""What all methods share: rows and masks, the loop that trains, the figures that judge."""

import abc
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from postmatch.data.uci import Splits
from postmatch.masks import Bernoulli
from postmatch.metrics import nrmse
from postmatch.nets.mlp import ResidualMLP
from postmatch.randomness import seeded
from postmatch.recipes.scores import MASK_SEEDS, masks_of, with_spread
from postmatch.recipes.uci import Config
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report, plan_of
from postmatch.training.schedules import monotonic

MASKS = Bernoulli(0.5)
SHAPES = ("latent_size", "blocks", "decoder_blocks", "width", "normalised", "dropout", "kl_warmup")
"""The settings that shape a VAE like ours."""
JUDGED = 2_000  # rows that choose weights and sizes, as many as in our own recipe

MaskedLosses = Callable[[Tensor, Tensor, float | Tensor, torch.Generator], Losses]
"""From rows, what is observed of them, the weight of the KL term and noise to mean losses."""


@final
@dataclass(frozen=True)
class Task:
    """What a method learns from, what it is judged by, and how long it may take.

    Args:
        rows: In the model's units, on the device to work on.
        log_scale: The logarithm of how many of the user's units each feature's unit is.
        config: The settings of our own model of these rows, for sizes and rates to be taken from.
        seed: Of the training.
        max_seconds: Train no longer than this; 0 for no limit.
        num_samples: Draws of z per row, an even number.
        show: Told of the progress of training.
    """

    rows: Splits
    log_scale: Tensor
    config: Config
    seed: int = 0
    max_seconds: float = 0.0
    num_samples: int = 1_000
    show: Callable[[Progress], None] | None = None

    @property
    def num_features(self) -> int:
        """Return how many features a row has."""
        return self.rows.train.shape[1]

    @property
    def plan(self) -> Plan:
        """Return how our own model of these rows is trained."""
        return plan_of(self.config, self.max_seconds)

    @property
    def used(self) -> dict[str, int]:
        """Return how many rows there are to learn from and to be judged by."""
        return {"train": len(self.rows.train), "test": len(self.rows.test)}

    def body(self, inputs: int, blocks: int) -> ResidualMLP:
        """Return a network such as our own model has, from so many inputs to its width."""
        c = self.config
        return ResidualMLP(inputs, c.width, blocks, c.dropout, normalised=c.normalised)

    def settings(self, *names: str, **others: Any) -> dict[str, Any]:
        """Return what decides how networks are trained, and those settings that shape them."""
        c = self.config
        shared = {"dataset": c.dataset, "batch_size": c.batch_size}
        named = {name: getattr(c, name) for name in names}
        return shared | named | others | {"plan": dataclasses.asdict(self.plan)}


@final
@dataclass(frozen=True)
class Outcome:
    """What a method adds to a result.

    Args:
        model: Its name.
        config: All that decided what was trained.
        parameters: How many numbers it has learned.
        report: How the training went.
        metrics: The figures.
        note: What they estimate, and what else a reader must know.
        rows: How many of them were used for what.
        num_samples: Draws of z per row; None if nothing is drawn.
    """

    model: str
    config: dict[str, Any]
    parameters: int
    report: Report
    metrics: dict[str, Any]
    note: str
    rows: dict[str, int]
    num_samples: int | None = None


class Answer(abc.ABC):
    """What a method says of partly observed rows, whose hidden entries it has never read."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor, num_samples: int) -> Tensor:
        r"""Return :math:`\log p(x_u \mid x_o)` of each of these complete rows, or a lower bound."""

    @abc.abstractmethod
    def log_prob_gap(self, num_samples: int) -> Tensor | None:
        """Return how far bounds from above and from below are apart; None where all is exact."""

    @abc.abstractmethod
    def impute(self) -> Tensor:
        """Return the rows with their hidden features' conditional means, ``(batch, features)``."""


Given = Callable[[Tensor, Tensor], Answer]


class ExactDensity(abc.ABC):
    """A density of rows, every conditional of which can be computed."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of each of these complete rows."""

    @abc.abstractmethod
    def given(self, x: Tensor, observed: Tensor) -> Answer:
        """Return the distribution of what is hidden; hidden entries may hold anything."""

    @abc.abstractmethod
    def blocks(self, x: Tensor) -> list[slice]:
        """Return rows to be answered at a time, by the memory that it takes."""


def fit(task: Task, module: nn.Module, losses: MaskedLosses) -> Report:
    """Train a module as our own recipe trains its models, and keep the best weights.

    Args:
        task: The rows, and how long.
        module: On the rows' device.
        losses: Their sum is minimised; on validation rows it chooses the weights.
    """
    rows, held_out = task.rows.train, task.rows.val[:JUDGED]
    generator = torch.Generator(rows.device).manual_seed(task.seed)
    kl_weight, size = monotonic(task.config.kl_warmup), min(task.config.batch_size, len(rows))

    def loss(fraction: Tensor) -> Losses:
        drawn = torch.randint(len(rows), (size,), generator=generator, device=rows.device)
        x = rows[drawn]
        return losses(x, MASKS.sample(x.shape, generator), kl_weight(fraction), generator)

    def validate() -> float:
        fixed = torch.Generator(rows.device).manual_seed(0)
        observed = MASKS.sample(held_out.shape, fixed)
        return float(sum(losses(held_out, observed, 1.0, fixed).values()))

    return train(module, loss, task.plan, validate=validate, generators=[generator], show=task.show)


def number_of_parameters(module: nn.Module) -> int:
    """Return how many numbers a module has learned."""
    return sum(parameter.numel() for parameter in module.parameters())


@torch.no_grad()
def masked_scores(
    given: Given, task: Task, blocks: Sequence[slice], impute_blocks: Sequence[slice]
) -> dict[str, Any]:
    """Return scores of hidden features of the test rows, with spreads over draws of masks.

    Masks, units and names are those of ``postmatch.recipes.scores``, which judges our own models.

    Args:
        given: What is judged.
        task: Holds the test rows.
        blocks: Rows to be scored at a time.
        impute_blocks: Rows to be imputed at a time, which takes fewer draws.
    """
    each = []
    for seed in MASK_SEEDS:
        observed = masks_of(task.rows.test, seed)
        with seeded(seed):
            scores = _densities(given, task, observed, blocks)
        each.append(scores | _imputation(given, task.rows.test, observed, impute_blocks))
    return with_spread(each)


def _densities(
    given: Given, task: Task, observed: Tensor, blocks: Sequence[slice]
) -> dict[str, float]:
    x, log_prob, gap = task.rows.test, list[Tensor](), list[Tensor]()
    for block in blocks:
        answer = given(x[block], observed[block])
        log_prob.append(answer.log_prob(x[block], task.num_samples))
        found = answer.log_prob_gap(task.num_samples)
        gap += [] if found is None else [found]
    units = (~observed * task.log_scale).sum(1).double()
    scores = {"log_prob": float((torch.cat(log_prob).double() - units).mean())}
    return scores | ({"log_prob_gap": float(torch.cat(gap).double().mean())} if gap else {})


def _imputation(
    given: Given, x: Tensor, observed: Tensor, blocks: Sequence[slice]
) -> dict[str, float]:
    start = time.perf_counter()
    imputed = torch.cat([given(x[block], observed[block]).impute() for block in blocks]).cpu()
    seconds = time.perf_counter() - start
    return {
        "nrmse": nrmse(imputed, x.cpu(), ~observed.cpu()),
        "impute_microseconds": 1e6 * seconds / len(x),
    }
