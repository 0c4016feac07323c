"""VAEs that others wrote: any encoder, decoder and prior, as one that answers questions here."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent

from postmatch.distributions.codes import PointMass
from postmatch.distributions.gaussian import Gaussian
from postmatch.distributions.pixels import Pixels
from postmatch.distributions.reshaped import EndToEnd, in_full_precision, reshaped, split_levels
from postmatch.nets.precision import full_precision
from postmatch.randomness import seeded
from postmatch.untouched import untouched
from postmatch.vaes.base import VAE, Latent, require_complete

_IMAGE_AXES = 3  # channels, height, width
_FITTED_ROWS = 1_000  # at most, to which a scale is fitted
_AT_ONCE = 100
_MIN_SCALE = 1e-6


@final
class ExternalVAE(VAE):
    """Functions of somebody else's model, with what they leave unsaid; see :func:`from_functions`.

    ``assumptions`` tells what was taken for granted on the model's behalf.
    """

    scale: Tensor | None

    def __init__(
        self,
        encode: Callable[[Tensor], Any],
        decode: Callable[[Any], Any],
        prior: Callable[[], Any],
        module: nn.Module | None,
    ) -> None:
        super().__init__()
        self.module = module  # so that it moves, is saved and changes its mode with this one
        self.functions = (encode, decode, prior)
        self.assumptions = ()
        self.register_buffer("scale", None, persistent=False)  # ours, and no part of the model

    def prior(self) -> Distribution:
        """Return p(z), one distribution."""
        return _over_z(self.functions[2](), "prior", batch_axes=0)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) of complete rows."""
        require_complete(available)
        told = self.functions[0](x)
        if isinstance(told, Tensor) and not told.is_floating_point() and told.dim() == 3:
            return PointMass(told.long())
        return _over_z(told, "encode", batch_axes=1)

    def decode(self, z: Latent) -> Distribution:
        """Return p(x | z), one value for each feature, of an image for each pixel."""
        prior = self.prior()
        axes = z.dim() - len(prior.event_shape)
        leading, rows = z.shape[:axes], z.reshape(-1, *prior.event_shape)
        each = reshaped(self._features(self.told(rows)), leading)
        pixels = len(each.batch_shape) - len(leading) == _IMAGE_AXES
        return Pixels(each) if pixels else each

    def told(self, z: Tensor) -> Any:
        """Return what the decoder itself says of z, ``(rows, *latent)``."""
        prior = self.prior()
        levels = tuple(split_levels(z, prior.shapes)) if isinstance(prior, EndToEnd) else None
        return self.functions[1](z if levels is None else levels)

    def point(self, decoded: Distribution) -> Tensor:
        """Return means, or the most probable levels, averaged over samples."""
        base = decoded.base if isinstance(decoded, Pixels) else decoded
        if isinstance(base, Categorical):
            return base.probs.mean(0).argmax(-1).to(torch.get_default_dtype())
        return super().point(decoded)

    def extra_repr(self) -> str:
        """Return the assumptions."""
        return "\n".join(f"assumes: {told}" for told in self.assumptions)

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        weights = () if self.module is None else self.module.parameters()
        return next((weight.device for weight in weights), torch.device("cpu"))

    def _features(self, told: Any) -> Distribution:
        """Return independent features of what the decoder told of rows."""
        if isinstance(told, Tensor):
            if self.scale is None:
                raise ValueError(
                    "decode returned a tensor, which has no likelihood: give from_functions a "
                    "scale for a Gaussian around it, or an example to fit that to"
                )
            return Gaussian(full_precision(told), self.scale.expand(told.shape))
        if not isinstance(told, Distribution):
            raise TypeError(f"decode must return a Distribution or a tensor, got {_kind(told)}")
        each: Distribution = told
        while isinstance(each, Independent):
            each = each.base_dist
        if each.event_shape != ():
            raise ValueError(
                f"decode must be factorised over features: a {_kind(each)} has one log_prob for "
                f"features of shape {tuple(each.event_shape)} together, so hidden ones cannot be "
                "left out of it; return independent features given z, if need be with more z"
            )
        return each


