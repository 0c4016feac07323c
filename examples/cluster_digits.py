"""Clusters of handwritten digits, told from a few of their pixels.

Usage: python examples/cluster_digits.py [--output digits.png] [--steps N]

The 1,797 digits of 8 x 8 pixels that come with scikit-learn are clustered without their labels by
a VAE whose prior is a mixture of Gaussians (VaDE). Then its posterior given any part of an image is
matched, and asked for the cluster of images that show ever fewer pixels. The labels judge the
clusters at the end. Takes about a minute on two cores.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from postmatch import MatchedVAE, seeded
from postmatch.cluster_fitting import ClusterPlan, fit_clusters
from postmatch.clustering import cluster_probabilities
from postmatch.distributions.autoregressive import mixture_net
from postmatch.masks import Bernoulli, UniformCount
from postmatch.metrics import cluster_accuracy, matched_clusters
from postmatch.nets.mlp import Perceptron
from postmatch.partial import ClusteredHead, DiagonalHead, MaskedEncoder
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan
from postmatch.training.progress import progress_bar
from postmatch.vaes.conv import ConvVAE
from postmatch.vaes.vade import VaDE

PIXELS, LATENT, CLUSTERS, BATCH = 64, 8, 10, 128
FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)


def build() -> MatchedVAE:
    """Return an untrained VAE with clusters, and its posterior given a part of an image."""
    decoder = nn.Sequential(
        Perceptron(LATENT, (128, 256)), nn.Linear(256, PIXELS), nn.Unflatten(-1, (1, 8, 8))
    )
    body = ConvVAE(Perceptron(PIXELS, (256, 128)), DiagonalHead(128, LATENT), decoder, LATENT)
    head = ClusteredHead(128, CLUSTERS, mixture_net(LATENT, 5, 128, 1, 128))
    partial = MaskedEncoder(Perceptron(2 * PIXELS, (256, 128)), head)
    return MatchedVAE(VaDE(body, LATENT, CLUSTERS), partial)


def fit(images: Tensor, steps: int, seed: int = 0) -> MatchedVAE:
    """Train the clusters, and then what tells them from a part."""
    with seeded(seed):
        model = build()
    assert isinstance(model.vae, VaDE)
    plan, generator = Plan(steps, weight_decay=0.0), torch.Generator().manual_seed(seed)
    how = ClusterPlan(plan, plan, plan, BATCH, start="connected", certainty=20.0)

    def loss(_: Tensor) -> Losses:
        x = images[torch.randint(len(images), (BATCH,), generator=generator)]
        observed = UniformCount().sample(x.shape, generator)
        return model.losses(x, None, observed, train_vae=False, generator=generator)

    with progress_bar("Clusters", quiet=False) as show:
        fit_clusters(model.vae, images, how, seed=seed, show=show)
    model.vae.requires_grad_(False)
    with progress_bar("Match", quiet=False) as show:
        train(model.partial, loss, Plan(3 * steps), generators=[generator], show=show)
    return model.eval()


def curve(model: MatchedVAE, images: Tensor, labels: Tensor) -> dict[float, float]:
    """Return the accuracy of clusters by the part of the pixels that is seen."""
    generator, found = torch.Generator().manual_seed(0), {}
    everything = torch.ones_like(images, dtype=torch.bool)
    whole = cluster_probabilities(model, images, everything).argmax(1).numpy()
    names = matched_clusters(whole, labels.numpy())  # the only use of labels: names of clusters
    for fraction in FRACTIONS:
        observed = Bernoulli(fraction).sample(images.shape, generator)
        told = cluster_probabilities(model, images, observed).argmax(1).numpy()
        found[fraction] = cluster_accuracy(told, labels.numpy(), names)
    return found


def main() -> None:
    """Train, tell and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="a picture of the curve, as PNG")
    parser.add_argument("--steps", type=int, default=600, help="of each part of the training")
    arguments = parser.parse_args()
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    found = curve(fit(images, arguments.steps), images, torch.tensor(digits.target))
    for fraction, accuracy in found.items():
        print(f"{fraction:4.0%} of the pixels: {accuracy:.3f}")
    if arguments.output:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.0, 3.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(list(found), list(found.values()), "o-")
        axes.set(xlabel="part of the pixels that is seen", ylabel="accuracy", ylim=(0.0, 1.0))
        figure.savefig(arguments.output, dpi=120)


if __name__ == "__main__":
    main()
