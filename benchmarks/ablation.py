"""What each part of our densities is worth: the same training without it.

Usage: POSTMATCH_DATA=... python benchmarks/ablation.py --dataset hepmass >> results/ablation.jsonl

Trains our best model and each of its variants with the same rows, seeds and time, and prints one
JSON line for each. ``render_scoreboard.py`` makes the table.
"""

import argparse
import dataclasses
import json
from typing import Any

from postmatch.data.patches import PatchSymmetries
from postmatch.data.uci import NAMES, Name, load
from postmatch.models import device_of
from postmatch.recipes.results import provenance
from postmatch.recipes.scores import Judging, conditional_scores
from postmatch.recipes.uci import Config, config_of, fit
from postmatch.recipes.uci_run import in_model_units
from postmatch.training.progress import progress_bar

METRICS = (
    "log_prob",
    "log_prob_gap",
    "joint_log_prob",
    "nrmse",
    "reconstruction",
    "match_kl",
)
# Each takes one part away, or adds one that our best model does without.
VARIANTS: dict[str, dict[str, Any]] = {
    "best": {},
    "z starts anywhere": {"anchored": False},
    "the match alone": {"bound": False},
    "one component per feature": {"feature_components": 1},
    "a normal prior, and Gaussian features": {
        "anchored": False,
        "learned_prior": False,
        "feature_components": 0,
        "settled": False,
        "keep_best": True,
    },
    "weights that held-out rows choose": {"settled": False, "keep_best": True},
    "the last weights as they are": {"settled": False, "keep_best": False},
    "the last weights, and scales that held-out rows settle": {
        "settled": True,
        "keep_best": False,
    },
    "Adam alone": {"orthogonal_rate": 0.0},
    "little weight decay": {"weight_decay": 0.01},
    "patches as they are": {"symmetries": False},
}
GROWN = ("twice as wide masked networks", "two more masked blocks")


def main() -> None:
    """Train, judge and print each variant."""
    arguments = parse()
    device = device_of(arguments.device)
    rows, log_scale = in_model_units(load(arguments.dataset), device)
    variants = variants_of(arguments.dataset)
    for name in arguments.variants or variants:
        config = variants[name]
        if arguments.steps is not None:
            config = dataclasses.replace(config, steps=arguments.steps)
        with progress_bar(name) as show:
            model, report = fit(
                config,
                rows.train,
                rows.val,
                seed=arguments.seed,
                vary=PatchSymmetries(log_scale.exp()) if config.symmetries else None,
                max_seconds=60.0 * arguments.max_minutes,
                show=show,
            )
        test = rows.test[: arguments.test_rows]
        how = Judging(num_samples=arguments.samples, ratio_samples=())
        metrics = conditional_scores(model.eval(), test, log_scale, how)
        line = {
            "benchmark": "ablation",
            "dataset": arguments.dataset,
            "variant": name,
            "metrics": {key: metrics[key] for key in METRICS},
            "steps": report.steps,
            "best_step": report.best_step,
            "train_minutes": round(report.seconds / 60.0, 3),
            "parameters": sum(p.numel() for p in model.parameters()),
            "rows": {"train": len(rows.train), "test": len(test)},
            "num_samples": arguments.samples,
            "seed": arguments.seed,
            **provenance(device),
        }
        print(json.dumps(line), flush=True)


def variants_of(dataset: Name) -> dict[str, Config]:
    """Return our best settings and each of the others, as far as they differ on these rows."""
    best = config_of(dataset, "best")
    every = {name: dataclasses.replace(best, **changes) for name, changes in VARIANTS.items()}
    grown = ({"mask_width": 2 * best.mask_width}, {"mask_blocks": best.mask_blocks + 2})
    every |= {
        name: dataclasses.replace(best, **changes)
        for name, changes in zip(GROWN, grown, strict=True)
    }
    return {name: config for name, config in every.items() if name == "best" or config != best}


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=NAMES, default="hepmass")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="all of them otherwise")
    parser.add_argument("--steps", type=int, help="fewer updates than usual")
    parser.add_argument("--max-minutes", type=float, default=0.0, help="of training; 0: no limit")
    parser.add_argument("--test-rows", type=int, default=2_000, help="judged at most")
    parser.add_argument("--samples", type=int, default=100, help="draws of z per row, even")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    arguments = parser.parse_args()
    known = variants_of(arguments.dataset)
    if unknown := [name for name in arguments.variants or () if name not in known]:
        parser.error(f"--variants must be of {', '.join(known)}; got {', '.join(unknown)}")
    return arguments


if __name__ == "__main__":
    main()
