"""Attaching: the new part learns the truth, and the VAE never notices."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, NegativeBinomial, Normal
from torch.testing import assert_close

import test_image_vaes
import test_vaes
from linear_gaussian import draw_rows, exact_conditional, linear_gaussian
from postmatch import MatchedVAE, attach
from postmatch.attached_encoder import AttachedEncoder
from postmatch.image_masks import NothingObserved
from postmatch.masks import Bernoulli, UniformCount
from postmatch.partial_shapes import PartialSizes
from postmatch.training.plan import Progress
from postmatch.untouched import fingerprint
from postmatch.vaes.base import VAE
from postmatch.vaes.external import ExternalVAE, from_functions

TINY = PartialSizes(
    width=16,
    num_blocks=1,
    channels=16,
    components=1,
    head_width=16,
    head_blocks=1,
    grid_width=16,
    grid_blocks=1,
)


def small(vae: VAE, x: Tensor, steps: int = 2, **options: Any) -> MatchedVAE:
    return attach(vae, x, **{"steps": steps, "sizes": TINY, "batch_size": 64} | options)


# The truth


@torch.no_grad()
def test_what_is_attached_to_a_linear_gaussian_vae_is_its_exact_posterior() -> None:
    vae = linear_gaussian(3, 2)
    model = small(vae, draw_rows(vae, 3_000)[0], 700, batch_size=128)
    x, observed = draw_rows(vae, 400, seed=5)
    exact = vae.posterior(x, observed)
    answer = model.given(x, observed)
    z = exact.sample(torch.Size([200]))
    missed = (exact.log_prob(z) - answer.latent.log_prob(z)).mean()
    told = (exact.log_prob(z) - vae.prior().log_prob(z)).mean()
    # Training ends somewhere: all but 4 % of what is observed is understood.
    assert 0.0 < missed < 0.04 * told
    mean, covariance = exact_conditional(vae, x, observed)
    spread = covariance.diagonal(dim1=-2, dim2=-1)[~observed].sqrt()
    wrong = (answer.impute(64) - mean)[~observed] / spread
    # The standard error of a mean over 64 draws, and a tenth of a deviation for the training.
    assert wrong.square().mean().sqrt() < 1.0 / math.sqrt(64) + 0.1


def independent_maps(rows: int, seed: int = 0) -> tuple[ExternalVAE, Tensor]:
    """Return a VAE whose z is a map, each position a noisy pixel, and images of it."""
    vae = from_functions(
        lambda x: Normal(0.8 * x, math.sqrt(0.2)),
        lambda z: Normal(z, 0.5),
        Normal(torch.zeros(1, 3, 2), 1.0),
        torch.zeros(2, 1, 3, 2),
    )
    generator = torch.Generator().manual_seed(seed)
    return vae, math.sqrt(1.25) * torch.randn(rows, 1, 3, 2, generator=generator)


@torch.no_grad()
def test_what_is_attached_to_a_map_is_its_exact_posterior() -> None:
    vae, x = independent_maps(2_000)
    model = small(vae, x, 250, masks=Bernoulli(0.5), learning_rate=2e-2)
    _, x = independent_maps(300, seed=1)
    observed = torch.rand(x.shape) < 0.5
    mean, scale = torch.where(observed, 0.8 * x, 0.0), torch.where(observed, math.sqrt(0.2), 1.0)
    exact = Independent(Normal(mean, scale), 3)
    z = exact.sample(torch.Size([20]))
    missed = (exact.log_prob(z) - model.given(x, observed).latent.log_prob(z)).mean()
    told = (exact.log_prob(z) - vae.prior().log_prob(z)).mean()
    assert 0.0 < missed < 0.05 * told


@torch.no_grad()
@pytest.mark.parametrize("junk", [1e6, math.nan, math.inf])
def test_what_is_hidden_is_never_read(junk: float) -> None:
    vae, x = independent_maps(60)
    model, observed = small(vae, x), torch.rand(60, 1, 3, 2) < 0.5
    z = vae.encode(x).sample()
    told = [
        model.partial(rows, observed).log_prob(z) for rows in (x, x.masked_fill(~observed, junk))
    ]
    assert torch.equal(*told)
    assert told[0].isfinite().all()


def pictures_of_one_level(rows: int) -> tuple[ExternalVAE, Tensor]:
    """Return a VAE whose codes are the pixels' levels, of three, and pictures of one level each."""
    vae = from_functions(
        lambda x: (2.0 * x[:, 0]).long(),
        lambda z: Normal(z[:, None] / 2.0, 0.1),
        Categorical(logits=torch.zeros(3, 3, 3)),
        torch.zeros(2, 1, 3, 3),
    )
    level = torch.randint(3, (rows, 1, 1, 1)) / 2.0
    return vae, level.expand(rows, 1, 3, 3).contiguous()


