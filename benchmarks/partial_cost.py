"""Tell what the partial posterior of a VAE of MNIST costs: its parameters, and its share of a step.

Usage: python benchmarks/partial_cost.py --device cuda
       python benchmarks/partial_cost.py --models conv vqvae --batch-size 16 --seconds 5

Prints one JSON line for each model; results/partial_cost.jsonl is what docs/images.md reads.
`ms_vae` is a training step of the VAE alone. `ms_both` is a step of VAE and match together, which
is how they are trained. A VQ-VAE is trained first and matched afterwards, so it has `ms_partial`
instead, a step of the match with the VQ-VAE as it is; its prior, which counts among the parameters
of the VAE, is trained in neither. Images are noise, which takes as long as digits do.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from postmatch.conditioning import MatchedVAE
from postmatch.models import device_of
from postmatch.recipes.inpainting import build, masks_of, plan_on
from postmatch.recipes.inpainting_config import MODELS, Config, config_of
from postmatch.recipes.results import provenance
from postmatch.training.plan import Losses
from postmatch.training.run import Run
from postmatch.vaes.vq import VQVAE
from shapes import median_ms, steady_ms

PRECISIONS = ("float32", "tf32", "bfloat16")
MASKS = masks_of("mnist")
IMAGES = 1_000
BEFORE = 8  # steps that a GPU takes before it is timed: it records one of them


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = parse(argv)
    device = device_of(arguments.device)
    for name in arguments.models:
        config = config_of("mnist", name)
        told = {"batch_size": arguments.batch_size, "precision": arguments.precision}
        given = {field: value for field, value in told.items() if value is not None}
        config = dataclasses.replace(config, **given)
        found = measure(config, device, arguments.steps, arguments.seconds)
        print(json.dumps(found), flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--batch-size", type=int, help="that of the recipe if not given")
    parser.add_argument("--precision", choices=PRECISIONS, help="that of the recipe if not given")
    parser.add_argument("--steps", type=int, default=200, help="in a row, on a GPU")
    parser.add_argument("--seconds", type=float, default=20.0, help="per model, on a CPU")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    return parser.parse_args(argv)


def measure(
    config: Config, device: torch.device, num_steps: int, seconds: float
) -> dict[str, object]:
    """Return what the partial posterior of one model costs.

    Args:
        config: Which model, how many images a step takes, and in which precision.
        device: Where.
        num_steps: Steps in a row, on a GPU.
        seconds: How long to measure, on a CPU.
    """
    steps = steps_of(config, device)
    model = build(config)
    parameters = {"vae": count(model.vae), "both": count(model)}
    if (prior := prior_of(model.vae)) is not None:
        parameters["prior"] = count(prior)
    return {
        "benchmark": "partial_cost",
        "dataset": config.dataset,
        "model": config.model,
        "parameters": parameters,
        **{f"ms_{name}": round(ms, 3) for name, ms in times(steps, device, num_steps, seconds)},
        "batch_size": config.batch_size,
        "precision": config.precision,
        "seed": 0,
        **provenance(device),
    }


def count(module: nn.Module) -> int:
    """Return how many parameters a module has."""
    return sum(p.numel() for p in module.parameters())


def prior_of(part: nn.Module) -> nn.Module | None:
    """Return the network of a VQ-VAE's prior, which is fitted after all else."""
    return part.prior_net if isinstance(part, VQVAE) else None


def steps_of(config: Config, device: torch.device) -> dict[str, Callable[[], None]]:
    """Return the training steps to be timed, each of a model of its own."""
    steps = {"vae": step_of(config, device, vae_loss, lambda model: model.vae)}
    if config.model == "vqvae":
        steps["partial"] = step_of(config, device, match_loss, lambda model: model.partial)
    else:
        steps["both"] = step_of(config, device, both_losses, lambda model: model)
    return steps


Loss = Callable[[MatchedVAE, Tensor, torch.Generator], Losses]


def vae_loss(model: MatchedVAE, x: Tensor, generator: torch.Generator) -> Losses:
    """Return the loss of the VAE alone."""
    return {"vae": model.vae.loss(x, generator=generator).mean()}


def both_losses(model: MatchedVAE, x: Tensor, generator: torch.Generator) -> Losses:
    """Return the losses of VAE and match."""
    return model.losses(x, None, MASKS.sample(x.shape, generator), generator=generator)


def match_loss(model: MatchedVAE, x: Tensor, generator: torch.Generator) -> Losses:
    """Return the loss of the match alone."""
    observed = MASKS.sample(x.shape, generator)
    return model.losses(x, None, observed, train_vae=False, generator=generator)


def step_of(
    config: Config, device: torch.device, loss: Loss, trained: Callable[[MatchedVAE], nn.Module]
) -> Callable[[], None]:
    """Return a training step of a fresh model.

    Args:
        config: Which model.
        device: Where.
        loss: Of a batch of images.
        trained: The part of the model whose weights change.
    """
    torch.manual_seed(0)
    model = build(config).to(device)
    part = trained(model)
    model.requires_grad_(False)
    part.requires_grad_(True)
    if (prior := prior_of(part)) is not None:
        prior.requires_grad_(False)
    shape = (IMAGES, 1, 28, 28)
    images = torch.randint(256, shape, dtype=torch.uint8, device=device)
    generator = torch.Generator(device).manual_seed(0)

    def losses(_: Tensor) -> Losses:
        size = (config.batch_size,)
        drawn = torch.randint(IMAGES, size, generator=generator, device=device)
        x = images[drawn] / 255.0
        return loss(model, x, generator)

    # Small steps: noise has nothing to teach, and must not end in numbers that are not finite.
    plan = plan_on(device, config)
    compiled = plan.compiled and part is model.partial  # as in training
    rates = {"learning_rate": 1e-6, "orthogonal_rate": 1e-6 * (plan.orthogonal_rate > 0.0)}
    plan = dataclasses.replace(plan, steps=10**6, compiled=compiled, **rates)
    return Run(part, losses, plan, [generator]).step


def times(
    steps: dict[str, Callable[[], None]], device: torch.device, num_steps: int, seconds: float
) -> list[tuple[str, float]]:
    """Return the milliseconds of each step."""
    if device.type != "cuda":
        return list(median_ms(dict(steps), seconds).items())
    found = []
    for name, step in steps.items():
        for _ in range(BEFORE):
            step()
        found.append((name, steady_ms(step, num_steps)))
    return found


if __name__ == "__main__":
    main()
