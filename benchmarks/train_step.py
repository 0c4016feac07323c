"""Time one training step of the paper's UCI models, ours against one pass per latent entry.

Usage: python benchmarks/train_step.py --shape power

Prints one JSON line. The stand-in for the published approach has the same modules, weights, dtype
and threads; only its posterior's network runs once per entry of z.
"""

import json

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.masks import Bernoulli
from postmatch.recipes.uci import FEATURES, build
from postmatch.training.plan import Plan
from postmatch.training.run import Run
from shapes import (
    SHAPES,
    Published,
    median_ms,
    parser,
    prepare,
    product_rate,
    products_of,
    provenance,
    steady_ms,
)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__, seconds=20.0).parse_args()
    device = prepare(arguments)
    shape = SHAPES[arguments.shape]
    model = build(shape).to(device)
    twin = build(shape).to(device)
    twin.load_state_dict(model.state_dict())
    published = MatchedVAE(twin.vae, Published(twin.partial))  # type: ignore[arg-type]
    x = torch.randn(20_000, FEATURES[shape.dataset], device=device)
    ways = {"ours": model, "standin": published}
    plan = Plan(
        10**6, learning_rate=1e-6, precision=arguments.precision, compiled=arguments.compiled
    )
    steps = {name: stepper(way, x, shape.batch_size, plan) for name, way in ways.items()}
    times = median_ms(steps, arguments.seconds)
    if device.type == "cuda":  # it works ahead of the host, which one step at a time cannot show
        times["ours"] = steady_ms(steps["ours"], 1_000)
    rate = product_rate(shape.batch_size, device)
    once = products_of(model)
    again = (shape.latent_size - 1) * products_of(model.partial.head.net)  # type: ignore[union-attr, arg-type]
    # Forward, and twice as much backward; the context is projected once per pass, too.
    work = {
        "ours": 6.0 * shape.batch_size * once,
        "standin": 6.0 * shape.batch_size * (once + again),
    }
    share = {name: work[name] / (1e-3 * times[name]) / rate for name in times}
    line = {
        "benchmark": "train_step",
        "shape": arguments.shape,
        "ms_per_step": round(times["ours"], 3),
        "standin_ms_per_step": round(times["standin"], 3),
        "speedup": round(times["standin"] / times["ours"], 2),
        "difference": difference(model, published, x[: shape.batch_size]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "gflop_per_step": round(work["ours"] / 1e9, 3),
        "product_gflops": round(rate / 1e9, 1),
        "precision": arguments.precision,
        "compiled": arguments.compiled,
        "share_of_product_rate": round(share["ours"], 3),
        "standin_share_of_product_rate": round(share["standin"], 3),
        **provenance(arguments, device),
    }
    print(json.dumps(line))


def stepper(model: MatchedVAE, x: Tensor, batch: int, plan: Plan):  # noqa: ANN201
    """Return a function that takes one step, as the training loop does."""
    generator = torch.Generator(x.device).manual_seed(0)
    masks = Bernoulli(0.5)

    def loss(_: Tensor) -> dict[str, Tensor]:
        rows = x[torch.randint(len(x), (batch,), generator=generator, device=x.device)]
        observed = masks.sample(rows.shape, generator)
        return model.losses(rows, None, observed, generator=generator)

    return Run(model, loss, plan, [generator]).step


def difference(model: MatchedVAE, published: MatchedVAE, x: Tensor) -> float:
    """Return how far the two ways are apart for the same weights, in log densities."""
    published.load_state_dict(
        {name.replace("partial.", "partial.encoder."): v for name, v in model.state_dict().items()}
    )
    with torch.no_grad():
        z = torch.randn(len(x), model.vae.latent_size, device=x.device)  # type: ignore[arg-type]
        observed = torch.rand_like(x) < 0.5
        ours, theirs = (m.partial(x, observed).log_prob(z) for m in (model, published))
    return float((ours - theirs).abs().max() / ours.abs().max())


if __name__ == "__main__":
    main()
