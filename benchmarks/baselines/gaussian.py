"""One Gaussian and a mixture of them: every conditional in closed form, all in double precision."""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from postmatch.recipes.scores import masks_of
from postmatch.training.plan import Progress, Report
from protocol import JUDGED, Answer, ExactDensity, Outcome, Task, masked_scores

COMPONENTS = (3, 10, 30, 100, 300)  # rising, while validation rows gain and time is left
MOST_ROWS = 100_000  # that a mixture is fitted to
MOST_ITERATIONS = 200
_ITERATIONS_AT_ONCE = 10  # between looks at the clock
JITTER = 1e-6  # added to variances of components, whose features have about 1
_AT_ONCE = 1 << 24  # numbers in the matrices of all rows and components


@final
class ExactMixture(ExactDensity):
    r"""The density :math:`p(x) = \sum_k w_k\, N(x; \mu_k, \Sigma_k)`.

    Args:
        weights: ``(components,)``, float64 as all of them.
        means: ``(components, features)``.
        covariances: ``(components, features, features)``.
    """

    def __init__(self, weights: Tensor, means: Tensor, covariances: Tensor) -> None:
        self.weights, self.means, self.covariances = weights, means, covariances

    @property
    def parameters(self) -> int:
        """Return how many free numbers there are."""
        components, features = self.means.shape
        return components * (1 + features + features * (features + 1) // 2) - 1

    def blocks(self, x: Tensor) -> list[slice]:
        """Return rows to be answered at a time, by the memory that it takes."""
        step = max(1, _AT_ONCE // self.covariances.numel())
        return [slice(i, i + step) for i in range(0, len(x), step)]

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of each of these complete rows."""
        everything = torch.ones_like(x[:1], dtype=torch.bool)
        return self.evidence(x, everything)[0].logsumexp(1)

    def given(self, x: Tensor, observed: Tensor) -> "MixtureAnswer":
        """Return the distribution of what is hidden; hidden entries may hold anything."""
        return MixtureAnswer(self, x, observed)

    def evidence(self, x: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return :math:`\log w_k N(x_c; \mu_c, \Sigma_{cc})` of the counted features c, and more.

        The block of the counted features is completed by the identity, so that all rows are solved
        at once, whatever counts in each.

        Args:
            x: ``(rows, features)``; what does not count may hold anything.
            counted: The same shape, or one row for all.

        Returns:
            The logarithms, ``(rows, components)``, and :math:`\Sigma_{cc}^{-1} (x_c - \mu_c)`,
            ``(rows, components, features)``, zero where nothing counts.
        """
        counts = counted[:, None]  # (rows, 1, features)
        residual = (x.double()[:, None] - self.means).masked_fill(~counts, 0.0)
        both = counts[..., :, None] & counts[..., None, :]
        identity = torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
        block = torch.where(both, self.covariances, identity)
        lower = torch.linalg.cholesky(block)  # (rows, components, features, features)
        solved = torch.cholesky_solve(residual[..., None], lower)[..., 0]
        log_det = 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        size = counts.sum(-1).double() * math.log(2.0 * math.pi)
        return self.weights.log() - 0.5 * ((residual * solved).sum(-1) + log_det + size), solved


@final
class MixtureAnswer(Answer):
    r"""The mixture :math:`p(x_u \mid x_o)` of each row."""

    def __init__(self, model: ExactMixture, x: Tensor, observed: Tensor) -> None:
        self.model, self.observed = model, observed
        self.x = x.double().masked_fill(~observed, 0.0)
        self.log_evidence, self.solved = model.evidence(self.x, observed)

    def log_prob(self, x: Tensor, num_samples: int = 0) -> Tensor:  # noqa: ARG002
        r"""Return :math:`\log p(x) - \log p(x_o)`; nothing is drawn."""
        x = torch.where(self.observed, self.x, x.double())
        return self.model.log_prob(x) - self.log_evidence.logsumexp(1)

    def log_prob_gap(self, num_samples: int = 0) -> None:
        """Return nothing: all is exact."""

    def impute(self) -> Tensor:
        r"""Return :math:`\sum_k p(k \mid x_o) [\mu_k + \Sigma_k \Sigma_{k,oo}^{-1} (x_o - \mu_k)]`.

        At observed features that is the row itself.
        """
        moved = torch.einsum("kij,rkj->rki", self.model.covariances, self.solved)
        share = self.log_evidence.softmax(1)[..., None]  # (rows, components, 1)
        mean = (share * (self.model.means + moved)).sum(1)
        return torch.where(self.observed, self.x, mean)


def fit_gaussian(rows: Tensor) -> ExactMixture:
    """Return the Gaussian with the mean and the covariance of the rows."""
    rows = rows.double()
    covariance = torch.cov(rows.T, correction=0)
    return ExactMixture(rows.new_ones(1), rows.mean(0, keepdim=True), covariance[None])


@final
@dataclass(frozen=True)
class MixtureFit:
    """A mixture and how it was found."""

    model: ExactMixture
    iterations: int
    converged: bool
    score: float
    """The mean log-likelihood of hidden features of validation rows."""


def fit_mixture(task: Task, choices: Sequence[int]) -> tuple[MixtureFit, Report]:
    """Return the mixture that tells the hidden features of validation rows best.

    Args:
        task: The rows, and how long.
        choices: Numbers of components, rising. The first that does worse than the one before it is
            the last to be tried.
    """
    rows = task.rows.train[:MOST_ROWS].double().cpu().numpy()
    start, fits = time.monotonic(), list[MixtureFit]()
    seconds_left = task.max_seconds or math.inf
    for i, number in enumerate(choices, 1):
        fits.append(_fit_one(task, rows, min(number, len(rows)), start + seconds_left))
        seconds = time.monotonic() - start
        if task.show is not None:
            now, score = fits[-1].iterations, -fits[-1].score
            task.show(Progress(i / len(choices), now, seconds, {}, score, now))
        worse = len(fits) > 1 and fits[-1].score < fits[-2].score
        if worse or seconds >= seconds_left:
            break
    best = max(fits, key=lambda fit: fit.score)
    history = [(len(fit.model.weights), -fit.score) for fit in fits]
    steps, score = best.iterations, -best.score
    seconds = time.monotonic() - start
    return best, Report(steps, seconds, "validation", steps, score, history=history)


def _fit_one(task: Task, rows: NDArray[np.float64], number: int, deadline: float) -> MixtureFit:
    most, done = min(MOST_ITERATIONS, task.config.steps), 0
    found = GaussianMixture(
        number, reg_covar=JITTER, random_state=task.seed, warm_start=True, max_iter=0
    )
    while not done or not (found.converged_ or done >= most or time.monotonic() >= deadline):
        found.set_params(max_iter=min(_ITERATIONS_AT_ONCE, most - done))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the result says so
            found.fit(rows)
        done += int(found.n_iter_)
    parts = (found.weights_, found.means_, found.covariances_)
    device = task.rows.val.device
    mixture = ExactMixture(*(torch.from_numpy(part).to(device) for part in parts))
    score = validation_log_prob(mixture, task)
    return MixtureFit(mixture, done, bool(found.converged_), score)


def validation_log_prob(density: ExactDensity, task: Task) -> float:
    """Return the mean log-likelihood of hidden features of validation rows, by fixed masks."""
    x = task.rows.val[:JUDGED]
    observed = masks_of(x, seed=0)
    each = [density.given(x[b], observed[b]).log_prob(x[b], 0) for b in density.blocks(x)]
    units = (~observed * task.log_scale).sum(1).double()
    return float((torch.cat(each) - units).mean())


def exact_scores(density: ExactDensity, task: Task) -> dict[str, Any]:
    """Return scores of hidden features, and the log-likelihood of whole rows."""
    test = task.rows.test
    blocks = density.blocks(test)
    joint = torch.cat([density.log_prob(test[b]) for b in blocks])
    scores = masked_scores(density.given, task, blocks, blocks)
    return scores | {"joint_log_prob": float(joint.mean() - task.log_scale.double().sum())}


def gaussian(task: Task) -> Outcome:
    """Fit and judge one Gaussian."""
    start = time.monotonic()
    model = fit_gaussian(task.rows.train)
    report = Report(seconds=time.monotonic() - start)
    return Outcome(
        "Gaussian",
        {"dataset": task.config.dataset},
        model.parameters,
        report,
        exact_scores(model, task),
        "log_prob is exact",
        task.used,
    )


def gaussian_mixture(task: Task, choices: Sequence[int] = COMPONENTS) -> Outcome:
    """Fit and judge a mixture of Gaussians."""
    best, report = fit_mixture(task, choices)
    used, there = min(MOST_ROWS, len(task.rows.train)), len(task.rows.train)
    config = {
        "dataset": task.config.dataset,
        "components": len(best.model.weights),
        "validation_log_prob": {str(number): -score for number, score in report.history},
        "most_iterations": min(MOST_ITERATIONS, task.config.steps),
        "converged": best.converged,
        "jitter": JITTER,
        "max_seconds": task.max_seconds,
    }
    return Outcome(
        "GaussianMixture",
        config,
        best.model.parameters,
        report,
        exact_scores(best.model, task),
        f"log_prob is exact; fitted to the first {used:,} of {there:,} training rows",
        task.used | {"train": used},
    )