def from_functions(
    encode: Callable[[Tensor], Any],
    decode: Callable[[Any], Any],
    prior: Distribution | Sequence[Distribution] | Callable[[], Any] | None = None,
    example: Tensor | None = None,
    *,
    module: nn.Module | None = None,
    scale: float | None = None,
) -> ExternalVAE:
    """Return any VAE as one that can be asked here; nothing of it is changed.

    Args:
        encode: From complete rows to q(z | x), a distribution; or to a grid of codes, whole numbers
            ``(batch, height, width)``; or to a tuple of distributions, one for each level of z.
        decode: From z, ``(rows, *latent)``, a tuple if there are levels, to p(x | z): a
            distribution of independent features, or the means alone.
        prior: p(z), or what returns it; a tuple for levels; None for a standard normal.
        example: Complete rows, ``(batch, *features)``, on which the functions are tried. Where the
            decoder returns means, the scale is fitted to these rows.
        module: Whose weights the functions use; found by itself if they are methods.
        scale: Standard deviation around the decoder's means.

    Raises:
        TypeError: If a function returns what is no distribution.
        ValueError: If shapes do not fit, values are not finite, or features are not independent
            given z.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0, 0.5]])
        >>> vae = from_functions(
        ...     encode=lambda x: torch.distributions.Normal(0.3 * x[:, :1], 0.5),
        ...     decode=lambda z: torch.distributions.Normal(z @ weight, 1.0),
        ...     prior=torch.distributions.Normal(torch.zeros(1), 1.0),
        ...     example=torch.randn(8, 3),
        ... )
        >>> vae.assumptions
        ()
    """
    if module is None:
        module = _owner(encode, decode)

    def encode_own(x: Tensor) -> Any:
        return encode(_in_precision_of(module, x))

    def decode_own(z: Any) -> Any:
        return decode(_in_precision_of(module, z))

    return assembled(encode_own, decode_own, prior, example, module, scale)


def assembled(
    encode: Callable[[Tensor], Any],
    decode: Callable[[Any], Any],
    prior: Distribution | Sequence[Distribution] | Callable[[], Any] | None,
    example: Tensor | None,
    module: nn.Module | None,
    scale: float | None,
) -> ExternalVAE:
    """Return what :func:`from_functions` does, of functions that take values as they come."""
    asked = prior if callable(prior) else lambda: prior
    vae = ExternalVAE(encode, decode, asked, module)
    if scale is not None:
        if not scale > 0.0:
            raise ValueError(f"scale must be positive, got {scale}")
        vae.scale = torch.tensor(float(scale), device=vae.device)
    if prior is None and example is None:
        raise ValueError("prior must be given, or an example that tells the shape of z")
    if example is not None:
        with untouched(vae), torch.no_grad(), seeded(0):
            _check_example(example)
            rows = example.to(vae.device)
            if prior is None:
                _assume_standard_normal(vae, rows)
            _try(vae, rows)
    for told in vae.assumptions:
        warnings.warn(f"assumed: {told}", stacklevel=2)
    return vae


def in_float32(vae: VAE) -> VAE:
    """Return a VAE that takes and tells float32, whatever the type of its weights."""
    weights = {p.dtype for p in vae.parameters() if p.is_floating_point()}
    if isinstance(vae, ExternalVAE) or weights <= {torch.float32}:
        return vae
    return from_functions(vae.encode, vae.decode, vae.prior, module=vae)


def _in_precision_of(module: nn.Module | None, values: Any) -> Any:
    """Return numbers in the precision of a module's weights, and codes as they are."""
    if isinstance(values, tuple):
        return tuple(_in_precision_of(module, value) for value in values)
    weights = () if module is None else module.parameters()
    dtype = next((w.dtype for w in weights if w.is_floating_point()), values.dtype)
    return values.to(dtype) if values.is_floating_point() else values


def _check_example(example: Tensor) -> None:
    if not example.is_floating_point() or example.dim() < 2 or len(example) == 0:
        raise ValueError(
            "example must be rows of floating point, (batch, *features), got "
            f"{example.dtype} of shape {tuple(example.shape)}"
        )
    if not example.isfinite().all():
        raise ValueError("example must be complete rows, got NaN or infinite values")


