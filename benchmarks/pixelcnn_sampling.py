"""Time draws of a grid of codes from a PixelCNN, with cached activations against one pass per code.

Usage: python benchmarks/pixelcnn_sampling.py --side 7 --batch 32

Prints one JSON line. Both ways have the same weights, condition and noise; `differences` counts the
codes in which their draws differ. The full passes are timed in a row, with the choice of each code.
"""

import argparse
import json

import torch
from torch import Tensor

from postmatch.distributions.codes import CodeGrid
from postmatch.distributions.noise import choose_component
from postmatch.nets.pixelcnn import PixelCNN
from shapes import median_ms, prepare, provenance

CHANNELS = 64  # of the condition


def main() -> None:
    """Measure and print."""
    arguments = parse()
    device = prepare(arguments)
    side = arguments.side
    net = PixelCNN(
        arguments.codes, (side, side), arguments.width, arguments.blocks, map_channels=CHANNELS
    )
    net = net.to(device).eval()
    spatial = torch.randn(arguments.batch, CHANNELS, side, side, device=device)
    uniform = torch.rand(arguments.batch, side * side, device=device)
    ways = {
        "cached": lambda: CodeGrid(net, spatial=spatial).from_noise(uniform),
        "naive": lambda: one_pass_per_code(net, spatial, uniform),
    }
    drawn = {name: way() for name, way in ways.items()}
    times = median_ms(ways, arguments.seconds)
    line = {
        "benchmark": "pixelcnn_sampling",
        "grid": [side, side],
        "batch": arguments.batch,
        "ms_cached": round(times["cached"], 2),
        "ms_naive": round(times["naive"], 2),
        "speedup": round(times["naive"] / times["cached"], 2),
        "differences": int((drawn["cached"] != drawn["naive"]).sum()),
        "parameters": sum(p.numel() for p in net.parameters()),
        **provenance(arguments, device),
    }
    print(json.dumps(line))


def parse() -> argparse.Namespace:
    """Return the options."""
    assert __doc__ is not None
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--side", type=int, default=7, help="of the grid")
    options.add_argument("--batch", type=int, default=32, help="grids drawn at once")
    options.add_argument("--codes", type=int, default=256)
    options.add_argument("--width", type=int, default=96)
    options.add_argument("--blocks", type=int, default=10)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    options.set_defaults(jobs=1)
    return options.parse_args()


@torch.no_grad()
def one_pass_per_code(net: PixelCNN, spatial: Tensor, uniform: Tensor) -> Tensor:
    """Return draws, each code from a pass through the whole network, as in the published code."""
    height, width = net.grid
    codes = torch.zeros(len(uniform), height, width, dtype=torch.long, device=uniform.device)
    for i in range(height * width):
        own = (..., i // width, i % width)
        logits = net(codes, spatial=spatial)[own]
        codes[own] = choose_component(logits, uniform[:, i], dim=-1)
    return codes


if __name__ == "__main__":
    main()
