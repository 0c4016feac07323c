"""Compare what is attached to a frozen AutoencoderKL of MNIST with a model trained jointly.

Usage: python benchmarks/attaching.py [--tiny] [--attach-seconds 600] [--output attaching.json]

First an AutoencoderKL is trained by diffusers' own class and a plain loop, and ``postmatch.attach``
gives it a partial encoder. Then the same two networks are trained together from the start, for as
long as the two trainings took. Both fill the same holes of test images, with the paper's masks.
Prints one JSON line; the PSNR is that of the mean of ten draws, of the decoder's means.

It needs diffusers and MNIST (POSTMATCH_DATA names the folder that holds mnist/). diffusers is
Python alone and may be copied: with huggingface_hub, PyYAML, requests, tqdm, regex and the rest of
what ``pip install --target DIR diffusers`` brings, less torch, to a folder on PYTHONPATH.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from postmatch import MatchedVAE, attach, seeded
from postmatch.attached_encoder import encoder_for
from postmatch.data.images import load_images
from postmatch.image_metrics import psnr
from postmatch.models import device_of
from postmatch.partial_fields import StandardisedEncoder
from postmatch.partial_shapes import PartialSizes, shapes_of
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.results import provenance
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan
from postmatch.vaes.base import VAE
from postmatch.vaes.external_diffusers import from_diffusers

SCALE = 0.1  # standard deviation of a pixel, in [0, 1]
BATCH, DRAWS, AT_ONCE = 128, 10, 250
CHANNELS = (32, 64, 64)
TINY_CHANNELS = (8, 8, 8)
TINY = PartialSizes(
    width=16, num_blocks=1, channels=16, components=2, head_blocks=1, grid_width=16, grid_blocks=1
)


def main() -> None:
    """Train three times, judge twice, print."""
    given = parse()
    device = device_of(given.device)
    images = load_images("mnist")
    few = 512 if given.tiny else None
    x = images.train[:few].to(device) / 255.0
    test = images.test[: 64 if given.tiny else given.test_rows].to(device) / 255.0
    line = run(x, test, given)
    line |= {"benchmark": "attaching", "seed": 0, **provenance(device)}
    text = json.dumps(line)
    if given.output is not None:
        given.output.write_text(text + "\n")
    print(text)


def run(x: Tensor, test: Tensor, given: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of both models, and how long they took."""
    sizes = TINY if given.tiny else PartialSizes()
    frozen = autoencoder(given.tiny).to(x.device)
    stranger = train_alone(frozen, x, 3 if given.tiny else given.steps)
    say(f"trained alone in {stranger:.0f} s")
    start = time.monotonic()
    limit = 0.0 if given.tiny else given.attach_seconds
    steps = 3 if given.tiny else 10**6
    vae = adapted(frozen, x)
    attached = attach(vae, x, masks=masks_of("mnist"), steps=steps, max_seconds=limit, sizes=sizes)
    seconds = time.monotonic() - start
    scores = {"attached": filled_psnr(attached, test)}
    say(f"attached in {seconds:.0f} s: {scores['attached']:.2f} dB, {attached.partial.facts}")
    both, joint = train_together(x, sizes, given.tiny, 3 if given.tiny else 0, stranger + seconds)
    scores["joint"] = filled_psnr(both, test)
    say(f"trained together in {joint:.0f} s: {scores['joint']:.2f} dB")
    return {
        **{f"psnr_{name}": round(score, 3) for name, score in scores.items()},
        "difference": round(scores["attached"] - scores["joint"], 3),
        "reconstruction_attached": round(seen_psnr(vae, test), 3),
        "reconstruction_joint": round(seen_psnr(both.vae, test), 3),
        "stranger_seconds": round(stranger, 1),
        "attach_seconds": round(seconds, 1),
        "joint_seconds": round(joint, 1),
        "facts": attached.partial.facts,
        "parameters": {
            "vae": sum(p.numel() for p in frozen.parameters()),
            "partial": sum(p.numel() for p in attached.partial.parameters()),
        },
        "test_rows": len(test),
        "num_samples": DRAWS,
    }


