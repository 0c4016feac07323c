"""What a partial image leaves open, seen in the latent space: the paper's section 5.1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.image_masks import mnist_masks
from postmatch.nets.conv import ConvDecoder, ConvEncoder
from postmatch.partial import AutoregressiveHead, FullGaussianHead, MaskedEncoder
from postmatch.randomness import seeded
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Precision, Progress, Report
from postmatch.vaes.conv import ConvVAE

_ENCODER = ((32, 5, 1), (32, 5, 2), (64, 5, 1), (64, 5, 2), (128, 7, 1))
_DECODER = ((64, 7, 1), (64, 5, 2), (32, 5, 1), (32, 5, 2), (32, 5, 1), (1, 5, 1))
FEATURES = 128  # of the encoders
_NEIGHBOURS = 15  # that tell which digit a place of the latent space belongs to
DRAWS = 500  # of q(z | x_o) in a panel


@final
@dataclass(frozen=True)
class Config:
    """The paper's convolutional VAE of MNIST, trained together with its match.

    Args:
        digits: Those it is trained on and shown.
        latent_size: Length of z; with 2 it can be looked at as it is.
        steps: How many updates.
        batch_size: Images per update.
        components: Mixture components of each entry of z.
        learning_rate: At first; it falls by a tenth in every sixteenth of the training.
        train_target: Whether the match trains the VAE's encoder, too, as in the paper.
    """

    digits: tuple[int, ...] = tuple(range(10))
    latent_size: int = 32
    steps: int = 80_000
    batch_size: int = 256
    components: int = 10
    learning_rate: float = 1e-3
    train_target: bool = True
    precision: Precision = "tf32"


# A match that trains the encoder, too, kept digits less apart in two entries of z, in two short
# trainings of which nothing is recorded.
FIGURE_1 = Config(digits=(3, 5, 8), latent_size=2, steps=20_000, batch_size=64, train_target=False)


@final
@dataclass(frozen=True)
class Panel:
    """A test image of which part is seen.

    Args:
        image: Its number among all test images.
        rows: The first row that is seen, and the first one after it that is not.
        columns: The same of columns.
    """

    image: int
    rows: tuple[int, int] = (0, 28)
    columns: tuple[int, int] = (0, 28)

    def observed(self) -> Tensor:
        """Return what is seen, ``(1, 1, 28, 28)``."""
        seen = torch.zeros(1, 1, 28, 28, dtype=torch.bool)
        seen[..., slice(*self.rows), slice(*self.columns)] = True
        return seen

    def told(self) -> str:
        """Return in words what is seen."""
        spans = (("rows", self.rows), ("columns", self.columns))
        parts = [f"{name} {a} to {b - 1}" for name, (a, b) in spans if 0 < b - a < 28]
        return ", ".join(parts) or ("nothing" if self.rows[0] == self.rows[1] else "everything")


# The paper's; in the first nothing is seen.
PANELS = (
    Panel(0, rows=(0, 0)),
    Panel(2401, rows=(21, 28)),
    Panel(2401, rows=(17, 28)),
    Panel(2401, rows=(0, 9)),
    Panel(6450, columns=(19, 28)),
    Panel(6450, columns=(16, 28)),
    Panel(6450, columns=(10, 28)),
)


def build(config: Config) -> MatchedVAE:
    """Return the untrained model."""
    size = config.latent_size
    vae = image_vae(size, FullGaussianHead(FEATURES, size))
    return MatchedVAE(vae, image_partial(size, config.components))


def image_vae(latent_size: int, head: nn.Module) -> ConvVAE:
    """Return the paper's VAE of 28 x 28 pixels, whose q(z | x) is that of the head."""
    encoder, decoder = image_encoder(1), ConvDecoder(latent_size, _DECODER)
    return ConvVAE(encoder, head, decoder, latent_size, image_shape=(1, 28, 28))


def image_partial(latent_size: int, components: int) -> MaskedEncoder:
    """Return the partial encoder for it, with an autoregressive mixture over z."""
    net = mixture_net(latent_size, components, 256, 2, FEATURES)
    return MaskedEncoder(image_encoder(2), AutoregressiveHead(net))


def image_encoder(channels: int) -> ConvEncoder:
    """Return the body of all of the paper's encoders of 28 x 28 pixels."""
    return ConvEncoder(channels, _ENCODER)


def fit(
    config: Config,
    images: Tensor,
    *,
    seed: int = 0,
    max_seconds: float = 0.0,
    show: Callable[[Progress], None] | None = None,
) -> tuple[MatchedVAE, Report]:
    """Train a model of these images, uint8, on the device they are on."""
    device = images.device
    with seeded(seed):
        model = build(config).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    masks, size = mnist_masks(), min(config.batch_size, len(images))

    def loss(_: Tensor) -> Losses:
        drawn = torch.randint(len(images), (size,), generator=generator, device=device)
        x = images[drawn] / 255.0
        observed = masks.sample(x.shape, generator)
        return model.losses(
            x, None, observed, train_target=config.train_target, generator=generator
        )

    plan = Plan(
        steps=config.steps,
        learning_rate=config.learning_rate,
        schedule="exponential",
        final_rate=0.9**16,
        warmup=0,
        second_moment=0.999,
        weight_decay=0.0,
        max_seconds=max_seconds,
        precision=config.precision,
    )
    return model, train(model, loss, plan, generators=[generator], show=show)


@final
@dataclass(frozen=True)
class View:
    """What a panel shows.

    Args:
        x: The image, ``(1, 28, 28)``, in [0, 1].
        observed: What is seen of it.
        z: Draws of q(z | x_o), ``(samples, latent_size)``.
        decoded: The images that these stand for, ``(samples, 1, 28, 28)``.
        shares: The part of the draws among the images of each digit.
    """

    x: Tensor
    observed: Tensor
    z: Tensor
    decoded: Tensor
    shares: dict[int, float]


@torch.no_grad()
def places(model: MatchedVAE, images: Tensor) -> Tensor:
    """Return where the encoder puts images, ``(rows, latent_size)``."""
    blocks = torch.split(images, 1_000)
    return torch.cat([model.vae.encode(block / 255.0).mean for block in blocks])


@torch.no_grad()
def look(
    model: MatchedVAE, panel: Panel, image: Tensor, where: Tensor, labels: Tensor, seed: int = 0
) -> View:
    """Return what q(z | x_o) says of a partial image.

    Args:
        model: In evaluation mode.
        panel: Which part is seen.
        image: The whole of it, uint8, ``(1, 28, 28)``.
        where: Places of images of known digits.
        labels: These digits.
        seed: Of the draws.
    """
    x, observed = image[None] / 255.0, panel.observed().to(image.device)
    with seeded(seed):
        z = model.given(x, observed).latent.sample(torch.Size([DRAWS]))[:, 0]
    nearest = KNeighborsClassifier(_NEIGHBOURS).fit(where.cpu(), labels.cpu())
    found = torch.from_numpy(nearest.predict(z.cpu()))
    shares = {d: float((found == d).double().mean()) for d in sorted(set(labels.tolist()))}
    return View(x[0].cpu(), observed[0].cpu(), z.cpu(), model.vae.decode(z).mean.cpu(), shares)
