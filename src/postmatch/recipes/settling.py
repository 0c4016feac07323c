"""How sure a model of real vectors may be: decided by rows that it has not learned from.

A model of few rows that goes on learning after its densities fit best still gets better at telling
where values lie, and too sure of it. Early stopping would give away the one to mend the other;
settling the scales afterwards keeps both.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from postmatch.conditioning import MatchedVAE
from postmatch.masks import MaskDistribution
from postmatch.partial import AutoregressiveHead, DiagonalHead, MaskedEncoder
from postmatch.vaes.mixture import MixtureVAE

_STEPS, _RATE = 150, 0.03


def settle_scales(model: MatchedVAE, held_out: Tensor, masks: MaskDistribution) -> None:
    """Shift the raw scales of each entry and each feature to where held-out rows fit best.

    Nothing else changes: neither means nor the weights of components.

    Args:
        model: Trained, of a VAE of mixtures with a diagonal q(z | x) and an autoregressive
            q(z | x_o); it is changed in place.
        held_out: Rows in the model's units, on its device.
        masks: What is observed of them.
    """
    losses, layers = _Losses(model).eval().requires_grad_(False), dict(_layers_with_scales(model))
    shifts = [torch.zeros(size, device=held_out.device) for _, size in layers.values()]
    optimiser = torch.optim.Adam([shift.requires_grad_() for shift in shifts], lr=_RATE)
    generator = torch.Generator(held_out.device).manual_seed(0)

    def biases() -> dict[str, Tensor]:
        pairs = zip(layers.items(), shifts, strict=True)
        return {name: _shifted(bias, by) for (name, (bias, _)), by in pairs}

    for _ in range(_STEPS):
        observed = masks.sample(held_out.shape, generator)
        loss = functional_call(losses, biases(), (held_out, observed, generator))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        for (bias, _), new in zip(layers.values(), biases().values(), strict=True):
            bias.copy_(new)
    model.requires_grad_(True)


class _Losses(nn.Module):
    """What a model of rows is trained by, as the call of a module."""

    def __init__(self, model: MatchedVAE) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, observed: Tensor, generator: torch.Generator) -> Tensor:
        """Return the sum of its losses."""
        found = self.model.bound_losses(x, None, observed, generator=generator)
        return torch.stack(list(found.values())).sum()


def _layers_with_scales(model: MatchedVAE) -> Iterator[tuple[str, tuple[Tensor, int]]]:
    """Yield names of biases that end with raw scales, with how many entries these are for."""
    vae, partial = model.vae, model.partial
    assert isinstance(vae, MixtureVAE)
    assert isinstance(vae.encoder, MaskedEncoder)
    assert isinstance(partial, MaskedEncoder)
    encoder, posterior = vae.encoder.head, partial.head
    if not isinstance(encoder, DiagonalHead) or not isinstance(posterior, AutoregressiveHead):
        raise ValueError("settled needs neither full_encoder nor full_posterior")
    size = vae.prior_net.size
    sizes = {
        encoder.linear.bias: size,
        list(vae.decoder.parameters())[-1]: vae.num_features,
        posterior.net.last.bias: size,
        vae.prior_net.last.bias: size,
    }
    for name, parameter in model.named_parameters():
        if parameter in sizes:
            yield f"model.{name}", (parameter, sizes[parameter])


def _shifted(bias: Tensor, by: Tensor) -> Tensor:
    """Return a bias whose last part, raw scales of one or more components, is shifted."""
    components = max(1, len(bias) // (3 * len(by)))  # of logits, means and raw scales; or of two
    rest, raw = bias.detach().tensor_split([len(bias) - components * len(by)])
    return torch.cat([rest, (raw.view(components, -1) + by).flatten()])
