"""A hierarchy of one level is a plain VAE."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.distributions.discretised import DiscretisedLogistics
from postmatch.distributions.hierarchy import trace
from postmatch.nets.hierarchical import Level
from postmatch.nets.hierarchy_layout import HierarchyLayout
from small_hierarchies import images, moved, parts


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