def _try(vae: ExternalVAE, example: Tensor) -> None:
    """Ask for everything once, and fit what is not told."""
    x = example[:_AT_ONCE]
    posterior = vae.encode(x)
    if posterior.batch_shape != (len(x),):
        came = tuple(posterior.batch_shape)
        raise ValueError(f"encode must tell of each of {len(x)} rows, got batch shape {came}")
    z, prior = posterior.sample(), vae.prior()
    if z.shape[1:] != prior.event_shape:
        raise ValueError(
            f"encode and prior must be over the same z, got shapes {tuple(z.shape[1:])} and "
            f"{tuple(prior.event_shape)}"
        )
    _check_finite(z, "encode")
    if vae.scale is None and isinstance(vae.told(z), Tensor):
        _fit_scale(vae, example)
    decoded = vae.decode(z[None])
    came = tuple(decoded.batch_shape[2:])
    if came not in (tuple(x.shape[1:]), (1, *x.shape[2:])):
        raise ValueError(f"decode must tell of features of shape {tuple(x.shape[1:])}, got {came}")
    _check_finite(decoded.log_prob(x), "decode")


def _fit_scale(vae: ExternalVAE, example: Tensor) -> None:
    r"""Set the most likely scale of Gaussians around the decoder's means, and say so.

    .. math:: \hat\sigma^2 = \operatorname{mean} (x - \mu(z))^2, \qquad z \sim q_\psi(z \mid x)

    Of a table it is one for each column, whose units may differ.
    """
    rows, squares = example[:_FITTED_ROWS], []
    for x in torch.split(rows, _AT_ONCE):
        told: Tensor = full_precision(vae.told(vae.encode(x).sample()))
        if told.shape != x.shape:
            raise ValueError(
                f"decode must return means of shape {tuple(x.shape)}, got {tuple(told.shape)}"
            )
        _check_finite(told, "decode")
        squares.append((x - told).square())
    each = torch.cat(squares)
    square = each.mean(0) if each.dim() == 2 else each.mean()
    vae.scale = square.sqrt().clamp_min(_MIN_SCALE)
    told_scale = f"{float(square.mean().sqrt()):.3g}"
    _assume(
        vae,
        "p(x | z) is Gaussian around the decoder's output, which has no likelihood of its own, "
        f"with a standard deviation fitted to {len(rows)} rows ({told_scale})",
    )


def _assume(vae: ExternalVAE, told: str) -> None:
    vae.assumptions = (*vae.assumptions, told)


def _over_z(told: Any, name: str, batch_axes: int) -> Distribution:
    """Return a distribution with no more batch axes than these; the rest is z."""
    if isinstance(told, tuple | list) and all(isinstance(level, Distribution) for level in told):
        return EndToEnd([_over_z(level, name, batch_axes) for level in told])
    if not isinstance(told, Distribution):
        hint = ""
        if isinstance(told, tuple | list | Tensor):
            hint = "; make one of numbers, such as Normal(mean, (0.5 * log_variance).exp())"
        raise TypeError(f"{name} must return a Distribution, got {_kind(told)}{hint}")
    axes = len(told.batch_shape) - batch_axes
    distribution = Independent(told, axes, validate_args=False) if axes > 0 else told
    return in_full_precision(distribution)


def _assume_standard_normal(vae: ExternalVAE, example: Tensor) -> None:
    """Give a model the prior that most have, and say so."""
    posterior = vae.encode(example[:1])
    if not posterior.sample().is_floating_point():
        raise ValueError("prior must be given where z is a grid of codes")
    levels = posterior.levels if isinstance(posterior, EndToEnd) else (posterior,)
    shapes = [level.event_shape for level in levels]

    def prior() -> list[Distribution]:
        zeros = [torch.zeros(shape, device=vae.device) for shape in shapes]
        return [Gaussian(zero, torch.ones_like(zero)) for zero in zeros]

    encode, decode, _ = vae.functions
    vae.functions = (encode, decode, prior if len(shapes) > 1 else lambda: prior()[0])
    _assume(vae, "p(z) is a standard normal, since no prior was given")


def _owner(*functions: Callable[..., Any]) -> nn.Module | None:
    """Return the modules whose methods these are, or which they are."""
    owners = [f.__self__ if inspect.ismethod(f) else f for f in functions]
    modules = list(dict.fromkeys(owner for owner in owners if isinstance(owner, nn.Module)))
    return modules[0] if len(modules) == 1 else nn.ModuleList(modules) if modules else None


def _check_finite(value: Tensor, name: str) -> None:
    if not value.isfinite().all():
        raise ValueError(f"{name} must tell finite numbers of the example, got NaN or infinite")


def _kind(thing: object) -> str:
    return type(thing).__name__
