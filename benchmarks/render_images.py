"""Write docs/images.md from results/inpainting-*.json and four files of lines alone.

These are inpainting_beside.jsonl, of models that were trained another time, hole_kinds.jsonl,
partial_cost.jsonl and performance.jsonl.

Pictures are embedded where `make figures` has put them.
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images_prose import (
    ABOUT,
    AGAIN,
    CHANGED,
    GALLERIES,
    INTRODUCTION,
    JUDGED,
    LATENT,
    LEFT_OPEN,
    METHOD,
    NAMES_OF,
    SHOWN,
    STEPS,
)
from images_remarks import alike, behind, classifiers, fewer, longer, undrawn
from postmatch.recipes.inpainting_config import DATASETS, Config, config_of, still_there
from postmatch.recipes.inpainting_config import MODELS as OURS
from postmatch.recipes.inpainting_run import QUOTED
from render_costs import cost_section
from render_holes import holes
from render_others import others
from render_scoreboard import figure, table
from render_speed import speed_section

Result = dict[str, Any]
TITLES = {"mnist": "MNIST", "omniglot": "Omniglot", "celeba": "CelebA"}
MODELS = tuple(NAMES_OF)
SCORE_HEADINGS = ("method", "PSNR, mean of ten", "PSNR, single draws", "precision", "recall")
SCORES = ("psnr", "psnr_per_sample", "precision", "recall")
RUN_HEADINGS = (
    "run",
    "parameters, VAE",
    "q(z given x_o)",
    "minutes",
    "steps",
    "hardware",
    "seed",
    "commit",
)
LINES = {
    "costs": "partial_cost",
    "beside": "inpainting_beside",
    "kinds": "hole_kinds",
    "speeds": "performance",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Read, render, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--pictures", type=Path, default=Path("docs/img"))
    parser.add_argument("--output", type=Path, default=Path("docs/images.md"))
    arguments = parser.parse_args(argv)
    there = {
        p.name: os.path.relpath(p, arguments.output.parent) for p in arguments.pictures.glob("*")
    }
    lines = {name: lines_of(arguments.results / f"{file}.jsonl") for name, file in LINES.items()}
    arguments.output.write_text(render(read(arguments.results), there, **lines))


def read(folder: Path) -> dict[tuple[str, str], Result]:
    """Return the judged results by data set and model."""
    every = [json.loads(path.read_text()) for path in sorted(folder.glob("inpainting-*.json"))]
    return {(r["dataset"], r["model"]): r for r in every if "metrics" in r}


def lines_of(path: Path) -> list[Result]:
    """Return the lines of a file, none if it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def render(
    results: Mapping[tuple[str, str], Result],
    pictures: Mapping[str, str],
    costs: Sequence[Result] = (),
    beside: Sequence[Result] = (),
    kinds: Sequence[Result] = (),
    speeds: Sequence[Result] = (),
) -> str:
    """Return the page.

    Args:
        results: By data set and model.
        pictures: From the names of the files there are to where they are, as seen from the page.
        costs: The lines of partial_cost.py.
        beside: Scores of models that were trained another time, side by side.
        kinds: The lines of hole_kinds.py.
        speeds: Lines about speed, also that of other things.
    """
    parts = [INTRODUCTION, *diagram(pictures), METHOD, about(results), trained(results), JUDGED]
    for dataset in DATASETS:
        own = {m: results[dataset, m] for m in MODELS if (dataset, m) in results}
        if own:
            more = chosen(beside, dataset)
            parts += [section(dataset, own, more), *others(more, own)]
            parts.append(holes(chosen(kinds, dataset), NAMES_OF, own))
    for kind, words in GALLERIES.items():
        shown = [each for key in ordered(results) for each in gallery(kind, *key, pictures)]
        parts += [words, *shown] if shown else []
    if opened := [shown for name in LATENT for shown in latent(name, pictures)]:
        parts += [LEFT_OPEN, *opened]
    if costs:
        parts.append(cost_section(costs, NAMES_OF, results))
    return "".join([*parts, speed_section(speeds), again(results)])


def ordered(results: Mapping[tuple[str, str], Result]) -> list[tuple[str, str]]:
    """Return the keys, data sets first, in the order of the page."""
    return [(d, m) for d in DATASETS for m in MODELS if (d, m) in results]


def diagram(pictures: Mapping[str, str]) -> list[str]:
    """Return the picture of the method, if it is there."""
    if "posterior-matching.svg" not in pictures:
        return []
    words = "Encoder, decoder and the partial encoder, what trains them, and how holes are filled"
    return [f"\n![{words}]({pictures['posterior-matching.svg']})\n"]


def about(results: Mapping[tuple[str, str], Result]) -> str:
    """Return what the models are that there are results of."""
    known = [m for m in MODELS if m in {model for _, model in results}]
    return "\n" + "".join(f"- **{NAMES_OF[m]}** (`{m}`) {ABOUT[m]}\n" for m in known)


def trained(results: Mapping[tuple[str, str], Result]) -> str:
    """Return how they were trained, with those that took other steps than most."""
    rates = {key: results[key]["config"].get("orthogonal_rate", 0.0) for key in ordered(results)}
    others = [f"{NAMES_OF[m]} of {TITLES[d]}" for (d, m), rate in rates.items() if not rate]
    if len(others) == len(rates):
        return ""
    return STEPS + (f"Trained by Adam: {', '.join(others)}.\n" if others else "")


