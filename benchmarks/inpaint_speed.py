"""Time how long shipped models take to fill one image, once they are loaded.

Usage: python benchmarks/inpaint_speed.py --threads 2

Prints one JSON line for each model. The image is noise and its right half the hole; more pixels or
fewer take as long. Models take turns, so that a busy moment meets all.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from postmatch import zoo
from postmatch.conditioning import MatchedVAE
from shapes import median_ms, prepare, provenance


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = parse(argv)
    device = prepare(arguments)
    ways = {name: filling(name, arguments.draws, device) for name in arguments.models}
    for name, ms in median_ms(ways, arguments.seconds * len(ways)).items():
        line = {
            "benchmark": "inpaint_speed",
            "model": name,
            "draws": arguments.draws,
            "ms": round(ms, 1),
            **provenance(arguments, device),
        }
        print(json.dumps(line))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    assert __doc__ is not None
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = zoo.names()
    options.add_argument("--models", nargs="+", choices=names, default=names, metavar="NAME")
    options.add_argument("--draws", type=int, default=6)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=5.0, help="how long, for each model")
    options.set_defaults(jobs=1)
    return options.parse_args(argv)


def filling(name: str, num_draws: int, device: torch.device) -> Callable[[], Tensor]:
    """Return what fills an image of noise with draws of a shipped model."""
    model = zoo.pretrained(name, device=device)
    x = torch.rand(1, *zoo.describe(name)["image_shape"], device=device)
    observed = torch.ones_like(x[:, :1], dtype=torch.bool)
    observed[..., x.shape[-1] // 2 :] = False
    return partial(fill, model, x, observed, num_draws)


def fill(model: MatchedVAE, x: Tensor, observed: Tensor, num_draws: int) -> Tensor:
    """Return draws, ``(samples, 1, *image)``, as ``postmatch inpaint`` makes them."""
    with torch.no_grad():
        return model.given(x, observed).draws(num_draws)


if __name__ == "__main__":
    main()
