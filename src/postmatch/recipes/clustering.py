"""Clusters of images that are seen in part: the paper's section 5.4, on MNIST and Fashion-MNIST."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.cluster_fitting import ClusterPlan, ClusterReport, fit_clusters
from postmatch.cluster_starts import NEIGHBOURS, StartKind
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.masks import MaskDistribution, UniformCount
from postmatch.nets.linear import Linear
from postmatch.nets.mlp import SideBySide
from postmatch.partial import ClusteredHead, DiagonalHead, MaskedEncoder
from postmatch.randomness import seeded
from postmatch.recipes.mnist_latent import FEATURES, image_encoder, image_vae
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Precision, Progress, Report
from postmatch.vaes.vade import VaDE, independent_gaussians

Dataset = Literal["mnist", "fashion_mnist"]
DATASETS: tuple[Dataset, ...] = get_args(Dataset)
_AT_ONCE = 2_000  # images


@final
@dataclass(frozen=True)
class Config:
    """Everything that decides what is trained; no label ever does.

    Args:
        num_clusters: How many clusters there are.
        latent_size: Length of z.
        components: Mixture components of an entry of z given a part of an image.
        code_steps: Updates of encoder and decoder before there are clusters.
        group_steps: Updates of everything together, images kept in groups of codes.
        cluster_steps: Updates of everything together.
        match_steps: Updates of q(z | x_o) and of the supervised baseline.
        batch_size: Images per update.
        shift: How far images are moved at random in training, at most, in pixels.
        turn: How far they are turned, in degrees.
        stretch: By which part they are made larger or smaller.
        start: What these groups are.
        neighbours: Of a code, in the graph that these groups come from.
        starts: Ways to group the codes that are tried.
        attempts: Trainings of the clusters, at most.
        certainty: How much it counts that z tells the cluster, beside the bound.
        cluster_rate: Of learning with everything free, as a part of that before.
    """

    num_clusters: int = 10
    latent_size: int = 10
    components: int = 10
    code_steps: int = 15_000
    group_steps: int = 10_000
    cluster_steps: int = 3_000
    match_steps: int = 20_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    shift: float = 2.0
    turn: float = 10.0
    stretch: float = 0.1
    start: StartKind = "connected"
    neighbours: int = NEIGHBOURS
    starts: int = 10
    attempts: int = 3
    certainty: float = 20.0
    cluster_rate: float = 0.1
    precision: Precision = "bfloat16"


def config_of(dataset: Dataset) -> Config:
    """Return ours; groups of clothes are less dense than those of digits."""
    return Config(neighbours=20) if dataset == "fashion_mnist" else Config()


class Fitted(NamedTuple):
    """What a training gives.

    Args:
        model: A VaDE with its partial posterior.
        supervised: The paper's baseline, a classifier of parts that learned the VaDE's clusters.
        clusters: How the training of the clusters went.
        match: How that of the partial posterior went.
    """

    model: MatchedVAE
    supervised: nn.Module
    clusters: ClusterReport
    match: Report


def masks() -> MaskDistribution:
    """Return what is observed in training: any number of pixels, all equally likely."""
    return UniformCount()


def build(config: Config) -> MatchedVAE:
    """Return the untrained model."""
    size = config.latent_size
    body = image_vae(size, DiagonalHead(FEATURES, size))
    net = mixture_net(size, config.components, 256, 2, 2 * FEATURES)
    head = ClusteredHead(2 * FEATURES, config.num_clusters, net, own=FEATURES)
    partial = MaskedEncoder(SideBySide(image_encoder(2), image_encoder(2)), head)
    return MatchedVAE(VaDE(body, size, config.num_clusters), partial)


def read(images: Tensor) -> Tensor:
    """Return images in [0, 1]."""
    return images / 255.0


def varied(config: Config, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images moved, turned and stretched a little at random."""
    draws = 2.0 * torch.rand(len(x), 4, generator=generator, device=x.device) - 1.0
    angle, size = draws[:, 0] * math.radians(config.turn), 1.0 + config.stretch * draws[:, 1]
    moved = draws[:, 2:] * (2.0 * config.shift / x.shape[-1])  # an image is two units wide
    cosine, sine = size * angle.cos(), size * angle.sin()
    rows = (
        torch.stack([cosine, -sine, moved[:, 0]], 1),
        torch.stack([sine, cosine, moved[:, 1]], 1),
    )
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False).clamp(0.0, 1.0)