@torch.no_grad()
def test_what_is_attached_to_codes_knows_them_all_from_some() -> None:
    vae, x = pictures_of_one_level(600)
    model = small(vae, x, 120, masks=UniformCount(), learning_rate=1e-2)
    observed = torch.rand(100, 1, 3, 3) < 0.5
    observed[:, :, 0, 0] = True
    log_prob = model.given(x[:100], observed).latent.log_prob(vae.encode(x[:100]).sample())
    assert log_prob.mean() > -0.1
    nothing = model.given(x[:100], torch.zeros_like(observed)).latent
    # What is not known is one level of three.
    assert (nothing.log_prob(vae.encode(x[:100]).sample()).mean() + math.log(3)).abs() < 0.15


@torch.no_grad()
def test_levels_are_attached_to_one_after_the_other() -> None:
    vae = from_functions(
        lambda x: (Normal(x[:, :1], 0.1), Normal(x[:, None, None, 1:], 0.1)),
        lambda z: Normal(torch.cat([z[0], z[1].flatten(1)], dim=1), 0.1),
        (Normal(torch.zeros(1), 1.0), Normal(torch.zeros(1, 1, 1), 1.0)),
        torch.zeros(2, 2),
    )
    x = torch.randn(1_000, 1) * torch.tensor([[1.0, 1.0]])  # the second copies the first
    model = small(vae, x, 150, masks=UniformCount(), learning_rate=1e-2)
    nothing = model.given(x[:400], torch.zeros(400, 2, dtype=torch.bool)).latent
    first, second = nothing.sample().unbind(1)
    correlation = torch.stack([first, second]).corrcoef()[0, 1]
    # Truth: 1 / 1.01; Fisher's transform of 400 pairs has a standard error of 1 / sqrt(397).
    assert correlation.atanh() > math.atanh(1.0 / 1.01) - 4.5 / math.sqrt(397) - 0.3


# The VAE stays as it was


