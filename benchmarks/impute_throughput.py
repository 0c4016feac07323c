"""Rows imputed per second by the paper's UCI models, ours against one pass per latent entry.

Usage: python benchmarks/impute_throughput.py --shape bsds

Prints one JSON line per number of samples. Both ways get the same noise, weights, dtype and threads
and run without gradients, in blocks of rows that fit the cache.
"""

import json

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.noise import quasi_uniform
from postmatch.recipes.uci import FEATURES, build
from shapes import SHAPES, EntryByEntry, median_ms, parser, per_second, prepare, provenance

SAMPLES = (1, 32, 512)
BLOCK = 2_048  # rows times samples in one block, for both


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, seconds=10.0)
    options.add_argument("--samples", nargs="+", type=int, default=SAMPLES, metavar="N")
    arguments = options.parse_args()
    device = prepare(arguments)
    shape = SHAPES[arguments.shape]
    model = build(shape).to(device).eval()
    for samples in arguments.samples:
        rows = max(1, BLOCK // samples)
        x = torch.randn(rows, FEATURES[shape.dataset], device=device)
        observed = torch.rand_like(x) < 0.5
        noise = quasi_uniform(samples, 2 * shape.latent_size, 0, device)
        ways = {
            "ours": lambda x=x, o=observed, n=noise: impute(model, x, o, n, entry_by_entry=False),
            "standin": lambda x=x, o=observed, n=noise: impute(model, x, o, n, entry_by_entry=True),
        }
        answers = {name: way() for name, way in ways.items()}
        times = median_ms(ways, arguments.seconds)
        line = {
            "benchmark": "impute_throughput",
            "shape": arguments.shape,
            "samples": samples,
            **per_second(times, rows),
            "difference": float((answers["ours"] - answers["standin"]).abs().max()),
            **provenance(arguments, device),
        }
        print(json.dumps(line), flush=True)


@torch.inference_mode()
def impute(
    model: MatchedVAE, x: Tensor, observed: Tensor, noise: Tensor, *, entry_by_entry: bool
) -> Tensor:
    """Return the mean of the hidden features, as ``Conditional.impute`` does."""
    latent = model.partial(x, observed)
    assert isinstance(latent, AutoregressiveMixture)
    assert latent.context is not None
    if entry_by_entry:
        z = EntryByEntry(latent.net, latent.context).from_noise(noise.expand(-1, len(x), -1))
    else:
        z = latent.from_noise(noise.expand(-1, len(x), -1))
    return torch.where(observed, x, model.vae.decode(z).mean.mean(0))


if __name__ == "__main__":
    main()
