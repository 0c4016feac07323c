"""Rows scored per second by the paper's UCI models, ours against one pass per latent entry.

Usage: python benchmarks/log_prob_throughput.py --shape bsds

Prints one JSON line: the lower bound on log p(hidden | observed) with 100 samples, in which the
posterior's network is sampled for half of them and evaluated for all.
"""

import json
import math

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.noise import draw, quasi_uniform
from postmatch.recipes.uci import FEATURES, build
from postmatch.vaes.base import log_likelihood
from shapes import SHAPES, EntryByEntry, median_ms, parser, per_second, prepare, provenance

SAMPLES, ROWS = 100, 32


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__, seconds=10.0).parse_args()
    device = prepare(arguments)
    shape = SHAPES[arguments.shape]
    model = build(shape).to(device).eval()
    x = torch.randn(ROWS, FEATURES[shape.dataset], device=device)
    observed = torch.rand_like(x) < 0.5
    noise = quasi_uniform(SAMPLES // 2, 2 * shape.latent_size, 0, device).expand(-1, ROWS, -1)
    ways = {
        "ours": lambda: score(model, x, observed, noise, entry_by_entry=False),
        "standin": lambda: score(model, x, observed, noise, entry_by_entry=True),
    }
    answers = {name: way() for name, way in ways.items()}
    times = median_ms(ways, arguments.seconds)
    line = {
        "benchmark": "log_prob_throughput",
        "shape": arguments.shape,
        "samples": SAMPLES,
        **per_second(times, ROWS),
        "difference": float((answers["ours"] - answers["standin"]).abs().max()),
        **provenance(arguments, device),
    }
    print(json.dumps(line))


@torch.inference_mode()
def score(
    model: MatchedVAE, x: Tensor, observed: Tensor, noise: Tensor, *, entry_by_entry: bool
) -> Tensor:
    """Return the bound of ``Conditional.log_prob``, with its two proposals half and half."""
    latent = model.partial(x, observed)
    assert isinstance(latent, AutoregressiveMixture)
    assert latent.context is not None
    partial = EntryByEntry(latent.net, latent.context) if entry_by_entry else latent
    whole = model.vae.encode(x)
    generator = torch.Generator(x.device).manual_seed(0)
    z = torch.cat([draw(whole, (SAMPLES // 2,), generator), partial.from_noise(noise)])
    log_partial, log_whole = partial.log_prob(z), whole.log_prob(z)
    proposal = torch.logaddexp(log_partial, log_whole) - math.log(2.0)
    log_x = log_likelihood(model.vae.decode(z), x, ~observed)
    return (log_x + log_partial - proposal).logsumexp(0) - math.log(SAMPLES)


if __name__ == "__main__":
    main()