def fit(
    config: Config,
    images: Tensor,
    *,
    seed: int = 0,
    max_seconds: float = 0.0,
    show: Callable[[Progress], None] | None = None,
) -> Fitted:
    """Train clusters of complete images, then what tells them from a part, both ways.

    Args:
        config: What is trained.
        images: uint8, ``(rows, 1, 28, 28)``, on the device to train on.
        seed: Decides weights, batches, masks and noise.
        max_seconds: Train no longer than this, each part its share; 0 for no limit.
        show: Told of the progress of each part.
    """
    per_step = max_seconds / _steps(config)
    with seeded(seed):
        model = build(config).to(images.device)
        supervised = nn.Sequential(image_encoder(2), Linear(FEATURES, config.num_clusters))
        supervised.to(images.device)
    assert isinstance(model.vae, VaDE)
    plan = ClusterPlan(
        _plan(config, config.code_steps, per_step),
        dataclasses.replace(
            _plan(config, config.cluster_steps, per_step),
            learning_rate=config.cluster_rate * config.learning_rate,
        ),
        _plan(config, config.group_steps, per_step) if config.group_steps else None,
        config.batch_size,
        config.start,
        config.starts,
        config.attempts,
        config.certainty,
        config.neighbours,
    )
    vary = None if not _varies(config) else lambda x, noise: varied(config, x, noise)
    clusters = fit_clusters(model.vae, images, plan, read=read, vary=vary, seed=seed, show=show)
    model.vae.requires_grad_(False)
    labels = assignments(model.vae, images)
    plan_of_parts = _plan(config, config.match_steps, per_step)
    match = _fit_parts(config, plan_of_parts, model, supervised, images, labels, seed, show)
    return Fitted(model.eval(), supervised.eval(), clusters, match)


@torch.no_grad()
def assignments(vae: VaDE, images: Tensor) -> Tensor:
    """Return the likeliest cluster of complete images, ``(rows,)``."""
    found = []
    for part in torch.split(images, _AT_ONCE):
        posterior = independent_gaussians(vae.eval().encode(read(part)))
        found.append(vae.prior().expected_log_joint(posterior).argmax(-1))
    return torch.cat(found)


def _fit_parts(
    config: Config,
    plan: Plan,
    model: MatchedVAE,
    supervised: nn.Module,
    images: Tensor,
    labels: Tensor,
    seed: int,
    show: Callable[[Progress], None] | None,
) -> Report:
    """Train the partial posterior, and the baseline beside it on the same images and masks."""
    generator = torch.Generator(images.device).manual_seed(seed)
    both, some = nn.ModuleList([model.partial, supervised]), masks()

    def loss(_: Tensor) -> Losses:
        shape = (min(config.batch_size, len(images)),)
        drawn = torch.randint(len(images), shape, generator=generator, device=images.device)
        x = read(images[drawn])
        observed = some.sample(x.shape, generator)
        told = supervised(torch.cat([x * observed, observed.to(x.dtype)], dim=1))
        matched = model.losses(x, None, observed, train_vae=False, generator=generator)
        return matched | {"supervised": F.cross_entropy(told, labels[drawn])}

    return train(both, loss, plan, generators=[generator], show=show)


def _steps(config: Config) -> int:
    return config.code_steps + config.group_steps + config.cluster_steps + config.match_steps


def _plan(config: Config, steps: int, seconds_per_step: float = 0.0) -> Plan:
    return Plan(
        steps,
        learning_rate=config.learning_rate,
        schedule="cosine",
        final_rate=0.01,
        weight_decay=0.0,
        average=0.999,
        max_seconds=steps * seconds_per_step,
        precision=config.precision,
    )


def _varies(config: Config) -> bool:
    return max(config.shift, config.turn, config.stretch) > 0.0
