"""Densities of real vectors: the paper's section 5.3, with its settings and with ours."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from postmatch.anchoring import anchor_decoder, anchor_encoder, anchor_posterior
from postmatch.conditioning import MatchedVAE
from postmatch.data.uci import Name
from postmatch.distributions.autoregressive import mixture_net
from postmatch.masks import Bernoulli
from postmatch.nets.linear import Linear
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.mlp import ResidualMLP, WithInput
from postmatch.partial import AutoregressiveHead, DiagonalHead, FullGaussianHead, MaskedEncoder
from postmatch.randomness import seeded
from postmatch.recipes.settling import settle_scales
from postmatch.training.checkpoints import Checkpoints, run_on
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Precision, Progress, Report, plan_of
from postmatch.training.schedules import RateSchedule, WeightSchedule, cyclical, monotonic
from postmatch.vaes.gaussian import GaussianVAE
from postmatch.vaes.mixture import MixtureVAE

Preset = Literal["paper", "published-code", "best"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
_ANCHOR_NOISE = 0.05  # standard deviations of a feature
_JUDGED = 2_000  # rows that choose the weights
FEATURES: dict[Name, int] = {"power": 6, "gas": 8, "hepmass": 21, "miniboone": 43, "bsds": 63}


@final
@dataclass(frozen=True)
class Config:
    """Everything that decides what is trained.

    Args:
        dataset: Which rows.
        steps: How many updates.
        batch_size: Rows per update.
        latent_size: Length of z.
        blocks: Residual blocks of the encoders; the decoder has ``decoder_blocks``.
        normalised: Whether these have layer normalisation.
        dropout: In the middle of their blocks.
        width: Hidden units of encoders and decoder.
        mask_width: Hidden units of masked networks.
        mask_blocks: Their residual blocks.
        components: Mixture components of each entry of z.
        feature_components: Mixture components of each feature; 0 for Gaussians of one learned
            standard deviation.
        full_encoder: Whether q(z | x) has a full covariance.
        full_posterior: Whether q(z | x_o) is a full Gaussian rather than autoregressive.
        learned_prior: Whether the prior is an autoregressive mixture rather than standard normal.
        anchored: Whether the first entries of z start out as the features.
        bound: Whether the conditional bound trains the VAE too, in place of the match alone.
        symmetries: Whether patches of photographs are turned and mirrored at random.
        cycles: Of the KL weight; 0 for one rise.
        delay: Updates before it rises.
        kl_warmup: The part of training over which it rises, if it rises once.
        warmup: Updates over which the learning rate rises.
        noise: Standard deviation of what is added to each batch.
        schedule: How the learning rate falls from ``learning_rate`` to ``final_rate`` of it.
        average: Decay of the running average of the weights; 0 for the last ones.
        keep_best: Whether held-out rows choose the weights, or the last ones are kept.
        settled: Whether held-out rows decide in the end how sure the model is.
    """

    dataset: Name
    steps: int = 200_000
    batch_size: int = 512
    latent_size: int = 16
    blocks: int = 2
    decoder_blocks: int = 2
    normalised: bool = False
    dropout: float = 0.0
    width: int = 256
    mask_width: int = 256
    mask_blocks: int = 3
    components: int = 10
    feature_components: int = 0
    full_encoder: bool = True
    full_posterior: bool = False
    learned_prior: bool = False
    anchored: bool = False
    bound: bool = False
    symmetries: bool = False
    cycles: float = 3.98
    delay: int = 1_000
    kl_warmup: float = 0.0
    warmup: int = 0
    noise: float = 0.001
    learning_rate: float = 1e-3
    orthogonal_rate: float = 0.0
    schedule: RateSchedule = "exponential"
    final_rate: float = 0.9**40
    second_moment: float = 0.999
    weight_decay: float = 1e-5
    clip_norm: float = 1e9
    average: float = 0.0
    keep_best: bool = False
    settled: bool = False
    precision: Precision = "float32"


def config_of(dataset: Name, preset: Preset) -> Config:
    """Return the settings of a preset for a data set.

    ``paper`` is the paper's table of hyperparameters; ``published-code`` is what the public code
    trains, whose q(z | x_o) is a full Gaussian; ``best`` is ours.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if preset == "best":
        return _best(dataset)
    config = Config(dataset)
    if dataset == "miniboone":
        config = replace(
            config, steps=22_000, batch_size=1_024, latent_size=32, blocks=5, decoder_blocks=5,
            normalised=True, cycles=4.0, delay=2_000, final_rate=0.9**22,
        )  # fmt: skip
    elif dataset == "bsds":
        config = replace(
            config, batch_size=1_024, latent_size=64, blocks=5, decoder_blocks=5, normalised=True,
            cycles=0.0, delay=30_000, kl_warmup=0.85,
        )  # fmt: skip
    if preset == "paper":
        return config
    code = replace(config, full_posterior=True)
    if dataset == "miniboone":
        return replace(code, decoder_blocks=2, dropout=0.5)
    return replace(code, batch_size=512, kl_warmup=1.0) if dataset == "bsds" else code


