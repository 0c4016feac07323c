"""Autoencoders of Hugging Face diffusers as VAEs that can be asked here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from postmatch.distributions.gaussian import Gaussian
from postmatch.nets.precision import full_precision
from postmatch.vaes.external import ExternalVAE, assembled


class _Parts(NamedTuple):
    encode: Callable[[Tensor], Any]
    decode: Callable[[Tensor], Tensor]
    prior: Callable[[torch.Size], Distribution]
    """From the shape of z."""
    assumed: tuple[str, ...] = ()


def from_diffusers(
    model: nn.Module,
    example: Tensor,
    *,
    value_range: tuple[float, float] = (0.0, 1.0),
    scale: float | None = None,
) -> ExternalVAE:
    r"""Return an ``AutoencoderKL``, a ``VQModel`` or an ``AutoencoderTiny``; it stays as it is.

    Images become what these models read, values in [-1, 1], and come back in their own range. z is
    what a latent diffusion model sees, :math:`(z - \text{shift}) \cdot \text{scaling}`, or codes of
    a ``VQModel``. None of these decoders has a likelihood: it is a Gaussian around their output.

    Args:
        model: One of the three.
        example: Images, ``(batch, channels, height, width)``: they tell the size of z, and the
            Gaussian's standard deviation is fitted to them.
        value_range: Of these images.
        scale: That standard deviation, in their units, if it shall not be fitted.

    Raises:
        ImportError: If diffusers is not installed.
        TypeError: If the model is none of these.
    """
    low, high = value_range
    if not low < high:
        raise ValueError(f"value_range must be two rising numbers, got {value_range}")
    if example.dim() != 4:
        raise ValueError(f"example must be (batch, channels, height, width), got {example.shape}")
    half, middle = 0.5 * (high - low), 0.5 * (high + low)
    parts, like = _parts(model), next(model.parameters())

    def encode(x: Tensor) -> Any:
        return parts.encode(((x - middle) / half).to(like.dtype))

    def decode(z: Tensor) -> Tensor:
        return full_precision(parts.decode(z)) * half + middle

    with torch.no_grad():
        told = encode(example[:1].to(like.device))
    shape = (told.batch_shape if isinstance(told, Distribution) else told.shape)[1:]
    prior = parts.prior(shape)
    vae = assembled(encode, decode, prior, example, model, scale)
    vae.assumptions = (*parts.assumed, *vae.assumptions)
    return vae


def _parts(model: Any) -> _Parts:
    try:
        from diffusers import AutoencoderKL, AutoencoderTiny, VQModel
    except ImportError:
        raise ImportError(
            "diffusers is an extra: install it with pip install 'postmatch[diffusers]'"
        ) from None
    if isinstance(model, AutoencoderKL):
        return _of_kl(model)
    if isinstance(model, VQModel):
        return _of_vq(model)
    if isinstance(model, AutoencoderTiny):
        return _of_tiny(model)
    raise TypeError(
        "model must be an AutoencoderKL, a VQModel or an AutoencoderTiny of diffusers, got "
        f"{type(model).__name__}; wrap others with from_functions"
    )


def _of_kl(model: Any) -> _Parts:
    """Its posterior in the units of latent diffusion, and the prior that its KL term names."""
    config, like = model.config, next(model.parameters())

    def per_channel(values: Any, otherwise: float) -> Tensor:
        told = [otherwise] if values is None else list(values)
        return torch.tensor(told, device=like.device).view(-1, 1, 1)

    shift = per_channel(config.latents_mean, config.shift_factor or 0.0)
    factor = config.scaling_factor / per_channel(config.latents_std, 1.0)

    def encode(x: Tensor) -> Distribution:
        latent = model.encode(x).latent_dist
        return Gaussian((latent.mean.float() - shift) * factor, latent.std.float() * factor)

    def decode(z: Tensor) -> Tensor:
        decoded: Tensor = model.decode((z / factor + shift).to(like.dtype)).sample
        return decoded

    def prior(shape: torch.Size) -> Distribution:
        return Gaussian((-shift * factor).expand(shape), factor.expand(shape))

    return _Parts(encode, decode, prior)


def _of_vq(model: Any) -> _Parts:
    """Its codes, and the vectors that stand for them."""
    quantize = model.quantize

    def encode(x: Tensor) -> Tensor:
        latents = model.encode(x).latents
        codes: Tensor = quantize(latents)[2][2]
        return codes.view(len(x), *latents.shape[2:])

    def decode(codes: Tensor) -> Tensor:
        shape = (*codes.shape, quantize.vq_embed_dim)
        vectors = quantize.get_codebook_entry(codes.reshape(-1), shape)
        spatial = vectors if model.config.norm_type == "spatial" else None
        decoded: Tensor = model.decoder(model.post_quant_conv(vectors), spatial)
        return decoded

    def prior(shape: torch.Size) -> Distribution:
        logits = quantize.embedding.weight.new_zeros(*shape, quantize.re_embed)
        return Categorical(logits=logits, validate_args=False)

    told = "p(z) is uniform over codes, since a VQModel has no prior; fit_prior learns one"
    return _Parts(encode, decode, prior, (told,))


def _of_tiny(model: Any) -> _Parts:
    """Its latents, as fine as the bytes that it rounds them to itself."""
    factor, shift = model.config.scaling_factor, model.config.shift_factor
    like = next(model.parameters())
    step = 2.0 * model.latent_magnitude / 255.0 * factor

    def encode(x: Tensor) -> Distribution:
        mean = (model.encode(x).latents.float() - shift) * factor
        return Gaussian(mean, torch.full_like(mean, step))

    def decode(z: Tensor) -> Tensor:
        decoded: Tensor = model.decode((z / factor + shift).to(like.dtype)).sample
        return decoded

    def prior(shape: torch.Size) -> Distribution:
        zero = torch.zeros(shape, device=like.device)
        return Gaussian(zero, torch.ones_like(zero))

    posterior = f"q(z | x) is Gaussian around the latents, {step:.3g} wide, a step of their bytes"
    return _Parts(encode, decode, prior, (posterior, "p(z) is a standard normal"))
