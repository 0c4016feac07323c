"""VAEs that others wrote: what they say stays as it is, and what they leave unsaid is told."""

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
)
from torch.testing import assert_close

from linear_gaussian import draw_rows, exact_log_evidence, linear_gaussian
from postmatch import MatchedVAE
from postmatch.distributions.noise import from_noise
from postmatch.distributions.reshaped import EndToEnd
from postmatch.partial import DiagonalHead, MaskedEncoder
from postmatch.testing import check_vae
from postmatch.vaes.external import ExternalVAE, from_functions
from postmatch.vaes.external_diffusers import from_diffusers
from postmatch.vaes.external_pythae import from_pythae

assumed = pytest.mark.filterwarnings("ignore:assumed")
FEATURES, LATENT = 5, 3


class Plain(nn.Module):
    """A VAE as people write them, which knows nothing of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 2 * LATENT), nn.Linear(LATENT, FEATURES)

    def encode(self, x: Tensor) -> Distribution:
        mean, log_variance = self.up(x).chunk(2, dim=-1)
        return Normal(mean, (0.5 * log_variance).exp())

    def decode(self, z: Tensor) -> Tensor:
        return self.down(z)

    def with_likelihood(self, z: Tensor) -> Distribution:
        return Independent(Normal(self.down(z), 0.3), 1)

    def prior(self) -> Distribution:
        return Independent(Normal(torch.zeros(LATENT), 1.0), 1)


def rows(count: int = 6) -> Tensor:
    return torch.randn(count, FEATURES)


def of_images(decode: Callable[[Tensor], Any]) -> ExternalVAE:
    return from_functions(
        lambda x: Normal(x.mean(1, keepdim=True), 0.4),
        decode,
        Normal(torch.zeros(1, 4, 4), 1.0),
        torch.rand(6, 3, 4, 4),
        scale=0.2,
    )


def counts() -> tuple[ExternalVAE, Tensor]:
    """Counts of genes with a dispersion each, as in single-cell work."""
    up, down = nn.Linear(FEATURES, LATENT), nn.Linear(LATENT, FEATURES)
    dispersion = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    vae = from_functions(
        lambda x: Normal(up(x.log1p()), 0.5),
        lambda z: NegativeBinomial(dispersion, logits=down(z)),
        Normal(torch.zeros(LATENT), 1.0),
        x := torch.poisson(3.0 * torch.rand(6, FEATURES)),
        module=nn.ModuleList([up, down]),
    )
    return vae, x


def levels() -> tuple[ExternalVAE, Tensor]:
    """Two levels of z of different shapes."""
    vae = from_functions(
        lambda x: (Normal(x[:, :2], 0.5), Normal(x[:, None, None, 2:4], 0.3)),
        lambda z: Normal(torch.cat([z[0], z[1].flatten(1), z[0][:, :1]], dim=1), 0.2),
        (Normal(torch.zeros(2), 1.0), Normal(torch.zeros(1, 1, 2), 1.0)),
        x := rows(),
    )
    return vae, x


def codes() -> tuple[ExternalVAE, Tensor]:
    """A grid of three codes, which are grey levels."""
    x = torch.randint(3, (6, 1, 4, 4)) / 2.0
    prior = Categorical(logits=torch.zeros(4, 4, 3))
    decode = lambda z: z[:, None] / 2.0  # noqa: E731
    return from_functions(lambda x: (2.0 * x[:, 0]).long(), decode, prior, x, scale=0.1), x


def plain(decode: str, **options: Any) -> tuple[ExternalVAE, Tensor]:
    module, x = Plain(), rows()
    method = getattr(module, decode)
    return from_functions(module.encode, method, module.prior, x, **options), x


EVERY: dict[str, Callable[[], tuple[ExternalVAE, Tensor]]] = {
    "means alone": lambda: plain("decode"),
    "means with a scale": lambda: plain("decode", scale=0.5),
    "a likelihood": lambda: plain("with_likelihood"),
    "counts": counts,
    "levels": levels,
    "codes": codes,
    "grey images": lambda: (of_images(lambda z: z.expand(-1, 3, -1, -1)), torch.rand(6, 3, 4, 4)),
    "black and white": lambda: (
        of_images(lambda z: Bernoulli(logits=z.expand(-1, 3, -1, -1), validate_args=False)),
        torch.randint(2, (6, 3, 4, 4)).float(),
    ),
    "categories": lambda: (
        from_functions(
            lambda x: Normal(x[:, :LATENT], 0.4),
            lambda z: Categorical(logits=torch.stack([z, -z], dim=-1)),
            Normal(torch.zeros(LATENT), 1.0),
            x := torch.randint(2, (6, LATENT)).float(),
        ),
        x,
    ),
}


@assumed
@pytest.mark.parametrize("name", EVERY)
def test_functions_of_every_kind_make_a_vae(name: str) -> None:
    vae, x = EVERY[name]()
    check_vae(vae, x)


def test_functions_of_an_exact_model_give_the_exact_evidence() -> None:
    true = linear_gaussian()
    x, _ = draw_rows(true, 20)
    vae = from_functions(
        true.encode, lambda z: Independent(true.decode(z), 1), true.prior, x, module=true
    )
    everything = torch.ones_like(x, dtype=torch.bool)
    # With the exact posterior one draw is enough.
    found = vae.log_evidence(x, num_samples=1).double()
    assert_close(found, exact_log_evidence(true, x, everything), atol=1e-4, rtol=1e-4)


def test_the_fitted_scale_is_that_of_the_noise() -> None:
    true = linear_gaussian()
    x, _ = draw_rows(true, 1_000)
    decode = lambda z: true.decode(z).mean  # noqa: E731
    with pytest.warns(UserWarning, match="assumed: p.* is Gaussian around the decoder's output"):
        vae = from_functions(true.encode, decode, true.prior, x)
    ratio = vae.scale / true.log_noise.exp()
    # A variance of n numbers has a relative standard error of sqrt(2 / n), its root half of that.
    assert (ratio - 1.0).abs().max() < 4.5 / math.sqrt(2 * 1_000)


@assumed
def test_an_answer_tells_what_it_assumes() -> None:
    vae, x = plain("decode")
    head = MaskedEncoder(nn.Identity(), DiagonalHead(2 * FEATURES, LATENT))
    answer = MatchedVAE(vae, head).given(x, x > 0.0)
    (told,) = answer.assumptions
    assert "fitted to 6 rows" in told
    assert told in repr(answer)
    assert told in repr(vae)
    own, _ = plain("with_likelihood")
    assert MatchedVAE(own, head).given(x, x > 0.0).assumptions == ()


def test_what_is_assumed_is_warned_of_once_and_asking_warns_no_more() -> None:
    with pytest.warns(UserWarning, match="assumed") as found:
        vae, x = plain("decode")
    assert len(found) == 1
    vae.decode(vae.encode(x).sample())


@pytest.mark.filterwarnings("ignore:assumed")
def test_no_prior_is_taken_for_a_standard_normal() -> None:
    module, x = Plain(), rows()
    vae = from_functions(module.encode, module.with_likelihood, None, x)
    z = torch.randn(4, LATENT)
    assert_close(vae.prior().log_prob(z), module.prior().log_prob(z))
    assert vae.assumptions == ("p(z) is a standard normal, since no prior was given",)
    with pytest.raises(ValueError, match="prior must be given"):
        from_functions(module.encode, module.with_likelihood)


def test_the_weights_of_methods_are_those_of_the_vae_and_their_mode_stays() -> None:
    module = Plain().train()
    vae = from_functions(module.encode, module.with_likelihood, module.prior, rows())
    assert set(vae.parameters()) == set(module.parameters())
    assert module.training
    both = from_functions(lambda x: x, module.down, module.prior, module=None)
    assert set(both.parameters()) == set(module.down.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@assumed
def test_the_model_computes_in_its_own_precision(dtype: torch.dtype) -> None:
    module, x = Plain().to(dtype), rows()
    vae = from_functions(module.encode, module.decode, module.prior, x)
    posterior = vae.encode(x)
    assert_close(posterior.mean, module.encode(x.to(dtype)).mean.to(posterior.mean.dtype))
    assert posterior.mean.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert vae.decode(posterior.sample()).log_prob(x).isfinite().all()


NORMAL = Normal(torch.zeros(LATENT), 1.0)


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"encode": lambda x: (x, x)}, TypeError, r"encode must return a Dist.*got tuple; make"),
        ({"encode": lambda x: x}, TypeError, r"encode must return a Distribution, got Tensor"),
        ({"encode": lambda x: Normal(x[:1, :3], 1.0)}, ValueError, r"of each of 6 rows.*\(1,\)"),
        ({"encode": lambda x: Normal(x[:, :2], 1.0)}, ValueError, r"same z, got shapes \(2,\) and"),
        (
            {"encode": lambda x: Normal(x[:, :3] / 0.0, 1.0, validate_args=False)},
            ValueError,
            "encode must tell finite numbers",
        ),
        ({"decode": lambda z: "image"}, TypeError, "decode must return a Distribution or a tensor"),
        ({"decode": lambda z: z}, ValueError, r"means of shape \(6, 5\), got \(6, 3\)"),
        ({"decode": lambda z: Normal(z, 1.0)}, ValueError, r"features of shape \(5,\)"),
        (
            {"decode": lambda z: torch.full((len(z), 5), math.nan)},
            ValueError,
            "decode must tell finite numbers",
        ),
        (
            {"decode": lambda z: MultivariateNormal(torch.zeros(len(z), 5), torch.eye(5))},
            ValueError,
            "must be factorised over features: a MultivariateNormal",
        ),
        (
            {
                "decode": lambda z: LowRankMultivariateNormal(
                    torch.zeros(len(z), 5), torch.ones(5, 1), torch.ones(5)
                )
            },
            ValueError,
            "must be factorised over features: a LowRankMultivariateNormal",
        ),
        ({"prior": lambda: 3}, TypeError, "prior must return a Distribution, got int"),
        ({"example": torch.full((3, 5), math.nan)}, ValueError, "complete rows, got NaN"),
        ({"example": torch.ones(3, 5).long()}, ValueError, r"floating point.*got torch.int64"),
        ({"scale": -1.0}, ValueError, "scale must be positive, got -1.0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], error: type, told: str) -> None:
    parts: dict[str, Any] = {
        "encode": lambda x: Normal(x[:, :LATENT], 1.0),
        "decode": lambda z: Normal(torch.cat([z, z[:, :2]], dim=1), 1.0),
        "prior": NORMAL,
        "example": rows(),
    }
    from_functions(**parts)
    with pytest.raises(error, match=told):
        from_functions(**parts | changes)


def test_means_without_a_scale_have_no_likelihood() -> None:
    module = Plain()
    vae = from_functions(module.encode, module.decode, module.prior)
    with pytest.raises(ValueError, match="decode returned a tensor, which has no likelihood"):
        vae.decode(torch.zeros(2, LATENT))


# Models of diffusers


def small_kl(**options: Any) -> Any:
    diffusers = pytest.importorskip("diffusers")
    blocks = (("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2, (8, 8))
    return diffusers.AutoencoderKL(1, 1, *blocks, latent_channels=2, norm_num_groups=4, **options)


def small_vq() -> Any:
    diffusers = pytest.importorskip("diffusers")
    blocks = (("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2, (8, 8))
    return diffusers.VQModel(
        1, 1, *blocks, latent_channels=2, norm_num_groups=4, num_vq_embeddings=7
    )


def small_tiny() -> Any:
    diffusers = pytest.importorskip("diffusers")
    sizes = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1), "latent_channels": 2}
    return diffusers.AutoencoderTiny(1, 1, (8, 8), (8, 8), **sizes)


@assumed
@pytest.mark.parametrize("make", [small_kl, small_vq, small_tiny])
def test_models_of_diffusers_make_vaes(make: Callable[[], Any]) -> None:
    x = torch.rand(4, 1, 8, 8)
    check_vae(from_diffusers(make(), x), x)


@assumed
@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "shift", "factor"),
    [
        ({"scaling_factor": 0.5, "shift_factor": 0.25}, [0.25, 0.25], [0.5, 0.5]),
        ({"latents_mean": [1.0, -2.0], "latents_std": [2.0, 4.0], "scaling_factor": 1.0},
         [1.0, -2.0], [0.5, 0.25]),
    ],
)  # fmt: skip
def test_latents_are_in_the_units_of_latent_diffusion_and_images_in_their_own(
    options: dict[str, Any], shift: list[float], factor: list[float]
) -> None:
    model, x = small_kl(**options).eval(), 255.0 * torch.rand(4, 1, 8, 8)
    vae = from_diffusers(model, x, value_range=(0.0, 255.0))
    raw = model.encode(x / 127.5 - 1.0).latent_dist
    a, b = (torch.tensor(t).view(2, 1, 1) for t in (shift, factor))
    posterior = vae.encode(x)
    assert_close(posterior.mean, (raw.mean - a) * b)
    z = posterior.sample(torch.Size([3]))
    own = model.decode(z[1] / b + a).sample
    assert_close(vae.decode(z).mean[1], (own + 1.0) * 127.5, rtol=1e-4, atol=1e-3)
    # The prior is a standard normal of raw latents: their divergence is that of the model itself.
    divergence = (posterior.log_prob(z) - vae.prior().log_prob(z)).mean(0)
    raw_z = z / b + a
    log_raw = Normal(raw.mean, raw.std).log_prob(raw_z) - Normal(0.0, 1.0).log_prob(raw_z)
    assert_close(divergence, log_raw.mean(0).flatten(1).sum(1), rtol=1e-4, atol=1e-3)


@assumed
@torch.no_grad()
def test_codes_are_decoded_as_the_model_itself_does() -> None:
    model, x = small_vq().eval(), torch.rand(4, 1, 8, 8)
    vae = from_diffusers(model, x)
    z = vae.encode(x).sample()
    assert_close(vae.decode(z).mean, 0.5 * model(2.0 * x - 1.0).sample + 0.5)
    assert vae.prior().log_prob(z)[0].item() == pytest.approx(-z[0].numel() * math.log(7))


@assumed
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_of_diffusers_may_be_in_half_precision(dtype: torch.dtype) -> None:
    model, x = small_kl().to(dtype).eval(), torch.rand(4, 1, 8, 8)
    vae = from_diffusers(model, x)
    own = model.encode((2.0 * x - 1.0).to(dtype)).latent_dist.mean.float()
    assert_close(vae.encode(x).mean, own * model.config.scaling_factor)
    check_vae(vae, x)


def test_what_is_no_model_of_diffusers_is_refused() -> None:
    pytest.importorskip("diffusers")
    with pytest.raises(TypeError, match=r"got Plain; wrap others with from_functions"):
        from_diffusers(Plain(), torch.rand(4, 1, 8, 8))
    with pytest.raises(ValueError, match="two rising numbers"):
        from_diffusers(small_kl(), torch.rand(4, 1, 8, 8), value_range=(1.0, 0.0))


@pytest.mark.parametrize(
    ("name", "adapt"), [("diffusers", from_diffusers), ("pythae", from_pythae)]
)
def test_a_missing_package_is_named(
    name: str, adapt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"pip install 'postmatch\[{name}\]'"):
        adapt(Plain(), torch.rand(4, 1, 8, 8))


# Models of pythae


@assumed
@torch.no_grad()
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_models_of_pythae_make_vaes(loss: str) -> None:
    pytest.importorskip("pythae")
    models = importlib.import_module("pythae.models")
    config = {"input_dim": (1, 4, 4), "latent_dim": 3, "reconstruction_loss": loss}
    model, x = models.BetaVAE(models.BetaVAEConfig(**config)).eval(), torch.rand(4, 1, 4, 4)
    vae = from_pythae(model, x)
    check_vae(vae, x)
    z = torch.randn(4, 3)
    own = model.decoder(z).reconstruction.clamp(1e-6, 1.0 - 1e-6)
    assert_close(vae.decode(z).mean, own.view(4, 1, 4, 4), rtol=1e-4, atol=1e-5)
    assert len(vae.assumptions) == (1 if loss == "mse" else 0)


def test_a_model_of_pythae_with_another_posterior_is_refused() -> None:
    pytest.importorskip("pythae")
    with pytest.raises(TypeError, match="of pythae, got Plain"):
        from_pythae(Plain(), torch.rand(4, 1, 4, 4))


def test_levels_end_to_end_have_the_density_and_the_draws_of_each() -> None:
    first, second = Normal(torch.zeros(4, 2), 0.5), Normal(torch.ones(4, 1, 1, 2), 3.0)
    both = EndToEnd([Independent(first, 1), Independent(second, 3)])
    z = both.sample(torch.Size([5]))
    one, two = z[..., :2], z[..., 2:].view(5, 4, 1, 1, 2)
    expected = first.log_prob(one).sum(-1) + second.log_prob(two).flatten(2).sum(-1)
    assert_close(both.log_prob(z), expected)
    medians = from_noise(both, torch.full((1, 1, 4), 0.5))
    assert_close(medians[0], torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(4, 4))