def say(what: str) -> None:
    """Tell how far it is, for runs that are cut off."""
    print(what, file=sys.stderr, flush=True)


def autoencoder(tiny: bool) -> AutoencoderKL:
    """Return an untrained one of 28 x 28 pixels, whose z is a map of 4 x 7 x 7."""
    with seeded(0):
        return AutoencoderKL(
            in_channels=1,
            out_channels=1,
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            block_out_channels=TINY_CHANNELS if tiny else CHANNELS,
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=8,
            sample_size=28,
            scaling_factor=1.0,
        )


def adapted(model: AutoencoderKL, x: Tensor) -> VAE:
    """Return it as a VAE, whose likelihood is that of its training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_diffusers(model, x[:100], scale=SCALE)


def train_alone(model: AutoencoderKL, x: Tensor, steps: int) -> float:
    """Train as a stranger would, by squared errors and the KL term; return the seconds."""
    start = time.monotonic()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator(x.device).manual_seed(0)
    model.train()
    for _ in range(steps):
        drawn = torch.randint(len(x), (BATCH,), generator=generator, device=x.device)
        image = 2.0 * x[drawn] - 1.0
        posterior = model.encode(image).latent_dist
        error = (model.decode(posterior.sample(generator)).sample - image).square()
        loss = (error.flatten(1).sum(1) / (2.0 * (2.0 * SCALE) ** 2) + posterior.kl()).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        schedule.step()
    model.eval()
    return time.monotonic() - start


def train_together(
    x: Tensor, sizes: PartialSizes, tiny: bool, steps: int, seconds: float
) -> tuple[MatchedVAE, float]:
    """Train both networks from the start, and return them with the seconds that it took."""
    start = time.monotonic()
    vae = adapted(autoencoder(tiny).to(x.device), x)
    with seeded(0), torch.no_grad():
        partial = encoder_for(vae, shapes_of(vae, x[:2]), sizes).to(x.device)
    assert isinstance(partial, StandardisedEncoder)
    partial.x_shift.fill_(x.mean())
    partial.x_scale.fill_(x.std())
    model, masks = MatchedVAE(vae, partial), masks_of("mnist")
    generator = torch.Generator(x.device).manual_seed(0)

    def loss(_: Tensor) -> Losses:
        drawn = torch.randint(len(x), (BATCH,), generator=generator, device=x.device)
        observed = masks.sample((BATCH, 1, 28, 28), generator)
        return model.losses(x[drawn], None, observed, generator=generator)

    limit = 0.0 if steps else seconds
    plan = Plan(steps or 10**6, learning_rate=1e-3, max_seconds=limit, precision="tf32")
    train(model, loss, plan, generators=[generator])
    return model, time.monotonic() - start


@torch.no_grad()
def filled_psnr(model: MatchedVAE, test: Tensor) -> float:
    """Return the mean PSNR of filled images; those without any error are left out."""
    generator = torch.Generator(test.device).manual_seed(0)
    observed = masks_of("mnist").sample((len(test), 1, 28, 28), generator)
    model.vae.eval()
    with seeded(0):
        parts = zip(test.split(AT_ONCE), observed.split(AT_ONCE), strict=True)
        found = [psnr(model.given(x, seen).draws(DRAWS).clamp(0.0, 1.0), x) for x, seen in parts]
    each = torch.cat(found)
    return float(each[each.isfinite()].mean())


@torch.no_grad()
def seen_psnr(vae: VAE, test: Tensor) -> float:
    """Return the mean PSNR of what the VAE makes of whole images: no filling does better."""
    with seeded(0):
        found = [
            psnr(vae.decode(vae.encode(x).sample(torch.Size([DRAWS]))).mean.clamp(0.0, 1.0), x)
            for x in test.split(AT_ONCE)
        ]
    return float(torch.cat(found).mean())


def parse() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--steps", type=int, default=10_000, help="of the stranger's training")
    parser.add_argument("--attach-seconds", type=float, default=600.0)
    parser.add_argument("--test-rows", type=int, default=2_000)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