def _best(dataset: Name) -> Config:
    """Return our settings; the few rows of HEPMASS and MINIBOONE are soon learned by heart."""
    shared = Config(
        dataset, normalised=True, full_encoder=False, learned_prior=True, bound=True, cycles=0.0,
        delay=0, kl_warmup=0.05, warmup=100, noise=0.0, schedule="cosine", final_rate=0.01,
        second_moment=0.99, weight_decay=0.3, orthogonal_rate=0.01, clip_norm=5.0, average=0.999,
        keep_best=True, precision="tf32", anchored=True,
    )  # fmt: skip
    if dataset == "bsds":
        return replace(
            shared, steps=100_000, batch_size=2_048, latent_size=64, blocks=4, decoder_blocks=4,
            width=512, mask_width=768, mask_blocks=4, feature_components=1, symmetries=True,
            weight_decay=0.1,
        )  # fmt: skip
    if dataset in ("power", "gas"):
        return replace(shared, steps=15_000, mask_blocks=2, feature_components=5)
    few = replace(
        shared, batch_size=256, width=128, mask_blocks=1, components=4, feature_components=5,
        keep_best=False, settled=True,
    )  # fmt: skip
    if dataset == "miniboone":
        return replace(few, steps=2_500, latent_size=44, mask_width=256, learning_rate=3e-3)
    return replace(few, steps=8_000, latent_size=24, mask_width=128, learning_rate=1e-3)


def build(config: Config) -> MatchedVAE:
    """Return the untrained model of a config."""
    c, features = config, FEATURES[config.dataset]
    seen, drawn = (c.width + c.anchored * inputs for inputs in (2 * features, c.latent_size))

    def body(inputs: int, blocks: int) -> nn.Module:
        net = ResidualMLP(inputs, c.width, blocks, c.dropout, normalised=c.normalised)
        return WithInput(net) if c.anchored else net

    def net(context: int = 0) -> MaskedResidualNet:
        return mixture_net(c.latent_size, c.components, c.mask_width, c.mask_blocks, context)

    gaussian = (FullGaussianHead if c.full_encoder else DiagonalHead)(seen, c.latent_size)
    encoder = MaskedEncoder(body(2 * features, c.blocks), gaussian)
    last = Linear(drawn, max(1, 3 * c.feature_components) * features)
    decoder = nn.Sequential(body(c.latent_size, c.decoder_blocks), last)
    prior = net() if c.learned_prior else None
    vae: GaussianVAE | MixtureVAE = GaussianVAE(encoder, decoder, c.latent_size, prior)
    if c.feature_components:
        if prior is None:
            raise ValueError("feature_components needs learned_prior")
        vae = MixtureVAE(encoder, decoder, prior, features)
    posterior: nn.Module = FullGaussianHead(seen, c.latent_size)
    if not c.full_posterior:
        posterior = AutoregressiveHead(net(seen))
    if c.anchored:
        _anchor(c, gaussian, last, posterior)
    return MatchedVAE(vae, MaskedEncoder(body(2 * features, c.blocks), posterior))


def _anchor(config: Config, encoder: nn.Module, last: Linear, posterior: nn.Module) -> None:
    if not isinstance(encoder, DiagonalHead) or not isinstance(posterior, AutoregressiveHead):
        raise ValueError("anchored needs neither full_encoder nor full_posterior")
    if not config.feature_components:
        raise ValueError("anchored needs feature_components")
    features = FEATURES[config.dataset]
    anchor_encoder(encoder, features, _ANCHOR_NOISE)
    anchor_decoder(last, features, config.latent_size, _ANCHOR_NOISE)
    anchor_posterior(posterior.net, features, _ANCHOR_NOISE)


def fit(
    config: Config,
    rows: Tensor,
    held_out: Tensor,
    *,
    seed: int = 0,
    vary: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    max_seconds: float = 0.0,
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> tuple[MatchedVAE, Report]:
    """Train a model of these rows, keeping the weights that tell the held-out rows best.

    Args:
        config: What is trained.
        rows: In the model's units, on the device to train on.
        held_out: The same.
        seed: Decides weights, batches, masks and noise.
        vary: Gives each batch of rows another form that they might as well have had.
        max_seconds: Stop after this time; 0 for no limit.
        checkpoints: A folder to save to, and to go on from if it holds anything.
        show: Told of the progress now and then.
    """
    with seeded(seed):
        model = build(config).to(rows.device)
    generator = torch.Generator(rows.device).manual_seed(seed)
    losses = model.bound_losses if config.bound else model.losses
    masks, kl_weight, size = Bernoulli(0.5), _kl_weight(config), min(config.batch_size, len(rows))

    def loss(fraction: Tensor) -> Losses:
        drawn = torch.randint(len(rows), (size,), generator=generator, device=rows.device)
        x = rows[drawn]
        if vary is not None:
            x = vary(x, generator)
        if config.noise:
            noise = torch.randn(x.shape, generator=generator, device=x.device)
            x = x + config.noise * noise
        observed = masks.sample(x.shape, generator)
        return losses(x, None, observed, beta=kl_weight(fraction), generator=generator)

    def validate() -> float:
        fixed = torch.Generator(rows.device).manual_seed(0)
        x = held_out[:_JUDGED]
        found = losses(x, None, masks.sample(x.shape, fixed), generator=fixed)
        return float(found["conditional"] if config.bound else sum(found.values()))

    report = train(
        model,
        loss,
        plan_of(config, max_seconds),
        validate=validate if config.keep_best else None,
        generators=[generator],
        checkpoints=None if checkpoints is None else Checkpoints(checkpoints, run_on(rows, seed)),
        show=show,
    )
    if config.settled:
        settle_scales(model, held_out[:_JUDGED], masks)
    return model, report


def _kl_weight(config: Config) -> WeightSchedule:
    delay = min(config.delay / config.steps, 0.9)  # also in a run that was cut short by its steps
    if config.cycles:
        return cyclical(config.cycles, delay=delay)
    return monotonic(min(config.kl_warmup, 1.0), delay=delay)
