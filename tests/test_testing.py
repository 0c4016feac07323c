"""The contract suite: our VAEs keep every clause, and a VAE that breaks one is told which."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, LogNormal, MultivariateNormal, Normal

import test_image_vaes
import test_vaes
from linear_gaussian import draw_rows, linear_gaussian
from postmatch.testing import CLAUSES, check_clause, check_vae
from postmatch.vaes.base import VAE

FEATURES, LATENT = 6, 4


class Bent(VAE):
    """A sound VAE, but for what is put in the place of one of its methods."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        super().__init__()
        self.sound, self.methods = linear_gaussian(FEATURES, LATENT), methods
        self.register_buffer("asked", torch.zeros(()))

    def prior(self) -> Distribution:
        return self._bent("prior", self.sound.prior())

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        if "holes" in self.methods:
            return self.methods["holes"](self, x, available)
        return self._bent("encode", self.sound.encode(x, available), x)

    def decode(self, z: Tensor) -> Distribution:
        return self._bent("decode", self.sound.decode(z), z)

    def point(self, decoded: Distribution) -> Tensor:
        return self._bent("point", decoded.mean.mean(0))

    def loss(self, x: Tensor, *options: Any, **more: Any) -> Tensor:
        return self._bent("loss", super().loss(x, *options, **more), x)

    def _bent(self, name: str, answer: Any, *asked: Tensor) -> Any:
        method = self.methods.get(name)
        return answer if method is None else method(self, answer, *asked)


def rows() -> Tensor:
    return draw_rows(linear_gaussian(FEATURES, LATENT), 5)[0]


class Private(Normal):
    """Draws from noise of its own, not from torch's state."""

    count = 0

    def sample(self, sample_shape: Any = ()) -> Tensor:
        Private.count += 1
        own = torch.Generator().manual_seed(Private.count)
        return self.loc + torch.randn(self._extended_shape(sample_shape), generator=own)


class Shared(Normal):
    """Draws the same noise for every row."""

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return self.loc + self.scale * torch.randn(*shape[:-2], 1, shape[-1])


class Forgetful(MultivariateNormal):
    """Forgets that its draws were scaled, as an adapter may."""

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return 0.2 * super().sample(sample_shape)


def joint(vae: Bent, decoded: Normal, z: Tensor) -> Distribution:
    return Independent(decoded, 1)


def smeared(vae: Bent, decoded: Normal, z: Tensor) -> Distribution:
    """Spread the log density of a row over its features evenly."""

    class Smeared(Normal):
        def log_prob(self, value: Tensor) -> Tensor:
            each = super().log_prob(value)
            return each.mean(-1, keepdim=True).expand_as(each)

    return Smeared(decoded.loc, decoded.scale)


def company(vae: Bent, posterior: MultivariateNormal, x: Tensor) -> Distribution:
    """Move a row's mean by those of the others, as batch normalisation does."""
    moved = posterior.loc - posterior.loc.mean(0)
    return MultivariateNormal(moved, scale_tril=posterior.scale_tril)


def dropout(vae: Bent, posterior: MultivariateNormal, x: Tensor) -> Distribution:
    moved = nn.functional.dropout(posterior.loc)
    return MultivariateNormal(moved, scale_tril=posterior.scale_tril)


def reads_holes(vae: Bent, x: Tensor, available: Tensor | None) -> Distribution:
    return vae.sound.encode(x)


def counts(vae: Bent, posterior: Distribution, x: Tensor) -> Distribution:
    vae.asked += 1.0
    return posterior


