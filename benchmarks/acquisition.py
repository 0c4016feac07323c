"""How long one greedy choice takes: by draws, by one network, and without PyTorch.

Usage: python benchmarks/acquisition.py >> results/performance.jsonl

The paper's multilayer perceptrons on 16 x 16 pixels, with random weights, which take as long as any
others. A choice begins with the row and its mask and ends with the number of a pixel. Prints one
JSON line; times of single choices are medians, on one core.

The choice by draws encodes 50 x 256 rows. ``sampled_gflops`` is the arithmetic of doing so plainly,
every row by all layers, over the time taken, and ``share_of_product_rate`` what that is of the rate
of a product of large matrices in the same run. A good part of this arithmetic is not needed, since
rows differ by one pixel, and an entropy is one of scales alone. ``computed_gflops`` and
``computed_share`` count the products that were really computed.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from postmatch.acquisition import SAMPLES, AmortisedGain, choose
from postmatch.export import export_acquirer
from postmatch.fast import FastAcquirer
from postmatch.nets.linear import Linear
from postmatch.recipes.acquisition import (
    PIXELS,
    SIDE,
    Config,
    build,
    encoder,
    features_of,
    offers,
    sampled,
)
from postmatch.recipes.results import provenance

PUBLISHED = {"sampled": 68e3, "lookahead": 310.0, "ratio": 219.0}  # microseconds, in the paper
# Multiply-adds of one encoding: 512-50-100-200, then mean and Cholesky factor of ten latents.
_PLAIN = 512 * 50 + 50 * 100 + 100 * 200 + 200 * 65
_COMPUTED = 50 * 100 + 100 * 200 + 200 * 10  # after the first layer, and the factor's diagonal
_BATCH = 4_096


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2_000, help="single choices")
    parser.add_argument("--cores", type=int, default=2, help="for many choices at once")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Config()
    model = build(config).eval()
    net = nn.Sequential(encoder(config, 2), Linear(features_of(config), PIXELS))
    amortised, by_draws = AmortisedGain(net, offers()).eval(), sampled(model)
    x = torch.rand(_BATCH, 1, SIDE, SIDE)
    observed = torch.rand(x.shape) < 0.1
    one, mask = x[:1], observed[:1]
    torch_us = median_us(lambda: choose(amortised, one, mask), arguments.repeats)
    sampled_us = median_us(lambda: choose(by_draws, one, mask), max(5, arguments.repeats // 100))
    rows_per_us, product = SAMPLES * PIXELS / sampled_us, product_gflops()
    plain, computed = (2e-3 * rows_per_us * each for each in (_PLAIN, _COMPUTED))
    torch.set_num_threads(arguments.cores)
    many_us = median_us(lambda: choose(amortised, x, observed), 50)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        export_acquirer(folder, amortised, model, [1, SIDE, SIDE])
        fast = FastAcquirer(folder)
        row, seen = one[0].numpy(), mask[0].numpy()
        assert fast.choose(row, seen)[0] == int(choose(amortised, one, mask).offer)
        fast_us = median_us(lambda: fast.choose(row, seen), arguments.repeats)
    line = {
        "benchmark": "acquisition",
        "network": "mlp",
        "fast_us": round(fast_us, 1),
        "torch_us": round(torch_us, 1),
        "sampled_us": round(sampled_us, 1),
        "ratio": round(sampled_us / fast_us, 1),
        "torch_ratio": round(sampled_us / torch_us, 1),
        "published": PUBLISHED,
        "sampled_gflops": round(plain, 1),
        "computed_gflops": round(computed, 1),
        "product_gflops": round(product, 1),
        "share_of_product_rate": round(plain / product, 2),
        "computed_share": round(computed / product, 2),
        "choices_per_second": round(1e6 * _BATCH / many_us),
        "cores": arguments.cores,
        "num_samples": SAMPLES,
        **provenance(x.device),
    }
    print(json.dumps(line))


def median_us(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call in microseconds."""
    for _ in range(max(3, repeats // 20)):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times))


def product_gflops(size: int = 1_024) -> float:
    """Return the rate of a product of two square matrices."""
    a = torch.randn(size, size)
    return 2e-3 * size**3 / median_us(lambda: a @ a, 20)


if __name__ == "__main__":
    main()
