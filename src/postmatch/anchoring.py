"""Latent vectors that start out as the rows themselves.

A VAE whose networks start out at random finds its own z, a mixture of all features. Then what is
observed of a row says little about each entry of z and much about all of them together, and
q(z | x_o) has to solve an equation for every mask. Anchored, the first entries of z are the
features with a little noise: q(z | x_o) knows those that are observed from the start, and is left
with those that are hidden. Training may then move z to wherever it is told best.

The networks to be anchored read :class:`~postmatch.nets.mlp.WithInput`, whose last features are
its input: the values and then the mask of an encoder, z of a decoder.
"""

import math

import torch
from torch import Tensor, nn

from postmatch.nets.linear import Linear
from postmatch.nets.made import MaskedResidualNet
from postmatch.partial import DiagonalHead

_QUIET = 0.1  # what is left at first of the weights of all but the input


@torch.no_grad()
def anchor_encoder(head: DiagonalHead, num_features: int, noise: float) -> None:
    """Let a head start out as the values of all features with noise around them.

    Args:
        head: Of q(z | x), on values and mask.
        num_features: How many features a row has, no more than z has entries.
        noise: Standard deviation, in units of the rows.
    """
    values, _ = _inputs(head.linear, num_features, num_features)
    mean, raw = head.linear.bias.chunk(2)
    _check(num_features, len(mean))
    _connect(values[: len(mean)])
    mean.zero_()
    raw[:num_features] = _raw(noise)


@torch.no_grad()
def anchor_decoder(layer: Linear, num_features: int, latent_size: int, noise: float) -> None:
    """Let the last layer of a decoder start out as the first entries of z with noise around them.

    Args:
        layer: From z to logits, means and raw scales of the components of every feature.
        num_features: How many features a row has.
        latent_size: Length of z.
        noise: Standard deviation, in units of the rows.
    """
    _check(num_features, latent_size)
    (entries,) = _inputs(layer, latent_size)
    for component in _by_component(entries, num_features)[1]:
        _connect(component)
    _, mean, raw = _by_component(layer.bias, num_features)
    mean.zero_()
    raw.fill_(_raw(noise))


@torch.no_grad()
def anchor_posterior(net: MaskedResidualNet, num_features: int, noise: float) -> None:
    """Let entries of z that are observed start out at their values with noise around them.

    Args:
        net: Of an autoregressive mixture q(z | x_o) whose context ends with values and mask.
        num_features: How many features a row has, no more than z has entries.
        noise: Standard deviation, in units of the rows.
    """
    _check(num_features, net.size)
    net.last.weight.mul_(_QUIET)
    values, mask = _inputs(net.context_out, num_features, num_features)
    _, mean, raw = _by_component(net.last.bias, net.size)
    for component in _by_component(values, net.size)[1]:
        _connect(component)
    _, mean_if_seen, raw_if_seen = _by_component(mask, net.size)
    for k in range(len(mean)):  # take back where the component would be
        _connect(mean_if_seen[k], -mean[k, :num_features])
        _connect(raw_if_seen[k], _raw(noise) - raw[k, :num_features])


def _inputs(layer: nn.Linear, *lengths: int) -> tuple[Tensor, ...]:
    """Clear a layer's weights of its last inputs and return them; leave little of the others."""
    layer.weight.mul_(_QUIET)
    last = layer.weight[:, -sum(lengths) :].zero_()
    return last.split_with_sizes(list(lengths), dim=1)


def _by_component(x: Tensor, size: int) -> Tensor:
    """Return what belongs to logits, means and raw scales, ``(3, components, size, ...)``."""
    return torch.unflatten(x, 0, (3, -1, size))


def _connect(weight: Tensor, to: float | Tensor = 1.0) -> None:
    """Connect each of the inputs with the output of the same number."""
    weight.diagonal().copy_(torch.as_tensor(to))


def _raw(scale: float) -> float:
    return math.log(math.expm1(scale))  # what softplus turns into the scale


def _check(num_features: int, latent_size: int) -> None:
    if latent_size < num_features:
        raise ValueError(f"latent_size must be at least {num_features} features, got {latent_size}")