class Foreign(nn.Module):
    """A module with dropout and batch statistics, which would show if it was asked in its mode."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.mean, self.down = nn.Linear(8, 3), nn.Linear(3, 5)
        self.up[0].weight.requires_grad_(False)
        self.down.eval()
        self.to(dtype)

    def encode(self, x: Tensor) -> Distribution:
        return Normal(self.mean(self.up(x)), 0.3)

    def decode(self, z: Tensor) -> Distribution:
        return Normal(self.down(z), 0.5)

    def prior(self) -> Distribution:
        return Normal(torch.zeros(3), 1.0)

    def vae(self) -> ExternalVAE:
        return from_functions(self.encode, self.decode, self.prior, module=self)


class Wrapped(nn.Module):
    """A module that holds another, as wrappers of all kinds do."""

    def __init__(self, inner: Foreign) -> None:
        super().__init__()
        self.inner = inner

    def vae(self) -> ExternalVAE:
        inner = self.inner
        return from_functions(inner.encode, inner.decode, inner.prior, module=self)


def state(module: nn.Module) -> dict[str, Any]:
    """Return all that must be the same afterwards, gradients and places in memory included."""
    return {
        "weights": fingerprint(module),
        "modes": [part.training for part in module.modules()],
        "flags": [p.requires_grad for p in module.parameters()],
        "gradients": [p.grad is None for p in module.parameters()],
        "places": [t.data_ptr() for t in (*module.parameters(), *module.buffers())],
        "types": [(t.dtype, t.device, t.stride()) for t in module.state_dict().values()],
        "random": torch.get_rng_state().tolist(),
    }


MODULES: dict[str, Callable[[], Any]] = {
    "float32": Foreign,
    "float16": lambda: Foreign(torch.float16),
    "bfloat16": lambda: Foreign(torch.bfloat16),
    "float64": lambda: Foreign(torch.float64),
    "frozen": lambda: Foreign().requires_grad_(False).eval(),
    "wrapped": lambda: Wrapped(Foreign()),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_foreign_module_is_left_bit_for_bit_as_it_was(name: str) -> None:
    module, x = MODULES[name](), torch.randn(40, 5)
    inner = module.inner if name == "wrapped" else module
    dtype = inner.mean.weight.dtype
    quiet = copy.deepcopy(inner).eval()
    before, answers = state(module), quiet.encode(x.to(dtype)).mean
    model = small(module.vae(), x)
    assert state(module) == before
    assert torch.equal(copy.deepcopy(inner).eval().encode(x.to(dtype)).mean, answers)
    module.eval()
    answer = model.given(x, x > 0.0)
    assert answer.sample(2).isfinite().all()
    assert answer.log_prob(x).isfinite().all()


OURS: dict[str, Callable[[], tuple[VAE, Tensor]]] = {
    **{
        name: lambda name=name: test_vaes.build(name, 30)[:2]
        for name in test_vaes.EVERY
        if name != "TableEnsemble"
    },
    **{name: lambda name=name: _image_vae(name) for name in test_image_vaes.EVERY},
}


def _image_vae(name: str) -> tuple[VAE, Tensor]:
    model, x, _ = test_image_vaes.build(name, 12)
    return model.vae, x


@pytest.mark.parametrize("name", OURS)
def test_all_of_our_vaes_can_be_attached_to_and_stay_as_they_were(name: str) -> None:
    vae, x = OURS[name]()
    vae.train()
    before = state(vae)
    model = small(vae, x)
    assert state(vae) == before
    assert model.vae is vae
    vae.eval()
    shape = vae.decode(vae.encode(x).sample(torch.Size([1]))).log_prob(x).shape[1:]
    answer = model.given(x, torch.rand(shape) < 0.5)
    assert answer.impute(4).isfinite().all()
    assert answer.log_prob(x).isfinite().all()


def test_a_vae_of_ours_may_be_in_half_precision() -> None:
    vae, x = OURS["ConvVAE"]()
    vae.half()
    before = state(vae)
    model = small(vae, x)
    assert state(vae) == before
    answer = model.given(x, torch.rand(12, 1, 8, 8) < 0.5)
    assert answer.log_prob(x).isfinite().all()


def test_an_ensemble_is_attached_to_member_by_member() -> None:
    vae, x, _ = test_vaes.build("TableEnsemble", 30)
    with pytest.raises(TypeError, match="attach to each member"):
        small(vae, x)


@pytest.mark.parametrize("layout", ["channels_last", "strided"])
def test_how_data_lie_in_memory_does_not_matter(layout: str) -> None:
    vae, x = OURS["ConvVAE"]()
    if layout == "strided":
        other = torch.stack([x, x], dim=-1)[..., 0]
    else:
        wide = x.expand(-1, 1, 8, 8).contiguous()
        other = wide.to(memory_format=torch.channels_last)
    one, two = small(vae, x), small(vae, other)
    observed = torch.rand(12, 1, 8, 8) < 0.5
    filled = [m.given(rows, observed).impute(4) for m, rows in ((one, x), (two, other))]
    assert_close(filled[0], filled[1])


def test_the_same_seed_gives_the_same_answers_and_another_one_others() -> None:
    vae = linear_gaussian(3, 2)
    x, observed = draw_rows(vae, 50)
    means = [small(vae, x, seed=s).given(x, observed).impute(4) for s in (1, 1, 2)]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


def test_progress_is_told_and_held_out_rows_are_counted() -> None:
    vae = linear_gaussian(3, 2)
    told: list[Progress] = []
    model = small(vae, draw_rows(vae, 100)[0], 20, show=told.append)
    assert told[-1].fraction == 1.0
    assert isinstance(model.partial, AttachedEncoder)
    facts = model.partial.facts
    assert (facts["rows"], facts["held_out_rows"], facts["steps"]) == (90, 10, 20)
    assert facts["held_out_match"] == told[-1].validation


def test_rows_with_holes_are_taken_by_a_vae_that_takes_them() -> None:
    vae = linear_gaussian(4, 2)
    x, available = draw_rows(vae, 200, num_observed=3)
    one = small(vae, x.masked_fill(~available, math.nan), 5, available=available)
    two = small(vae, x.masked_fill(~available, 7.0), 5, available=available)
    nothing = torch.zeros_like(available)
    assert_close(one.given(x, nothing).impute(4), two.given(x, nothing).impute(4))


def test_counts_can_be_asked_for() -> None:
    """A decoder of counts, as in single-cell work, learns which genes go together."""
    torch.manual_seed(3)
    rate = torch.tensor([1.0, 4.0])[torch.randint(2, (500,))]  # two kinds of cell
    x = torch.poisson(rate[:, None] * torch.tensor([[1.0, 2.0, 0.5]]))
    vae = from_functions(
        lambda x: Normal((x.sum(1, keepdim=True) + 0.5).log(), 0.2),
        lambda z: NegativeBinomial(
            50.0, logits=z - math.log(3.5) + torch.tensor([0.0, 0.7, -0.7]) - 3.9
        ),
        Normal(torch.full((1,), 2.0), 1.0),
        x,
    )
    model = small(vae, x, 200, learning_rate=1e-2)
    observed = torch.tensor([[False, True, False]]).expand(2, 3)
    low, high = model.given(torch.tensor([[0.0, 1.0, 0.0], [0.0, 9.0, 0.0]]), observed).impute()
    assert high[0] > 2.0 * low[0]


# The door


@pytest.mark.parametrize("observed", [torch.zeros(3, dtype=torch.bool), torch.ones(3) > 0])
def test_masks_that_show_nothing_or_everything_are_answered(observed: Tensor) -> None:
    vae = linear_gaussian(3, 2)
    x, _ = draw_rows(vae, 40)
    model = small(vae, x, masks=observed[None])
    answer = model.given(x, observed.expand(40, 3))
    filled = answer.impute(4)
    assert filled.isfinite().all()
    if observed.all():
        assert torch.equal(filled, x)


class Stub(VAE):
    """A VAE with one method replaced."""

    def __init__(self, **methods: Any) -> None:
        super().__init__()
        self.sound, self.methods = linear_gaussian(3, 2), methods

    def prior(self) -> Distribution:
        return self.sound.prior()

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        return self.methods.get("encode", self.sound.encode)(x)

    def decode(self, z: Tensor) -> Distribution:
        return self.methods.get("decode", self.sound.decode)(z)


def nan_for_some(x: Tensor) -> Distribution:
    mean = x[:, :2].masked_fill(x[:, :1] > 1.5, math.nan)
    return Independent(Normal(mean, 1.0, validate_args=False), 1, validate_args=False)


@pytest.mark.parametrize(
    ("methods", "error", "told"),
    [
        ({"encode": lambda x: x}, TypeError, "encode must return a Distribution, got Tensor"),
        ({"decode": lambda z: z}, TypeError, "decode must return a Distribution, got Tensor"),
        (
            {"encode": lambda x: Normal(x, 1.0)},
            ValueError,
            r"each of 2 rows, got batch shape \(2, 3",
        ),
        ({"decode": lambda z: Normal(z, 1.0)}, ValueError, "rows of shape .* do not fit the VAE: "),
        (
            {"decode": lambda z: Independent(Normal(z @ torch.ones(2, 3), 1.0), 1)},
            ValueError,
            r"one log_prob for each feature of \(2, 3\), got shape \(2,\)",
        ),
        ({"encode": nan_for_some}, ValueError, "encode must tell finite numbers of the data"),
        (
            {"decode": lambda z: Normal(torch.full((*z.shape[:-1], 3), math.nan), 1.0, False)},
            ValueError,
            "decode must tell finite numbers of the data",
        ),
    ],
)
def test_a_vae_that_answers_wrongly_is_refused(
    methods: dict[str, Any], error: type, told: str
) -> None:
    vae = Stub(**methods).train()
    before = state(vae)
    with pytest.raises(error, match=told):
        small(vae, draw_rows(vae.sound, 400)[0])
    assert state(vae) == before


@pytest.mark.parametrize(
    ("data", "options", "error", "told"),
    [
        (torch.randn(9, 4), {}, ValueError, r"rows of shape \(4,\) do not fit the VAE"),
        (torch.full((9, 3), math.nan), {}, ValueError, "data must be finite, got NaN"),
        (torch.ones(9, 3).long(), {}, ValueError, r"floating point.*got torch.int64"),
        (torch.randn(1, 3), {}, ValueError, "at least two rows"),
        ([[1.0, 2.0, 3.0]], {}, TypeError, "data must be a tensor, got list"),
        (torch.randn(9, 3), {"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        (torch.randn(9, 3), {"available": torch.ones(9, 3)}, ValueError, "available must be bool"),
        (torch.randn(9, 3), {"masks": "half"}, TypeError, "masks must be a MaskDist.*got str"),
        (torch.randn(9, 3), {"masks": torch.ones(4, 3)}, ValueError, "rows must be bool"),
        (torch.randn(9, 3), {"masks": torch.ones(4, 2) > 0}, ValueError, r"asked for \(3,\)"),
        (torch.randn(9, 3), {"sizes": "large"}, TypeError, "sizes must be PartialSizes, got str"),
    ],
)
def test_data_and_options_that_do_not_fit_are_refused(
    data: Any, options: dict[str, Any], error: type, told: str
) -> None:
    vae = linear_gaussian(3, 2)
    before = state(vae)
    with pytest.raises(error, match=told):
        small(vae, data, **options)
    assert state(vae) == before


def test_what_is_no_vae_is_sent_to_the_adapters() -> None:
    other: Any = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="got Linear: make one with from_functions"):
        attach(other, torch.randn(9, 3))


def test_an_interrupted_training_leaves_the_vae_as_it_was() -> None:
    vae, x = linear_gaussian(3, 2).train(), draw_rows(linear_gaussian(3, 2), 50)[0]
    before = state(vae)

    def interrupted(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(vae, x, 30, show=interrupted)
    assert state(vae) == before


def test_a_grid_of_codes_whose_number_nobody_knows_is_refused() -> None:
    vae = from_functions(
        lambda x: (2.0 * x[:, 0]).long(),
        lambda z: Normal(z[:, None] / 2.0, 0.1),
        Independent(Normal(torch.zeros(3, 3), 1.0), 2),
    )
    with pytest.raises(ValueError, match="must tell how many there are by its support"):
        small(vae, torch.rand(9, 1, 3, 3), masks=NothingObserved())
