"""The contract of a VAE as a suite that any author of one can run.

Example:
    >>> from postmatch.testing import check_vae
    >>> check_vae(my_vae, rows)  # doctest: +SKIP
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.gaussian import Gaussian
from postmatch.importance import pareto_k
from postmatch.randomness import seeded
from postmatch.untouched import fingerprint, untouched
from postmatch.vaes.base import VAE

_SAMPLES = 3
_DRAWS = 2_000  # that tell whether a density fits its own draws
_SURE = 4.5  # standard errors
_HEAVY = 0.7  # the Pareto shape from which an average of weights tells nothing
_TOLERANCE = 1e-3  # of log densities that two passes compute in different order


def check_vae(vae: VAE, example: Tensor) -> None:
    """Raise unless a VAE keeps every clause of its contract on these rows.

    It is asked in evaluation mode and left as it was, torch's random state included.

    Args:
        vae: What is checked.
        example: Complete rows that fit it, ``(batch, *features)``; at least two that differ.

    Raises:
        AssertionError: If a clause is broken; the message begins with the clause's name, one of
            :data:`CLAUSES`, which are checked in order.
        ValueError: If the example itself cannot be used.
    """
    _check_example(example)
    for clause in CLAUSES:
        check_clause(vae, example, clause)


def check_clause(vae: VAE, example: Tensor, clause: str) -> None:
    """Check a single clause, one of :data:`CLAUSES`; see :func:`check_vae`."""
    _require(isinstance(vae, VAE), clause, f"a VAE must be a postmatch.VAE, got {_kind(vae)}")
    with seeded(0), untouched(vae), torch.no_grad():
        try:
            CLAUSES[clause](vae, example)
        except _BrokenError as broken:
            raise AssertionError(f"{clause}: {broken}") from None
        except Exception as error:
            told = f"{clause}: raised {type(error).__name__}: {error}"
            raise AssertionError(told) from error


class _BrokenError(Exception):
    """A clause does not hold; the message says how."""


def _prior(vae: VAE, example: Tensor) -> None:  # noqa: ARG001
    """``prior()`` returns one distribution over z."""
    prior = vae.prior()
    _distribution(prior, "prior()")
    _say(prior.batch_shape == (), f"prior() must have batch shape (), got {prior.batch_shape}")
    z = prior.sample(torch.Size([_SAMPLES]))
    _shape(prior.log_prob(z), (_SAMPLES,), "the prior's log_prob of draws")
    _finite(prior.log_prob(z), "the prior's log_prob of its own draws")


def _encode(vae: VAE, example: Tensor) -> None:
    """``encode(x)`` returns a distribution over z for each row."""
    posterior = vae.encode(example)
    _distribution(posterior, "encode(x)")
    came = tuple(posterior.batch_shape)
    _say(came == (len(example),), f"encode(x) must have batch shape {(len(example),)}, got {came}")
    z = posterior.sample(torch.Size([_SAMPLES]))
    _say(z.shape[:2] == (_SAMPLES, len(example)), f"samples must lead, got {tuple(z.shape)}")
    _finite(z, "draws of encode(x)")
    log_z = posterior.log_prob(z)
    _shape(log_z, (_SAMPLES, len(example)), "the posterior's log_prob of draws")
    _finite(log_z, "the posterior's log_prob of its own draws")


def _same_z(vae: VAE, example: Tensor) -> None:
    """Prior and posterior are over the same z."""
    prior, posterior = vae.prior(), vae.encode(example)
    z, drawn = posterior.sample(torch.Size([_SAMPLES])), prior.sample(torch.Size([_SAMPLES]))
    _say(
        z.shape[2:] == drawn.shape[1:] and z.dtype.is_floating_point == drawn.is_floating_point(),
        f"z of encode(x) is {tuple(z.shape[2:])} {z.dtype}, that of prior() "
        f"{tuple(drawn.shape[1:])} {drawn.dtype}",
    )
    log_z = prior.log_prob(z)
    _shape(log_z, (_SAMPLES, len(example)), "the prior's log_prob of the posterior's draws")
    _say(not log_z.isnan().any(), "the prior's log_prob of the posterior's draws is NaN")


def _density(vae: VAE, example: Tensor) -> None:
    r"""The posterior's ``log_prob`` is the density of its draws.

    With n a Gaussian somewhat narrower than the draws,
    :math:`\mathbb{E}_{z \sim q} n(z) / q(z) = 1`.
    """
    posterior = vae.encode(example[:1])
    drawn = posterior.sample(torch.Size([2 * _DRAWS]))
    if not drawn.is_floating_point():
        return
    flat = drawn.flatten(1).double()
    seen, rest = flat[:_DRAWS], flat[_DRAWS:]
    if any(len(entry.unique()) < _DRAWS // 2 for entry in seen.mT[:8]):
        return  # points have a mass, and no density
    narrow = 0.8 if flat.shape[1] <= 16 else 1.0 - 3.2 / flat.shape[1]
    normal = Gaussian(seen.mean(0), narrow * seen.std(0))
    log_prob = posterior.log_prob(drawn[_DRAWS:])[:, 0].double()
    log_weight = normal.log_prob(rest).sum(1) - log_prob
    weight = log_weight.exp()
    error = _SURE * weight.std() / math.sqrt(_DRAWS) + _TOLERANCE
    told = bool((weight.mean() - 1.0).abs() < error) or bool(pareto_k(log_weight) > _HEAVY)
    _say(told, f"encode(x).log_prob is off by {-weight.mean().log():.2f} nats for its own draws")


def _decode(vae: VAE, example: Tensor) -> None:
    """``decode(z)`` returns a distribution, whatever axes lead z."""
    z = vae.encode(example).sample(torch.Size([_SAMPLES]))
    for draws in (z, z[0], z[None]):
        decoded = vae.decode(draws)
        _distribution(decoded, "decode(z)")
        leading = draws.shape[: draws.dim() - z.dim() + 2]
        came = decoded.log_prob(example).shape[: len(leading)]
        _say(came == leading, f"axes {tuple(leading)} lead z, but {tuple(came)} its log_prob")


def _one_value_per_feature(vae: VAE, example: Tensor) -> None:
    """``decode(z).log_prob(x)`` has one value for each feature, as ``observed`` has."""
    log_each = _decoded(vae, example).log_prob(example)
    shapes = [(_SAMPLES, *shape) for shape in _feature_shapes(example)]
    wanted = " or ".join(str(shape) for shape in shapes)
    _say(tuple(log_each.shape) in shapes, f"must be {wanted}, got {tuple(log_each.shape)}")
    _finite(log_each, "decode(z).log_prob(x)")


def _factorised(vae: VAE, example: Tensor) -> None:
    """The ``log_prob`` of a feature depends on no other feature of x."""
    decoded = _decoded(vae, example)
    log_each = decoded.log_prob(example)
    pixels = log_each.shape[1:] != example.shape
    flat, rolled = (x.flatten(2 if pixels else 1) for x in (example, example.roll(1, 0)))
    feature = int((flat != rolled).flatten(0, -2).any(0).nonzero()[0])
    moved = flat.clone()
    moved[..., feature] = rolled[..., feature]
    changed = (decoded.log_prob(moved.view_as(example)) - log_each).flatten(2).abs()
    changed[..., feature] = 0.0
    _say(
        bool((changed <= _TOLERANCE).all()),
        f"changing feature {feature} of x changed the log_prob of others by {changed.max():.3g}",
    )


def _finite_at_zero(vae: VAE, example: Tensor) -> None:
    """``log_prob`` is finite at zero, where values that are not known are asked."""
    log_each = _decoded(vae, example).log_prob(torch.zeros_like(example))
    _finite(log_each, "decode(z).log_prob(0)")


def _draws(vae: VAE, example: Tensor) -> None:
    """``decode(z).sample()`` are rows like x."""
    drawn = _decoded(vae, example).sample()
    _shape(drawn, (_SAMPLES, *example.shape), "decode(z).sample()")
    _finite(drawn, "decode(z).sample()")


def _point(vae: VAE, example: Tensor) -> None:
    """``point(decoded)`` is one row like x, from several draws of z."""
    best = vae.point(_decoded(vae, example))
    _shape(best, tuple(example.shape), "point(decode(z))")
    _finite(best, "point(decode(z))")


def _rows(vae: VAE, example: Tensor) -> None:
    """A row's answer does not depend on the company of the row."""
    posterior, alone = vae.encode(example), vae.encode(example[:1])
    z = posterior.sample(torch.Size([_SAMPLES]))[:, :1]
    both = [q.log_prob(z.expand(-1, len(example), *z.shape[2:])) for q in (posterior, alone)]
    _alike(both[0][:, 0], both[1][:, 0], "encode(x) of a row depends on the rows beside it")
    z = posterior.sample(torch.Size([_SAMPLES]))
    whole, part = vae.decode(z).log_prob(example), vae.decode(z[:, :1]).log_prob(example[:1])
    _alike(whole[:, :1], part, "decode(z) of a row depends on the rows beside it")