# One case per clause: what is bent, and what the message must tell beside the clause's name.
BENT: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "prior": ({"prior": lambda vae, p: p.mean}, "Distribution, got Tensor"),
    "encode": (
        {"encode": lambda vae, q, x: Normal(q.mean, 1.0)},
        r"must have batch shape \(5,\), got \(5, 4\)",
    ),
    "same z": (
        {"prior": lambda vae, p: Independent(Normal(torch.zeros(3), 1.0), 1)},
        r"z of encode\(x\) is \(4,\)",
    ),
    "decode": ({"decode": lambda vae, p, z: p.mean}, "Distribution, got Tensor"),
    "one value per feature": ({"decode": joint}, r"must be \(3, 5, 6\), got \(3, 5\)"),
    "factorised": ({"decode": smeared}, "changing feature 0 of x changed"),
    "finite at zero": (
        {"decode": lambda vae, p, z: LogNormal(p.loc, p.scale, validate_args=False)},
        "NaN or infinite",
    ),
    "draws like x": (
        {"decode": lambda vae, p, z: Normal(p.loc, torch.tensor(math.inf), validate_args=False)},
        "NaN or infinite",
    ),
    "point": ({"point": lambda vae, best: best[:, :2]}, r"must have shape \(5, 6\), got \(5, 2\)"),
    "repeatable": ({"encode": dropout}, "differs from call to call"),
    "rows alone": ({"encode": company}, "depends on the rows beside it"),
    "seed": ({"decode": lambda vae, p, z: Private(p.loc, p.scale)}, "draws of decode differ"),
    "independent draws": (
        {"decode": lambda vae, p, z: Shared(p.loc, p.scale)},
        "share their noise",
    ),
    "density": (
        {"encode": lambda vae, q, x: Forgetful(0.0 * q.loc, scale_tril=q.scale_tril)},
        "nats for its own draws",
    ),
    "holes": ({"holes": reads_holes}, "reads what is not available"),
    "loss": ({"loss": lambda vae, loss, x: loss.mean()}, r"must have shape \(5,\), got \(\)"),
    "nothing changes": ({"encode": counts}, "weights or buffers changed"),
}


@pytest.mark.parametrize("name", test_vaes.EVERY)
def test_our_vaes_of_rows_keep_every_clause(name: str) -> None:
    vae, x, _ = test_vaes.build(name, 6)
    check_vae(vae, x)


@pytest.mark.parametrize("name", test_image_vaes.EVERY)
def test_our_vaes_of_images_keep_every_clause(name: str) -> None:
    model, x, _ = test_image_vaes.build(name)
    check_vae(model.vae, x)


def test_the_vae_that_is_bent_below_is_sound() -> None:
    check_vae(Bent(), rows())


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_broken_clause_is_named(clause: str) -> None:
    methods, told = BENT[clause]
    with pytest.raises(AssertionError, match=f"^{clause}: .*{told}"):
        check_clause(Bent(**methods), rows(), clause)
    with pytest.raises(AssertionError):  # by this clause or an earlier one that it breaks, too
        check_vae(Bent(**methods), rows())


def test_what_a_vae_raises_is_told_with_its_clause() -> None:
    def fails(vae: Bent, decoded: Normal, z: Tensor) -> Distribution:
        raise RuntimeError("only two axes, please")

    with pytest.raises(AssertionError, match=r"^decode: raised RuntimeError: only two axes"):
        check_vae(Bent(decode=fails), rows())


def test_what_is_no_vae_is_refused() -> None:
    other: Any = nn.Linear(2, 2)
    with pytest.raises(AssertionError, match=r"must be a postmatch.VAE, got Linear"):
        check_vae(other, rows())


@pytest.mark.parametrize(
    ("example", "told"),
    [
        (torch.zeros(1, 6), "at least two rows"),
        (torch.zeros(6), "at least two rows"),
        (torch.full((3, 6), math.nan), "NaN or infinite"),
        (torch.ones(3, 6), "rows that differ"),
    ],
)
def test_an_example_that_shows_nothing_is_refused(example: Tensor, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_vae(Bent(), example)


def test_the_vae_and_the_random_state_are_left_as_they_were() -> None:
    vae = Bent().train()
    vae.sound.eval()
    vae.sound.shift.requires_grad_(False)
    state = torch.get_rng_state()
    check_vae(vae, rows())
    assert (vae.training, vae.sound.training, vae.sound.shift.requires_grad) == (True, False, False)
    assert vae.sound.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
