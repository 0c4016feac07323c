"""Hierarchies of latent images: densities, losses and answers."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.hierarchy import Hierarchy, trace
from postmatch.distributions.levels import level_gaussian
from postmatch.distributions.noise import from_noise, noise_size, standard_normal
from postmatch.nets.hierarchical import _Shrunk
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.partial import MaskedEncoder
from postmatch.vaes.hierarchical import hierarchical_vae
from small_hierarchies import images, moved, parts

# Densities


def distributions(model: MatchedVAE, rows: int = 3) -> dict[str, Hierarchy]:
    vae, partial = parts(model)
    x, observed = images(rows)
    return {
        "prior": vae.prior(),
        "posterior": vae.encode(x),
        "partial": partial.hierarchy(x, observed),
    }


@pytest.mark.parametrize("name", ["prior", "posterior", "partial"])
@torch.no_grad()
def test_log_prob_of_a_draw_is_the_sum_over_levels(name: str) -> None:
    ours = distributions(moved())[name]
    batch = () if name == "prior" else (3,)
    assert ours.batch_shape == batch
    noise = torch.randn(4, *batch, ours.top.latent_size)
    z = ours.from_normal(noise)
    scales: list[Tensor] = []

    def choose(i: int, features: Tensor, own: Tensor) -> Tensor:
        level = ours.level(i, features, own)
        scales.append(level.scale.flatten(1))
        return ours.top.split(z.flatten(0, -2))[i]

    ours.top.descend(math.prod(z.shape[:-1]), choose)
    scale = torch.cat(scales, dim=1).view(z.shape)  # the change of variables from noise to z
    expected = (Normal(0.0, 1.0).log_prob(noise) - scale.log()).sum(-1)
    assert_close(ours.log_prob(z), expected, atol=1e-3, rtol=1e-5)
    assert ours.sample(torch.Size([2, 4])).shape == (2, 4, *batch, ours.top.latent_size)


@torch.no_grad()
def test_samples_lead_and_change_nothing_of_each_other() -> None:
    model = moved()
    for name, ours in distributions(model).items():
        noise = torch.randn(4, 3, ours.top.latent_size)
        z = ours.from_normal(noise)
        for k in range(4):  # samples are rows of one batch; each must still see its own evidence
            assert_close(z[k], ours.from_normal(noise[k]), atol=1e-5, rtol=1e-5)
            assert_close(ours.log_prob(z)[k], ours.log_prob(z[k]), atol=1e-3, rtol=1e-5)
        if name != "prior":
            assert not torch.allclose(ours.from_normal(noise[:, :1])[0, 0], z[0, 1], atol=1e-2)
        uniform = torch.rand(4, 1, ours.top.latent_size)
        shared = from_noise(ours, uniform)
        assert noise_size(ours) == ours.top.latent_size
        assert shared.shape == (4, 1 if name == "prior" else 3, ours.top.latent_size)
        wide = standard_normal(uniform).expand(4, 3, -1)
        assert_close(shared.expand(4, 3, -1), ours.from_normal(wide), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_divergence_of_each_level_is_the_average_of_log_ratios() -> None:
    vae, partial = parts(moved())
    with torch.no_grad():
        for head in (*vae.encoder.heads, *partial.encoder.heads):
            head.linear.bias.add_(torch.randn_like(head.linear.bias))  # apart at every level
    x, observed = images(1)
    posterior, approx, draws = vae.encode(x), partial.hierarchy(x, observed), 2000
    noise = torch.randn(draws, vae.top.latent_size)
    traced = trace(posterior, noise, approx)
    latents = vae.top.split(posterior.from_normal(noise[:, None]).flatten(0, 1))
    ratios: tuple[list[Tensor], list[Tensor]] = ([], [])

    def choose(i: int, features: Tensor, own: Tensor) -> Tensor:
        log_q = posterior.level(i, features, own).log_prob(latents[i])
        others = (level_gaussian(own), approx.level(i, features, own))
        for found, other in zip(ratios, others, strict=True):
            found.append((log_q - other.log_prob(latents[i])).flatten(1).sum(1))
        return latents[i]

    vae.top.descend(draws, choose)
    for exact, found in zip((traced.kl, traced.match), ratios, strict=True):
        difference = torch.stack(found) - torch.stack(exact)  # (levels, draws), mean zero
        error = difference.std(1) / math.sqrt(draws)
        assert (difference.mean(1).abs() < 4.5 * error).all()
        assert (error < 0.1 * torch.stack(exact).mean(1)).all()  # so an error would be seen


# Losses


def test_the_loss_is_the_negative_elbo_on_average() -> None:
    vae, _ = parts(moved())
    x, _ = images(1)
    x = x.expand(1000, -1, -1, -1)
    with torch.no_grad():
        posterior = vae.encode(x)
        z = posterior.sample()
        log_x = vae.decode(z).log_prob(x).flatten(1).sum(1)
        single = 0.5 * (posterior.log_prob(z) - vae.prior().log_prob(z)) - log_x
        loss = vae.loss(x, beta=0.5)
    error = math.sqrt((loss.var() + single.var()) / 1000)
    assert abs(loss.mean() - single.mean()) < 4.5 * error
    assert error < 1.0


def test_losses_of_one_pass_are_those_of_two_and_reach_only_their_own_weights() -> None:
    model = moved()
    vae, partial = parts(model)
    x, observed = images(4)
    losses = vae.losses_with(
        partial, x, None, observed, beta=0.3, generator=torch.Generator().manual_seed(5)
    )
    alone = vae.loss(x, beta=0.3, generator=torch.Generator().manual_seed(5))
    assert_close(losses["vae"], alone, atol=1e-3, rtol=1e-5)
    everything = list(model.parameters())
    for name, own in {"vae": vae, "match": partial}.items():
        gradients = torch.autograd.grad(
            losses[name].mean(), everything, retain_graph=True, allow_unused=True
        )
        reached = {id(p) for p, g in zip(everything, gradients, strict=True) if g is not None}
        assert reached == {id(p) for p in own.parameters()}
        assert all(g.isfinite().all() for g in gradients if g is not None)


def test_the_match_alone_keeps_nothing_for_the_vae() -> None:
    vae, partial = parts(moved())
    x, observed = images(4)
    losses_of, kept = [], []
    for train_vae in (False, True):
        generator, saved = torch.Generator().manual_seed(5), set[int]()

        def keep(tensor: Tensor, into: set[int] = saved) -> Tensor:
            into.add(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            asked = {"train_vae": train_vae, "generator": generator}
            losses_of.append(vae.losses_with(partial, x, None, observed, **asked))
        kept.append(saved & {p.data_ptr() for p in vae.parameters()})
    assert not kept[0]
    assert kept[1]
    one, both = losses_of
    assert set(one) == {"match"}
    assert_close(one["match"], both["match"])
    found, expected = (
        torch.autograd.grad(losses["match"].sum(), list(partial.parameters()))
        for losses in (one, both)
    )
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
    with torch.no_grad():
        assert not vae.losses_with(partial, x, None, observed)["match"].requires_grad


def test_a_density_trains_the_partial_encoder_and_not_what_it_borrows() -> None:
    model = moved()
    vae, partial = parts(model)
    x, observed = images(4)
    approx = partial(x, observed)
    z = vae.encode(x).sample()
    everything = list(model.parameters())
    gradients = torch.autograd.grad(approx.log_prob(z).sum(), everything, allow_unused=True)
    reached = {id(p) for p, g in zip(everything, gradients, strict=True) if g is not None}
    assert reached == {id(p) for p in partial.parameters()}
    assert not approx.has_rsample
    with pytest.raises(NotImplementedError, match="borrowed"):
        approx.rsample()
    # The posterior's own draws have one, through every level.
    drawn = vae.encode(x).rsample()
    assert torch.autograd.grad(drawn.sum(), vae.encoder.first.weight)[0].abs().sum() > 0.0


def test_a_state_holds_each_weight_once() -> None:
    model = moved()
    vae, partial = parts(model)
    assert not {n for n in partial.state_dict() if not n.startswith("encoder.")}
    assert len({p.data_ptr() for p in model.parameters()}) == len(model.state_dict())
    twin_vae, twin = parts(copy.deepcopy(model))
    x, observed = images(2)
    assert twin.hierarchy(x, observed).top is twin_vae.top
    assert partial.hierarchy(x, observed).top is vae.top


@pytest.mark.parametrize("junk", [0.0, 1e6, math.nan, math.inf])
def test_hidden_pixels_are_never_read(junk: float) -> None:
    vae, partial = parts(moved(channels=3))
    x, observed = images(3, channels=3)
    z = vae.encode(x).sample()
    weights = list(partial.parameters())
    found = []
    for rows in (x, x.masked_fill(~observed, junk)):
        log_prob = partial(rows, observed).log_prob(z)
        found.append([log_prob, *torch.autograd.grad(log_prob.sum(), weights)])
    for plain, spoilt in zip(*found, strict=True):
        assert torch.equal(plain, spoilt)
        assert spoilt.isfinite().all()
    other = partial(x.roll(1, 0), observed).log_prob(z)
    assert not torch.allclose(other, found[0][0])  # what is observed, however, is


def test_images_that_do_not_fit_are_refused() -> None:
    vae, _ = parts(moved())
    with pytest.raises(ValueError, match=r"x must be \(batch, 1, 8, 8\), got \(2, 3, 8, 8\)"):
        vae.encode(images(2, channels=3)[0])
    with pytest.raises(ValueError, match="available must be all True"):
        vae.encode(images(2)[0], torch.zeros(2, 1, 8, 8, dtype=torch.bool))


@pytest.mark.parametrize("how", ["autocast", "weights"])
@torch.no_grad()
def test_half_precision_ends_where_densities_begin(how: str) -> None:
    model = moved()
    vae, partial = parts(model)
    x, observed = images(16)
    full = vae.losses_with(partial, x, None, observed, generator=torch.Generator().manual_seed(1))
    if how == "weights":
        model.bfloat16()
    states: list[torch.dtype] = []
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        generator = torch.Generator().manual_seed(1)
        half = vae.losses_with(partial, x, None, observed, generator=generator)
        posterior = vae.encode(x)

        def choose(i: int, features: Tensor, own: Tensor) -> Tensor:
            states.append(features.dtype)
            level = posterior.level(i, features, own)
            assert own.dtype == level.loc.dtype == level.scale.dtype == torch.float32
            return level.loc

        bottom = vae.top.descend(16, choose)
        assert vae.top.outputs(bottom).dtype == torch.float32
    assert set(states) == {torch.bfloat16}  # no wide tensor of twice the length
    for name, value in half.items():
        assert value.dtype == torch.float32
        assert_close(value.mean(), full[name].mean(), atol=0.0, rtol=0.05)


# Answers


@pytest.mark.parametrize("channels", [1, 3])
def test_a_conditional_answers(channels: int) -> None:
    model = moved(channels=channels)
    x, observed = images(3, channels)
    hidden = x.masked_fill(~observed, math.nan)
    answer = model.given(hidden, observed)
    drawn, imputed = answer.sample(4), answer.impute(4)
    assert drawn.shape == (4, *x.shape)
    seen = observed.expand_as(x)
    for filled in (*drawn, imputed):
        assert torch.equal(filled[seen], x[seen])
        assert ((filled >= 0.0) & (filled <= 1.0)).all()
    assert not torch.equal(drawn[0], drawn[1])
    # Neither company nor order changes an answer, so a caller may ask in chunks.
    assert_close(model.given(hidden[1:], observed[1:]).impute(4), imputed[1:], atol=1e-4, rtol=0)
    log_prob = answer.log_prob(x, num_samples=8, seed=1)
    chunks = [
        model.given(hidden[i : i + 1], observed[i : i + 1]).log_prob(
            x[i : i + 1], num_samples=8, seed=1
        )
        for i in range(3)
    ]
    assert log_prob.shape == (3,)
    assert_close(torch.cat(chunks), log_prob, atol=1e-2, rtol=1e-4)


def test_bounds_on_a_conditional_log_likelihood_meet_with_more_draws() -> None:
    model = moved()
    x, observed = images(40)
    answer = model.given(x, observed)
    few, many = (answer.log_prob_gap(num_samples).value for num_samples in (2, 64))
    error = torch.stack([few, many]).std(1) / math.sqrt(40)
    assert many.mean() > -4.5 * error[1]
    assert few.mean() - many.mean() > 2.0 * error.norm()


def patterns(rows: int, generator: torch.Generator) -> Tensor:
    """Return images of upright or of level stripes, some brighter than others."""
    upright = torch.rand(rows, 1, 1, 1, generator=generator) < 0.5
    stripes = torch.tensor([1.0, 0.0, 1.0, 0.0])
    shape = torch.where(upright, stripes.expand(4, 4), stripes[:, None].expand(4, 4))
    brightness = 0.7 + 0.2 * torch.rand(rows, 1, 1, 1, generator=generator)
    return (shape * brightness * 255).round() / 255


def trained(steps: int, generator: torch.Generator) -> MatchedVAE:
    vae, partial = hierarchical_vae(HierarchyLayout("4x1,4d4,1x1", "1x1,4m1", 16, 8, 1), 1, 3)
    model = MatchedVAE(vae, partial)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = patterns(64, generator)
        share = torch.rand(64, 1, 1, 1, generator=generator)
        observed = torch.rand(64, 1, 4, 4, generator=generator) < share
        optimiser.zero_grad()
        losses = vae.losses_with(partial, x, None, observed, generator=generator)
        torch.stack([each.mean() for each in losses.values()]).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 200.0)
        optimiser.step()
        schedule.step()
    return model


def test_a_trained_model_knows_what_is_sure_and_what_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    model = trained(120, generator)
    x = patterns(128, generator)
    column, corner = torch.zeros(2, 128, 1, 4, 4, dtype=torch.bool)
    column[..., :1], corner[..., :1, :1] = True, True
    # A column tells the pattern and its brightness. The corner is bright in both patterns: the best
    # guess is their average, which is half the brightness off in every other pixel, 0.2 in all.
    errors = [(model.given(x, seen).impute(8) - x).abs().mean() for seen in (column, corner)]
    assert errors[0] < 0.08
    assert abs(errors[1] - 0.2) < 0.08
    drawn = model.given(x, corner).sample(8)[..., 0, :, :]
    upright = drawn[..., 1, 0] - drawn[..., 0, 1]
    # Drawn given the corner, an image is of the one kind or the other, and not their average.
    shares = [(upright > 0.4).float().mean(), (upright < -0.4).float().mean()]
    assert min(shares) > 0.2
    assert sum(shares) > 0.6


def test_a_match_that_cannot_be_is_refused() -> None:
    model = moved()
    vae, _ = parts(model)
    x, observed = images(2)
    for asked in ({"train_target": True}, {"num_samples": 2}):
        with pytest.raises(ValueError, match="without train_target, and from one draw"):
            model.losses(x, None, observed, **asked)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="partial must be a HierarchicalEncoder, got Masked"):
        vae.losses_with(MaskedEncoder(nn.Identity(), nn.Identity()), x, None, observed)
    with pytest.raises(ValueError, match="available must be all True"):
        model.losses(x, observed, observed)


def test_gradients_of_means_are_those_of_torch_outside_of_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(2, 7, 7, 3, requires_grad=True)
    weight, autocast = torch.randn(2, 3, 3, 3), []
    (expected,) = torch.autograd.grad(
        (F.avg_pool2d(x.movedim(-1, 1), 2).movedim(1, -1) * weight).sum(), x
    )
    grow = F.interpolate

    def watched(*given: Tensor, **how: float) -> Tensor:
        autocast.append(torch.is_autocast_enabled("cpu"))  # on a GPU it would make them float32
        return grow(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "interpolate", watched)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad((_Shrunk.apply(x, 2) * weight).sum(), x)
    assert_close(found, expected)
    assert autocast == [False]