def _repeatable(vae: VAE, example: Tensor) -> None:
    """Asked twice, ``encode`` and ``decode`` return the same distributions."""
    first, again = vae.encode(example), vae.encode(example)
    z = first.sample(torch.Size([_SAMPLES]))
    _alike(first.log_prob(z), again.log_prob(z), "encode(x) differs from call to call")
    one, two = (vae.decode(z).log_prob(example) for _ in range(2))
    _alike(one, two, "decode(z) differs from call to call")


def _seed(vae: VAE, example: Tensor) -> None:
    """Draws come from torch's global state: the same seed, the same draws."""
    found = []
    for _ in range(2):
        with seeded(1):
            z = vae.encode(example).sample()
            found.append((vae.prior().sample(), z, vae.decode(z).sample()))
    for name, one, two in zip(("prior", "encode", "decode"), *found, strict=True):
        _say(torch.equal(one, two), f"draws of {name} differ under the same seed")


def _independent_draws(vae: VAE, example: Tensor) -> None:
    """Draws for two equal rows are independent."""
    twice = example[:1].expand(2, *example.shape[1:]).contiguous()
    z = vae.encode(twice).sample(torch.Size([16]))
    x = vae.decode(z[:1, :1].expand(16, 2, *z.shape[2:])).sample()
    for name, drawn in (("encode", z), ("decode", x)):
        noisy = not torch.equal(drawn[0, 0], drawn[1, 0])  # or there is no noise to share
        shared = torch.equal(drawn[:, 0], drawn[:, 1])
        _say(not (noisy and shared), f"draws of {name} share their noise between rows")


