"""A probabilistic circuit: its structure by LearnSPN, its numbers by expectation maximisation."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gaussian import JITTER, exact_scores, validation_log_prob
from postmatch.training.plan import Progress, Report
from protocol import Outcome, Task

if TYPE_CHECKING:
    from spn import Circuit

MIN_ROWS = (300, 100, 30, 10)  # falling, while validation rows gain and time is left
THRESHOLDS = (0.1, 0.3)
MOST_ROWS = 100_000  # that a circuit is fitted to
MOST_ITERATIONS = 200
_ITERATIONS_AT_ONCE = 3  # between looks at validation rows and the clock


@final
@dataclass
class CircuitFit:
    """A circuit and how it was found."""

    model: "Circuit"
    min_rows: int
    threshold: float
    score: float
    """The mean log-likelihood of hidden features of validation rows."""
    iterations: int = 0

    def improve(self, task: Task) -> bool:
        """Take some steps of expectation maximisation, and tell whether validation rows gained.

        If they did not, all is as before.
        """
        steps = min(_ITERATIONS_AT_ONCE, _most(task) - self.iterations)
        before = {name: part.clone() for name, part in self.model.root.state_dict().items()}
        for _ in range(steps):
            self.model.improve(task.rows.train[:MOST_ROWS])
        score = validation_log_prob(self.model, task)
        if score <= self.score:
            self.model.root.load_state_dict(before)
            return False
        self.score, self.iterations = score, self.iterations + steps
        return True


def fit_circuit(
    task: Task, sizes: Sequence[int] = MIN_ROWS, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[CircuitFit, dict[str, float], Report]:
    """Return the circuit that tells the hidden features of validation rows best.

    Each structure takes some steps of expectation maximisation; the best takes more, as long as
    validation rows gain. The search for it has half of the time.

    Args:
        task: The rows, and how long.
        sizes: The fewest rows that are cut, falling. The first that does worse than the one before
            it is the last to be tried.
        thresholds: Of independence; each is tried with each size.

    Returns:
        The circuit, what each structure scored before the best one went on, and how it went.

    Raises:
        ModuleNotFoundError: Without SPFlow.
    """
    start, seconds = time.monotonic(), task.max_seconds or math.inf
    fits, number = list[CircuitFit](), len(sizes) * len(thresholds)
    for found in _structures(task, sizes, thresholds):
        fits.append(found)
        spent = _tell(task, start, found, 0.5 * len(fits) / number)
        if spent >= 0.5 * seconds:
            break
    scores = {f"{fit.min_rows} rows, {fit.threshold}": fit.score for fit in fits}
    best, most = max(fits, key=lambda fit: fit.score), _most(task)
    while best.iterations < most and spent < seconds and best.improve(task):
        spent = _tell(task, start, best, 0.5 + 0.5 * best.iterations / most)
    steps, spent = best.iterations, time.monotonic() - start
    return best, scores, Report(steps, spent, "validation", steps, -best.score)


def _structures(
    task: Task, sizes: Sequence[int], thresholds: Sequence[float]
) -> Iterator[CircuitFit]:
    try:
        from spn import learn
    except ModuleNotFoundError:
        message = "circuit needs spflow: pip install 'postmatch[circuits]'"
        raise ModuleNotFoundError(message) from None
    before = -math.inf
    for min_rows in sizes:
        scores = list[float]()
        for threshold in thresholds:
            model = learn(task.rows.train[:MOST_ROWS], min_rows, threshold, task.seed)
            fit = CircuitFit(model, min_rows, threshold, validation_log_prob(model, task))
            fit.improve(task)
            scores.append(fit.score)
            yield fit
        if max(scores) < before:
            return
        before = max(scores)


def _most(task: Task) -> int:
    return min(MOST_ITERATIONS, task.config.steps)


def _tell(task: Task, start: float, fit: CircuitFit, fraction: float) -> float:
    """Show how far it is, and return the seconds since the start."""
    seconds, steps = time.monotonic() - start, fit.iterations
    if task.show is not None:
        task.show(Progress(fraction, steps, seconds, {}, -fit.score, steps))
    return seconds


def circuit(task: Task) -> Outcome:
    """Fit and judge a probabilistic circuit."""
    best, scores, report = fit_circuit(task)
    used, there = min(MOST_ROWS, len(task.rows.train)), len(task.rows.train)
    config = {
        "dataset": task.config.dataset,
        "min_rows": best.min_rows,
        "threshold": best.threshold,
        "validation_log_prob": scores | {"best": best.score},
        "most_iterations": _most(task),
        "jitter": JITTER,
        "max_seconds": task.max_seconds,
    }
    return Outcome(
        "Circuit",
        config,
        best.model.parameters,
        report,
        exact_scores(best.model, task),
        f"log_prob and means are exact; LearnSPN with Gaussian leaves, then expectation "
        f"maximisation, on the first {used:,} of {there:,} training rows",
        task.used | {"train": used},
    )
