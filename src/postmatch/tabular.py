"""The default model of a table: its sizes, its parts and its training."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import final

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.columns import ColumnSpec
from postmatch.nets.columns import ColumnFeatures
from postmatch.nets.mlp import ResidualMLP
from postmatch.partial import AutoregressiveHead, DiagonalHead, FeatureEncoder
from postmatch.training.plan import Plan
from postmatch.vaes.ensemble import EnsembleEncoder, TableEnsemble
from postmatch.vaes.table import TableVAE

_FEW_ROWS = 2_500
_QUICK_STEPS = 600


@final
@dataclass(frozen=True)
class TableModelConfig:
    """Sizes of a table's model.

    Args:
        latent_size: Length of z.
        width: Hidden units of encoders and decoder.
        num_blocks: Their residual blocks.
        prior_width: Hidden units of the prior's masked network.
        head_width: Hidden units of the masked network of q(z given what is observed).
        mask_blocks: Residual blocks of the two masked networks.
        latent_components: Mixture components of each entry of z.
        column_components: Mixture components of each number.
        num_members: Models trained independently and asked together.
    """

    latent_size: int = 16
    width: int = 128
    num_blocks: int = 2
    prior_width: int = 96
    head_width: int = 128
    mask_blocks: int = 2
    latent_components: int = 6
    column_components: int = 5
    num_members: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name} must be a positive whole number, got {value!r}")


def table_model(specs: Sequence[ColumnSpec], config: TableModelConfig) -> MatchedVAE:
    """Return an untrained model for columns of these types."""
    pairs = [_member(specs, config) for _ in range(config.num_members)]
    if len(pairs) == 1:
        return MatchedVAE(*pairs[0])
    vaes, partials = zip(*pairs, strict=True)
    return MatchedVAE(TableEnsemble(vaes), EnsembleEncoder(partials))


def _member(
    specs: Sequence[ColumnSpec], config: TableModelConfig
) -> tuple[TableVAE, FeatureEncoder]:
    c = config
    features = ColumnFeatures(specs)

    def body() -> ResidualMLP:
        return ResidualMLP(features.num_features, c.width, c.num_blocks)

    vae = TableVAE(
        specs,
        encoder=FeatureEncoder(features, body(), DiagonalHead(c.width, c.latent_size)),
        prior_net=mixture_net(c.latent_size, c.latent_components, c.prior_width, c.mask_blocks),
        decoder=ResidualMLP(c.latent_size, c.width, c.num_blocks),
        decoder_size=c.width,
        num_components=c.column_components,
    )
    net = mixture_net(c.latent_size, c.latent_components, c.head_width, c.mask_blocks, c.width)
    return vae, FeatureEncoder(features, body(), AutoregressiveHead(net))


@final
@dataclass(frozen=True)
class FitOptions:
    """What a table's model is trained on.

    Args:
        batch_size: Rows per step.
        held_out: The part of the cells kept back to judge the model by.
        beta_warmup: The part of training over which the weight of the KL term rises to 1.
        pattern_weight: How often the partial encoder sees the holes of another row of the table
            rather than a random number of random cells.
    """

    batch_size: int = 256
    held_out: float = 0.1
    beta_warmup: float = 0.2
    pattern_weight: float = 0.3


def plan_for(
    specs: Sequence[ColumnSpec], rows: int, *, quick: bool = False
) -> tuple[TableModelConfig, Plan, FitOptions]:
    """Return sizes and a plan of training for a table of so many rows.

    Few rows are soon learned by heart: the posterior is simpler, and there are four models rather
    than two. Training goes on for a while after densities fit best, since best guesses still get
    better; together the members are less sure than any of them, and calibration does the rest. With
    many rows, steps are what counts, as far as minutes allow.
    """
    columns = len(specs)
    wide = columns > 40
    few = rows <= _FEW_ROWS
    if few:
        config = TableModelConfig(
            latent_size=min(32 if wide else 16, max(8, columns // 2 + 2)),
            mask_blocks=1,
            latent_components=4,
            num_members=1 if quick else 4,
        )
        steps = min(2_400, max(800, 3 * rows))
    else:
        config = TableModelConfig(
            latent_size=min(32 if wide else 16, columns + 6), num_members=1 if quick else 2
        )
        steps = 3_500
    plan = Plan(
        steps=_QUICK_STEPS if quick else steps,
        learning_rate=3e-3,
        orthogonal_rate=4.5e-3 if few else 1.8e-2,
        weight_decay=0.5 if few else 0.1,
        validate_every=max(20, (_QUICK_STEPS if quick else steps) // 40),
        patience=8,
        patience_after=0.35,
        slack=0.3,
        max_seconds=20.0 if quick else 0.0,
    )
    return replace(config, width=256 if wide else 128), plan, FitOptions()


def members_of(model: MatchedVAE) -> list[MatchedVAE]:
    """Return the members of an ensemble; a model that is none is its own only member."""
    if isinstance(model.vae, TableEnsemble) and isinstance(model.partial, EnsembleEncoder):
        pairs = zip(model.vae.tables, model.partial.encoders, strict=True)
        return [MatchedVAE(vae, partial) for vae, partial in pairs]
    return [model]