def _holes(vae: VAE, example: Tensor) -> None:
    """``encode(x, available)`` never reads what is not available, or refuses holes."""
    shape = _decoded(vae, example).log_prob(example).shape[1:]
    everything = torch.ones(shape, dtype=torch.bool, device=example.device)
    available = everything.clone()
    available.flatten(1)[:, 0] = False
    z = vae.encode(example).sample(torch.Size([_SAMPLES]))
    log_z = vae.encode(example).log_prob(z)
    same = vae.encode(example, everything).log_prob(z)
    _alike(same, log_z, "available all True must be the same as not saying")
    try:
        found = vae.encode(example, available).log_prob(z)
    except ValueError:
        return
    for junk in (1e6, math.nan):
        spoilt = example.masked_fill(~available, junk)
        log_spoilt = vae.encode(spoilt, available).log_prob(z)
        _alike(log_spoilt, found, "encode(x, available) reads what is not available")
        loss = vae.loss(spoilt, available)
        _finite(loss, f"loss(x, available) with {junk} where nothing is available")


def _loss(vae: VAE, example: Tensor) -> None:
    """``loss(x)`` has one finite value for each row, with or without the posterior given."""
    _shape(vae.loss(example), (len(example),), "loss(x)")
    _finite(vae.loss(example), "loss(x)")
    generator = torch.Generator(example.device).manual_seed(0)
    options = {"beta": 0.5, "posterior": vae.encode(example), "generator": generator}
    _shape(vae.loss(example, None, **options), (len(example),), "loss(x, ..., posterior=...)")  # type: ignore[arg-type]


def _nothing_changes(vae: VAE, example: Tensor) -> None:
    """Asking changes neither x, nor a weight, nor a buffer."""
    before, rows = fingerprint(vae), example.clone()
    decoded = vae.decode(vae.encode(rows).sample(torch.Size([_SAMPLES])))
    decoded.log_prob(rows)
    vae.loss(rows)
    _say(torch.equal(rows, example), "x was changed in place")
    _say(fingerprint(vae) == before, "weights or buffers changed, in evaluation mode")


CLAUSES: dict[str, Callable[[VAE, Tensor], None]] = {
    "prior": _prior,
    "encode": _encode,
    "same z": _same_z,
    "decode": _decode,
    "one value per feature": _one_value_per_feature,
    "factorised": _factorised,
    "finite at zero": _finite_at_zero,
    "draws like x": _draws,
    "point": _point,
    "repeatable": _repeatable,
    "rows alone": _rows,
    "seed": _seed,
    "independent draws": _independent_draws,
    "density": _density,
    "holes": _holes,
    "loss": _loss,
    "nothing changes": _nothing_changes,
}
"""What a VAE must do, by name; each function's docstring is the clause."""


def _check_example(example: Tensor) -> None:
    if not isinstance(example, Tensor) or example.dim() < 2 or len(example) < 2:
        came = tuple(example.shape) if isinstance(example, Tensor) else _kind(example)
        raise ValueError(f"example must be (batch, *features) with at least two rows, got {came}")
    if not example.isfinite().all():
        raise ValueError("example must be complete: it holds NaN or infinite values")
    if torch.equal(example, example.roll(1, 0)):
        raise ValueError("example must have rows that differ")


def _decoded(vae: VAE, example: Tensor) -> Distribution:
    return vae.decode(vae.encode(example).sample(torch.Size([_SAMPLES])))


def _feature_shapes(example: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes that ``observed`` may have; a pixel is one feature with its channels."""
    shapes = [tuple(example.shape)]
    if example.dim() > 2:
        shapes.append((len(example), 1, *example.shape[2:]))
    return shapes


def _kind(thing: object) -> str:
    return type(thing).__name__


def _require(holds: bool, clause: str, message: str) -> None:
    if not holds:
        raise AssertionError(f"{clause}: {message}")


def _say(holds: bool, message: str) -> None:
    if not holds:
        raise _BrokenError(message)


def _distribution(thing: object, name: str) -> None:
    told = f"{name} must be a torch.distributions.Distribution, got {_kind(thing)}"
    _say(isinstance(thing, Distribution), told)


def _shape(value: Tensor, wanted: tuple[int, ...], name: str) -> None:
    _say(value.shape == wanted, f"{name} must have shape {wanted}, got {tuple(value.shape)}")


def _finite(value: Tensor, name: str) -> None:
    _say(bool(value.isfinite().all()), f"{name} must be finite, and is NaN or infinite somewhere")


def _alike(one: Tensor, two: Tensor, message: str) -> None:
    same = torch.isclose(one, two, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    _say(bool(same.all()), message)