def section(dataset: str, own: Mapping[str, Result], more: Sequence[Result]) -> str:
    """Return what is known of one data set."""
    rows = next(iter(own.values()))["rows"]
    lines = [
        "",
        f"## {TITLES[dataset]}",
        "",
        f"{rows['train']:,} training images, {rows['test']:,} test images.{fewer(own)}",
        *classifiers(own),
        "",
        *table(SCORE_HEADINGS, [score_row(m, r) for m, r in own.items()] + quoted_rows(dataset)),
        "",
        *drawn_table(own),
        *table(RUN_HEADINGS, [run_row(m, r) for m, r in own.items()]),
        "",
    ]
    return "\n".join(lines) + alike(own) + behind(own) + undrawn(own, more) + longer(own)


def chosen(lines: Sequence[Result], dataset: str) -> list[Result]:
    """Return the lines of one data set."""
    return [line for line in lines if line["dataset"] == dataset]


def drawn_table(own: Mapping[str, Result]) -> list[str]:
    """Return the scores of drawn pixels, of the models that have any."""
    rows = [score_row(m, r, "drawn_") for m, r in own.items() if "drawn_psnr" in r["metrics"]]
    return [*table(("pixels drawn, too", *SCORE_HEADINGS[1:]), rows), ""] if rows else []


def score_row(model: str, result: Result, prefix: str = "") -> list[str]:
    """Return a model's scores."""
    return [NAMES_OF[model], *(figure(result["metrics"], prefix + name) for name in SCORES)]


def quoted_rows(dataset: str) -> list[list[str]]:
    """Return what has been published, marked as such."""
    found = {method: scores[dataset] for method, scores in QUOTED.items() if dataset in scores}  # type: ignore[index]
    return [
        [f"{method} (quoted)", f"{psnr:.3f}", "", f"{precision:.3f}", f"{recall:.3f}"]
        for method, (psnr, precision, recall) in found.items()
    ]


def run_row(model: str, result: Result) -> list[str]:
    """Return where a model's scores come from."""
    parameters = result["parameters"]
    whole = sum(parameters.values()) - parameters.get("partial", 0)
    wanted = result["config"]["steps"]
    cut = result.get("trainings", 1) == 1 and result["steps"] < wanted
    return [
        NAMES_OF[model],
        f"{whole:,}",
        f"{parameters['partial']:,}" if "partial" in parameters else "",
        f"{result['train_minutes']:.1f}",
        f"{result['steps']:,} of {wanted:,}" if cut else f"{result['steps']:,}",
        result["hardware"],
        str(result["seed"]),
        result["commit"],
    ]


def gallery(kind: str, dataset: str, model: str, pictures: Mapping[str, str]) -> list[str]:
    """Return the picture of a model's draws, if it is there."""
    name = f"{kind}-{dataset}-{model}.png"
    if name not in pictures:
        return []
    title = f"{TITLES[dataset]}, {NAMES_OF[model]}"
    return [f"\n### {title}\n\n![{title}: {SHOWN[kind]}]({pictures[name]})\n"]


def latent(name: str, pictures: Mapping[str, str]) -> list[str]:
    """Return a picture of the latent space, if it is there."""
    if f"{name}.png" not in pictures:
        return []
    words = "Test images in the latent space, and draws given parts of some"
    return [f"\n{LATENT[name]}\n\n![{words}]({pictures[f'{name}.png']})\n"]


OF_CODES = ("num_codes", "code_", "context_", "fine_", "posterior_", "prior_")  # VQ-VAEs alone
DRAWING = ("    make figures", "    python benchmarks/render_images.py")


def again(results: Mapping[tuple[str, str], Result]) -> str:
    """Return the commands that train and judge the models once more, and draw the page."""
    commands = [f"    {command(results[key])}" for key in ordered(results)]
    others = [
        f"{NAMES_OF[m]} of {TITLES[d]}" for d, m in ordered(results) if has_changed(d, m, results)
    ]
    changed = CHANGED.format(names=", ".join(others)) if others else ""
    return AGAIN + changed + "\n".join(["", *commands, *DRAWING]) + "\n"


def has_changed(dataset: str, model: str, results: Mapping[tuple[str, str], Result]) -> bool:
    """Return whether a model of ours would now be trained with other settings."""
    if model not in OURS:
        return False
    own = Config(**still_there(results[dataset, model]["config"]))
    now = config_of(dataset, model)  # type: ignore[arg-type]
    names = [field.name for field in dataclasses.fields(Config)]
    if model != "vqvae":
        names = [name for name in names if not name.startswith(OF_CODES)]
    return any(plain(getattr(own, name)) != plain(getattr(now, name)) for name in names)


def plain(value: Any) -> Any:
    """Return a setting as a result has it, where a tuple has become a list."""
    return list(value) if isinstance(value, tuple) else value


def command(result: Result) -> str:
    """Return what to type to have a result once more."""
    which = f"--dataset {result['dataset']}"
    if result["model"] == "vaeac":
        typed = f"python benchmarks/baselines/image_run.py {which}"
    else:
        typed = f"postmatch reproduce inpainting {which} --model {result['model']}"
    if (count := result.get("trainings", 1)) > 1:
        minutes = f"{result['train_minutes']:.1f} minutes in all"
        return f"{typed}  # and {count - 1} more with --go-on, {minutes}"
    cut = result["steps"] < result["config"]["steps"]
    return f"{typed} --max-minutes {result['train_minutes']:.1f}" if cut else typed


if __name__ == "__main__":
    main()
