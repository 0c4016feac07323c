"""What measurements really told of a target, and a memory of it to learn from."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.mixed import MixedColumns
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.mixture_gains import moved_noise

_TINY = 1e-6
_REMEMBERED, _RECALLED = 65_536, 512  # rows in memory, and those that a step learns from


class Told(NamedTuple):
    """What measurements told of a target.

    Args:
        expected: What the model expects once the measurement is seen, ``(more, batch)``; it varies
            little.
        real: By the target's true value. If the model is right, both have the same mean.
        left: What was there to be told, by the true value, ``(batch,)``.
    """

    expected: Tensor
    real: Tensor
    left: Tensor


def told_by(
    model: MatchedVAE,
    x: Tensor,
    shown: Tensor,
    target: Tensor,
    num_samples: int,
    generator: torch.Generator,
) -> Told:
    """Return what was told of the target by all that is shown after the first.

    Args:
        model: Predicts.
        x: Rows, ``(batch, columns)``.
        shown: What is shown of them, ``(1 + more, batch, columns)``; all of it with the same noise.
        target: Which cells are predicted.
        num_samples: Draws of z.
        generator: Of the noise.
    """
    count, batch = shown.shape[:2]
    fresh = moved_noise((num_samples,), batch, generator)

    def noise(size: int) -> Tensor:
        return fresh(size).repeat(1, count, 1)

    given = model.given(x.repeat(count, 1), shown.flatten(0, 1))
    (decoded,) = given.marginals_from(noise, (num_samples,))
    assert isinstance(decoded, MixedColumns)
    drawn = from_noise(decoded, noise(noise_size(decoded) or 0))
    parts = []
    for column in target.nonzero()[:, 0].tolist():
        truth = x[:, column]
        if decoded.layout.specs[column].kind == "number":
            variance = drawn[..., column].var(0).view(count, batch)
            mean = decoded.mean[..., column].mean(0)  # as it is predicted, without the draws' noise
            parts.append(told_of_number(variance, mean.view(count, batch), truth))
        else:
            chance = decoded.probs(column).mean(0).clamp_min(_TINY)
            parts.append(told_of_level(chance.view(count, batch, -1), truth))
    return Told(*(torch.stack(each).sum(0) for each in zip(*parts, strict=True)))


def told_of_level(chance: Tensor, truth: Tensor) -> Told:
    r"""Return by how much what is seen made the true level more probable.

    Expected is :math:`\mathrm{KL}(p(x_t \mid x_i, x_o) \,\|\, p(x_t \mid x_o))`.

    Args:
        chance: Of the levels before and after more is seen, ``(1 + more, batch, levels)``.
        truth: The codes of the levels, ``(batch,)``.
    """
    log_chance = chance.log()
    level = truth.long()[None, :, None].expand(len(chance), -1, 1)
    log_true = log_chance.gather(-1, level)[..., 0]  # (1 + more, batch)
    expected = (chance[1:] * (log_chance[1:] - log_chance[0])).sum(-1)
    return Told(expected, log_true[1:] - log_true[0], -log_true[0])


def told_of_number(variance: Tensor, mean: Tensor, truth: Tensor) -> Told:
    """Return half of what the squared error lost by what is seen.

    Expected is the same of the variance. For a Gaussian, -log(1 - part) / 2 nats are told, if
    a part of its variance is lost: half of that part at least. Parts are not of the row's own
    variance, which may be small, but of the column's, which is 1 in a model's units; so all rows
    count alike where errors are averaged.

    Args:
        variance: Before and after more is seen, ``(1 + more, batch)``.
        mean: Likewise.
        truth: The numbers, ``(batch,)``.
    """
    error = (truth - mean).square()
    expected, real = ((each[0] - each[1:]) / 2.0 for each in (variance, error))
    return Told(expected, real, error[0] / 2.0)


class Recalled(NamedTuple):
    """Rows from memory.

    Args:
        seen: Values and mask side by side, ``(batch, 2 * columns)``.
        expected: What offers told of them, ``(batch, offers)``, by the model.
        real: The same by the target's true value.
        counted: 1 where an offer was tried, otherwise 0.
        role: Of rows of the table, ``(batch, 1)``; 0 for imagined ones.
        left: What was there to be told, ``(batch, 1)``.
    """

    seen: Tensor
    expected: Tensor
    real: Tensor
    counted: Tensor
    role: Tensor
    left: Tensor


@final
class Memory:
    """What the latest measurements told: each took hundreds of predictions, so is used often.

    Args:
        num_offers: Things that can be measured.
        num_columns: Of the table.
        device: Where.
    """

    def __init__(self, num_offers: int, num_columns: int, device: torch.device) -> None:
        sizes = (2 * num_columns, num_offers, num_offers, num_offers, 1, 1)
        self.parts = [torch.zeros(_REMEMBERED, size, device=device) for size in sizes]
        self.count = torch.zeros((), dtype=torch.long, device=device)

    def keep(self, seen: Tensor, picked: Tensor, told: Told, counted: Tensor, role: Tensor) -> None:
        """Remember rows in the place of the oldest.

        Args:
            seen: Values and mask side by side, ``(batch, 2 * columns)``.
            picked: Which offers were tried.
            told: What they told.
            counted: 1 where they could be tried, ``(batch, offers)``, otherwise 0.
            role: Of rows of the table; 0 for imagined ones.
        """
        at = (self.count + torch.arange(len(seen), device=seen.device)) % _REMEMBERED
        self.count.add_(len(seen))
        row = at[:, None]
        whole = (seen, role[:, None], told.left[:, None])
        for part, value in zip((self.parts[0], *self.parts[4:]), whole, strict=True):
            part[at] = value
        tried = (told.expected.mT, told.real.mT, counted)
        for part, value in zip(self.parts[1:4], tried, strict=True):
            part[at] = 0.0
            part[row, picked] = value

    def some(self, generator: torch.Generator) -> Recalled:
        """Return some of what is remembered."""
        filled = self.count.clamp(max=_REMEMBERED)
        drawn = torch.rand(_RECALLED, generator=generator, device=generator.device)
        at = (drawn * filled).long()
        return Recalled(*(part[at] for part in self.parts))
