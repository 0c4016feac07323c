"""The default model of a table: its sizes, its parts and its training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.columns import ColumnSpec
from postmatch.masks import Mixture, Pattern, UniformCount
from postmatch.nets.columns import ColumnFeatures
from postmatch.nets.mlp import ResidualMLP
from postmatch.partial import AutoregressiveHead, DiagonalHead, FeatureEncoder
from postmatch.training.engine import Plan, Progress, Report, train
from postmatch.vaes.table import TableVAE


@final
@dataclass(frozen=True)
class TableModelConfig:
    """Sizes of a table's model."""

    latent_size: int = 16
    width: int = 256
    num_blocks: int = 2
    prior_width: int = 128
    prior_blocks: int = 2
    head_width: int = 192
    head_blocks: int = 2
    latent_components: int = 6
    column_components: int = 5
    dropout: float = 0.0


def table_model(specs: Sequence[ColumnSpec], config: TableModelConfig) -> MatchedVAE:
    """Return an untrained model for columns of these types."""
    c = config
    features = ColumnFeatures(specs)

    def body() -> ResidualMLP:
        return ResidualMLP(features.num_features, c.width, c.num_blocks, c.dropout)

    vae = TableVAE(
        specs,
        encoder=FeatureEncoder(features, body(), DiagonalHead(c.width, c.latent_size)),
        prior_net=mixture_net(c.latent_size, c.latent_components, c.prior_width, c.prior_blocks),
        decoder=ResidualMLP(c.latent_size, c.width, c.num_blocks, c.dropout),
        decoder_size=c.width,
        num_components=c.column_components,
    )
    head = AutoregressiveHead(
        mixture_net(c.latent_size, c.latent_components, c.head_width, c.head_blocks, c.width)
    )
    return MatchedVAE(vae, FeatureEncoder(ColumnFeatures(specs), body(), head))


@final
@dataclass(frozen=True)
class FitOptions:
    """How a table's model is trained."""

    batch_size: int = 512
    held_out: float = 0.1
    beta_warmup: float = 0.2
    train_target: bool = False
    pattern_weight: float = 0.3
    num_samples: int = 1


def fit_matched(
    model: MatchedVAE,
    x: Tensor,
    available: Tensor,
    plan: Plan,
    options: FitOptions,
    *,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train both parts on rows with holes, stopping where held-out cells are predicted best."""
    generator = torch.Generator(x.device).manual_seed(seed)
    held_out = available & (
        torch.rand(x.shape, generator=generator, device=x.device) < options.held_out
    )
    kept = available & ~held_out
    masks = Mixture(
        (UniformCount(), Pattern(kept)), (1.0 - options.pattern_weight, options.pattern_weight)
    )
    batch_size = min(options.batch_size, len(x))
    judged = _judged_rows(held_out, 2048)

    def loss(fraction: float) -> dict[str, Tensor]:
        rows = torch.randint(len(x), (batch_size,), generator=generator, device=x.device)
        here, held = x[rows], kept[rows]
        observed = masks.sample(held.shape, generator)
        return model.losses(
            here,
            held,
            observed,
            beta=min(1.0, fraction / options.beta_warmup) if options.beta_warmup else 1.0,
            train_target=options.train_target,
            num_samples=options.num_samples,
        )

    def validate() -> float:
        return held_out_loss(model, x[judged], kept[judged], held_out[judged])

    return train(model, loss, plan, validate=validate, show=show)


def held_out_loss(model: MatchedVAE, x: Tensor, seen: Tensor, held_out: Tensor) -> float:
    r"""Return the mean of :math:`-\log p_{\theta\phi}(x_i \mid x_o)` over held-out cells i, one by one."""
    decoded = model.given(x, seen).marginals(num_samples=32)
    log_each = decoded.log_prob(x.masked_fill(~held_out, 0.0))  # (samples, batch, columns)
    log_cell = log_each.logsumexp(0) - torch.tensor(float(len(log_each))).log()
    return float(-log_cell[held_out].mean())


def _judged_rows(held_out: Tensor, most: int) -> Tensor:
    rows = held_out.any(1).nonzero().squeeze(1)
    return rows[:most]
