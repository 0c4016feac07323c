"""Hierarchies of latent images: layouts, densities, losses and answers."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.discretised import DiscretisedLogistics
from postmatch.distributions.hierarchy import Hierarchy, trace
from postmatch.distributions.levels import level_gaussian
from postmatch.distributions.noise import from_noise, noise_size, standard_normal
from postmatch.nets.hierarchical import Level, _Shrunk
from postmatch.nets.hierarchy_layout import Block, HierarchyLayout, Place
from postmatch.partial import MaskedEncoder
from postmatch.partial_hierarchy import HierarchicalEncoder
from postmatch.vaes.hierarchical import HierarchicalVAE, hierarchical_vae

SMALL = HierarchyLayout("8x1,8d2,4x1,4d4,1x1", "1x2,4m1,4x1,8m4", 16, 8, 2)
MNIST = HierarchyLayout(
    "28x6,28d2,14x4,14d2,7x2,7d2,3x2,3d2,1x2",
    "1x2,3m1,3x2,7m3,7x2,14m7,14x4,28m14,28x6",
    width=192,
    bottleneck=48,
    latent_channels=16,
)


def moved(layout: HierarchyLayout = SMALL, channels: int = 1) -> MatchedVAE:
    """Return a model far from the start, where levels expect the same whatever came before."""
    vae, partial = hierarchical_vae(layout, channels, num_components=3)
    model = MatchedVAE(vae, partial)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def parts(model: MatchedVAE) -> tuple[HierarchicalVAE, HierarchicalEncoder]:
    assert isinstance(model.vae, HierarchicalVAE)
    assert isinstance(model.partial, HierarchicalEncoder)
    return model.vae, model.partial


def images(rows: int, channels: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    """Return images, and which of their pixels are observed."""
    return torch.randint(256, (rows, channels, size, size)) / 255, torch.rand(
        rows, 1, size, size
    ) < 0.5


# Layouts


def test_a_layout_says_blocks_and_levels() -> None:
    assert SMALL.blocks == (Block(8, 1), Block(8, 2), Block(4, 1), Block(4, 4), Block(1, 1))
    assert SMALL.places == (*[Place(1, None)] * 2, Place(4, 1), Place(4, None), Place(8, 4))
    assert [p.size for p in MNIST.places] == [1] * 2 + [3] * 3 + [7] * 3 + [14] * 5 + [28] * 7


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        ("8y1", "8x1", r"encoder must be parts such as 28x2 or 28d2 and commas, got '8y1'"),
        ("8x0", "8x1", r"encoder must be parts .*, got '8x0'"),
        ("8x1,,4x1", "8x1", r"encoder must be parts .*, got ''"),
        ("8x1", "8d2", r"decoder must be parts such as 28x2 or 28m2 and commas, got '8d2'"),
        ("8d2,8x1", "8x1", r"encoder must go on at size 4 with 8x1, got 8"),
        ("8d2,4x1", "4x1,8x1", r"decoder must go on at size 4 with 8x1, got 8"),
        ("8d2,4x1", "4x1,8m2", r"decoder must grow from size 4 with 8m2, got 2"),
        ("8d2,4x1", "8m4", r"decoder must grow from size None with 8m4, got 4"),
        ("8d2,4x1", "4x1", r"decoder must end at the size that encoder begins with, 8, got 4"),
        ("8x1", "4x1,8m4", r"encoder must have blocks of each size of decoder, not of \{4\}"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(encoder: str, decoder: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchyLayout(encoder, decoder, 16, 8, 2)


def test_the_papers_layout_has_the_papers_size() -> None:
    with torch.device("meta"):
        vae, partial = hierarchical_vae(MNIST)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (vae, partial)]
    assert vae.top.latent_size == 16 * sum(p.size**2 for p in MNIST.places) == 106_304
    # Published: 7,266,942. There, partial posteriors have full covariances, 120 outputs more at
    # each of 20 levels; z comes in with a bias beside another, and the image has a gain and a bias.
    assert sum(sizes) == 7_266_942 - 20 * 120 * 49 - 20 * 192 - 2 * 192 == 7_145_118


# One level is a plain VAE


@pytest.mark.parametrize("size", [1, 4])
def test_one_level_is_a_plain_vae(size: int) -> None:
    layout = HierarchyLayout(f"{size}x1", f"{size}x1", 16, 8, 2)
    vae, _ = parts(moved(layout))
    (x, _), noise = images(5, size=size), torch.randn(5, 2 * size * size)
    # The same weights as networks on channels-first images that know no hierarchy.
    encoder, (level,) = vae.encoder, vae.top.levels
    assert isinstance(level, Level)
    start = vae.top.starts[str(size)].movedim(-1, 0).expand(5, -1, -1, -1)
    first = encoder.first.weight.view(16, 1, 3, 3)
    state = F.conv2d(2.0 * x - 1.0, first, encoder.first.bias, padding=1)
    state = state + narrow(encoder.blocks[0].trunk, encoder.blocks[0].last, act(state))
    joined = torch.cat([act(start), act(state)], dim=1)
    both = copy.deepcopy(encoder.trunks[0])
    both.first.weight = nn.Parameter(
        torch.cat([both.first.weight, encoder.shares[str(size)].weight], dim=1)
    )
    posterior = flat_normal(narrow(both, encoder.heads[0].linear, joined))
    prior = flat_normal(narrow(level.trunk, level.own.linear, act(start)))
    z = posterior.mean + posterior.stddev * noise
    hidden = narrow(level.trunk, nn.Identity(), act(start))
    latent = z.view(5, size, size, 2).movedim(-1, 1)
    state = start + dense(level.update, torch.cat([hidden, latent], dim=1))
    state = state + narrow(level.merge.trunk, level.merge.last, act(state))
    decoded = DiscretisedLogistics(dense(vae.top.last.linear, state), 1)

    close = {"atol": 1e-5, "rtol": 1e-5}
    assert_close(vae.encode(x).from_normal(noise), z, **close)
    assert_close(vae.encode(x).log_prob(z), posterior.log_prob(z), **close)
    assert_close(vae.prior().log_prob(z), prior.log_prob(z), **close)
    assert_close(vae.decode(z).log_prob(x), decoded.log_prob(x), **close)
    log_x = decoded.log_prob(x).flatten(1).sum(1)
    traced = trace(vae.encode(x), noise)
    assert_close(vae._loss(traced, x, 0.5), 0.5 * kl_divergence(posterior, prior) - log_x, **close)


def act(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def dense(layer: nn.Module, x: Tensor) -> Tensor:
    """Return a layer of the last axis applied to the channels."""
    applied: Tensor = layer(x.movedim(1, -1)).movedim(-1, 1)
    return applied


def narrow(trunk: nn.Module, last: nn.Module, x: Tensor) -> Tensor:
    """Return a bottleneck as convolutions of channels-first images."""
    hidden = dense(trunk.first, x)
    for layer in (trunk.second, trunk.third):
        hidden = act(hidden)
        if layer.weight.dim() == 4:
            weight = layer.weight.permute(0, 3, 1, 2).contiguous()
            hidden = F.conv2d(hidden, weight, layer.bias, padding=1)
        else:
            hidden = dense(layer, hidden)
    return dense(last, act(hidden))


def flat_normal(outputs: Tensor) -> Independent:
    mean, raw = (t.movedim(1, -1).flatten(1) for t in outputs.chunk(2, dim=1))
    return Independent(Normal(mean, F.softplus(raw) + 1e-5), 1)


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
        assert_close(shared[:, -1:] if name == "prior" else shared, shared)
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
