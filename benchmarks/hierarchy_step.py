"""Time one training step of the paper's hierarchical VAE of MNIST, both encoders included.

Usage: python benchmarks/hierarchy_step.py --precision bfloat16

Prints one JSON line.
"""

import argparse
import json

import torch
from torch import Tensor

from postmatch.models import device_of
from postmatch.recipes.inpainting import build, masks_of
from postmatch.recipes.inpainting_config import config_of
from postmatch.recipes.results import provenance
from postmatch.training.plan import Plan
from postmatch.training.run import Run
from shapes import median_ms, steady_ms

PRECISIONS = ("float32", "tf32", "bfloat16")


def main() -> None:
    """Measure and print."""
    arguments = parse()
    device = device_of(arguments.device)
    torch.manual_seed(0)
    model = build(config_of("mnist", "vdvae-paper")).to(device)
    images = torch.randint(256, (1_000, 1, 28, 28), dtype=torch.uint8, device=device)
    generator = torch.Generator(device).manual_seed(0)
    masks = masks_of("mnist")

    def loss(_: Tensor) -> dict[str, Tensor]:
        shape = (arguments.batch_size,)
        drawn = torch.randint(len(images), shape, generator=generator, device=device)
        x = images[drawn] / 255.0
        return model.losses(x, None, masks.sample(x.shape, generator), generator=generator)

    plan = Plan(
        10**6, learning_rate=1e-6, precision=arguments.precision, compiled=arguments.compiled
    )
    step = Run(model, loss, plan, [generator]).step
    if device.type == "cuda":
        for _ in range(8):  # a few steps before the recording, and it
            step()
        time = steady_ms(step, arguments.steps)
    else:
        time = median_ms({"step": step}, arguments.seconds)["step"]
    line = {
        "benchmark": "hierarchy_step",
        "ms_per_step": round(time, 3),
        "batch_size": arguments.batch_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "precision": arguments.precision,
        "compiled": arguments.compiled,
        "seed": 0,
        **provenance(device),
    }
    print(json.dumps(line))


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--steps", type=int, default=200, help="in a row, on a GPU")
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, on a CPU")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
