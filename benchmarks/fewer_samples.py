"""How few samples impute as well as 512: the paper's GAS model with several kinds of draws.

Usage: POSTMATCH_DATA=... python benchmarks/fewer_samples.py >> results/performance.jsonl

Trains the model, then fills the same cells of the same test rows again and again. Prints one JSON
line per kind of draws and number of samples: the NRMSE, and by how many percent it exceeds that of
512 independent draws, with standard errors over repetitions that differ in their noise alone.

The excess is measured without the product of a cell's error and its noise, whose mean is zero since
no kind of draws has a bias: with few rows it would hide everything else.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.masks import Bernoulli
from postmatch.metrics import nrmse
from postmatch.randomness import seeded
from postmatch.recipes.uci import build
from postmatch.training.engine import train
from postmatch.training.plan import Plan, Progress
from shapes import SHAPES, prepare, provenance

SAMPLES, MOST = (1, 2, 4, 8, 16, 32, 64, 128), 512
BLOCK = 16_384  # rows times samples at a time


def main() -> None:
    """Train, measure and print."""
    arguments = parse()
    device = prepare(arguments)
    file = Path(os.environ["POSTMATCH_DATA"]) / "uci" / f"{arguments.shape}.npz"
    data = {name: torch.from_numpy(rows).to(device) for name, rows in np.load(file).items()}
    model = build(SHAPES[arguments.shape]).to(device)
    fit(model, data["train"], SHAPES[arguments.shape].batch_size, arguments.steps)
    x = data["test"][: arguments.rows]
    observed = Bernoulli(0.5).sample(x.shape, torch.Generator(device).manual_seed(1))

    def filled(draws: str, samples: int) -> Tensor:
        each = [
            impute(model, x, observed, DRAWS[draws], samples, seed)
            for seed in range(arguments.repeats)
        ]
        return torch.stack(each)

    most = filled("independent", MOST)  # (repeats, rows, features)
    centre = most.mean(0)

    def errors(rows: Tensor) -> np.ndarray:
        return np.array([nrmse(each.cpu(), x.cpu(), ~observed.cpu()) for each in rows])

    def expected(rows: Tensor) -> np.ndarray:
        return errors(x + torch.hypot(centre - x, rows - centre))

    reference = expected(most)
    for draws, samples in settings():
        rows = most if (draws, samples) == ("independent", MOST) else filled(draws, samples)
        line = {
            "benchmark": "fewer_samples",
            "shape": arguments.shape,
            "draws": draws,
            "samples": samples,
            "nrmse": round(float(errors(rows).mean()), 6),
            "nrmse_error": round(standard_error(errors(rows)), 6),
            **excess(expected(rows), reference),
            "steps": arguments.steps,
            "rows": len(x),
            "repeats": arguments.repeats,
            **provenance(arguments, device),
        }
        print(json.dumps(line), flush=True)


def settings() -> list[tuple[str, int]]:
    """Return the kinds of draws with the numbers of samples to try them with."""
    some = [(draws, samples) for draws in DRAWS for samples in SAMPLES]
    some.remove(("antithetic", 1))  # they come in pairs
    return [("independent", MOST), *some, ("sobol", MOST)]


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="gas")
    parser.add_argument("--steps", type=int, default=5_000, help="of training")
    parser.add_argument("--rows", type=int, default=1_000, help="of the test set")
    parser.add_argument("--repeats", type=int, default=8, help="with other noise")
    parser.add_argument("--threads", type=int, default=1)
    parser.set_defaults(jobs=1)
    arguments = parser.parse_args()
    if "POSTMATCH_DATA" not in os.environ:
        parser.error("POSTMATCH_DATA must name the folder that holds uci/")
    return arguments


def fit(model: MatchedVAE, x: Tensor, batch: int, steps: int) -> None:
    """Train on random masks, the weight of the KL term rising over the first half."""
    generator = torch.Generator(x.device).manual_seed(0)

    def loss(fraction: float) -> dict[str, Tensor]:
        rows = x[torch.randint(len(x), (batch,), generator=generator, device=x.device)]
        observed = Bernoulli(0.5).sample(rows.shape, generator)
        beta = min(1.0, 2.0 * fraction)
        return model.losses(rows, None, observed, beta=beta, generator=generator)

    def show(progress: Progress) -> None:
        if progress.step % 500 == 0:
            losses = ", ".join(f"{name} {value:.3f}" for name, value in progress.losses.items())
            print(f"[{progress.step}, {progress.seconds:.0f} s] {losses}", file=sys.stderr)

    train(model, loss, Plan(steps, learning_rate=1e-3), show=show, generators=[generator])


Draws = Callable[[Conditional, int, int], Tensor]


def impute(
    model: MatchedVAE, x: Tensor, observed: Tensor, draws: Draws, samples: int, seed: int
) -> Tensor:
    """Return completed rows, some at a time."""
    rows = max(1, BLOCK // samples)
    with seeded(seed), torch.inference_mode():
        blocks = zip(x.split(rows), observed.split(rows), strict=True)
        return torch.cat([draws(model.given(*block), samples, seed) for block in blocks])


def independent(answer: Conditional, samples: int, seed: int) -> Tensor:  # noqa: ARG001
    """Return means over draws that neither rows nor samples share anything with."""
    return answer.draws(samples).mean(0)


def antithetic(answer: Conditional, samples: int, seed: int) -> Tensor:
    """Return means over pairs u and 1 - u that rows share."""
    uniform = shared(answer, samples // 2, seed)
    return mean_of(answer, torch.cat([uniform, 1.0 - uniform]))


def latin(answer: Conditional, samples: int, seed: int) -> Tensor:
    """Return means over a Latin hypercube that rows share."""
    place, within = shared(answer, samples, seed).argsort(0), shared(answer, samples, seed + 1_000)
    return mean_of(answer, (place + within) / samples)


def sobol(answer: Conditional, samples: int, seed: int) -> Tensor:
    """Return what the library does."""
    return answer.impute(samples, seed)


DRAWS: dict[str, Draws] = {
    "independent": independent,
    "antithetic": antithetic,
    "latin": latin,
    "sobol": sobol,
}


def shared(answer: Conditional, samples: int, seed: int) -> Tensor:
    """Return independent uniforms that rows share."""
    size = noise_size(answer.latent)
    assert size is not None
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(samples, 1, size, generator=generator).to(answer.x.device)


def mean_of(answer: Conditional, uniform: Tensor) -> Tensor:
    """Return the decoder's mean over draws from this noise."""
    means = answer.vae.decode(from_noise(answer.latent, uniform)).mean.mean(0)
    return torch.where(answer.observed, answer.x, means)


def excess(found: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Return by how many percent the error exceeds that of the reference, and how sure that is."""
    ratio = found.mean() / reference.mean()
    error = math.hypot(standard_error(found), ratio * standard_error(reference))
    return {
        "excess_percent": round(100.0 * (ratio - 1.0), 4),
        "excess_error": round(100.0 * error / reference.mean(), 4),
    }


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


if __name__ == "__main__":
    main()
