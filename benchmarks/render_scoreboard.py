"""Write docs/scoreboard.md from results/uci-*.json and results/ablation.jsonl alone."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from postmatch.data.uci import NAMES
from postmatch.recipes.uci_run import QUOTED

Result = dict[str, Any]
INTRODUCTION = """# The tabular scoreboard

Made by `benchmarks/render_scoreboard.py` from `results/uci-*.json` and
`results/ablation.jsonl`; do not edit.

Each feature of a test row is hidden with probability one half, and what is hidden is asked for,
with five draws of masks; a figure stands with its standard deviation over these. That says nothing
of which test rows were drawn, by which log-likelihoods are far less certain. They are in nats per
row, more is better.

- **log_prob** is the headline: a lower bound on the log-density of what is hidden under the very
  distribution that samples are drawn from. A poor posterior can only lower it. That of VAEAC is its
  own importance-weighted bound; those of Gaussian, mixture and circuit are exact.
- **gap** says how loose the bound is: on rows drawn from the model, a bound from above less that
  from below.
- **ratio** is the paper's estimate, log p(x) - log p(x_o), at growing numbers of draws K. It is no
  bound, and rises when the posterior is poor. It is taken of 1,000 rows; by how much it exceeds
  their log_prob is added to that of all rows. *k* is the median shape of the tail of its weights:
  above 0.7 it cannot be trusted at any K.
- **joint** is the log-likelihood of complete rows (a lower bound; exact for Gaussians, the circuit
  and flows).
- **NRMSE** is of the mean of 128 draws, or of the exact mean where log_prob is exact; less is
  better.

`best` has our settings, `paper` those of the paper, `published-code` those that its public code
trains. Only BSDS has all of its rows here, drawn afresh from the photographs; the other four are
small subsets, on which only the methods run here can be compared with each other. Quoted figures
are of the complete sets. How our models are made is told in [densities.md](densities.md).
"""
METHODS = (
    "best",
    "paper",
    "published-code",
    "vaeac",
    "partial_vae",
    "gaussian_mixture",
    "circuit",
    "gaussian",
)
NAMES_OF = {
    "best": "**postmatch, best**",
    "paper": "postmatch, paper",
    "published-code": "postmatch, published code",
    "vaeac": "VAEAC",
    "partial_vae": "partial VAE",
    "gaussian_mixture": "Gaussian mixture",
    "circuit": "probabilistic circuit",
    "gaussian": "Gaussian",
    "nsf": "neural spline flow",
    "maf": "masked autoregressive flow",
}
# Log-likelihoods of complete BSDS patches: Strauss and Oliva (2021), Papamakarios et al. (2017)
# with five transforms, and Durkan et al. (2019).
QUOTED_JOINT = {
    "ACE, complete rows": 156.400,
    "masked autoregressive flow": 155.69,
    "neural spline flow": 157.31,
}


def main() -> None:
    """Read, render, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--output", type=Path, default=Path("docs/scoreboard.md"))
    arguments = parser.parse_args()
    page = render(read(arguments.results))
    lines = arguments.results / "ablation.jsonl"
    if lines.exists():
        page += "\n" + ablation([json.loads(line) for line in lines.read_text().splitlines()])
    arguments.output.write_text(page)


def read(folder: Path) -> dict[tuple[str, str], Result]:
    """Return the judged results by data set and method."""
    every = [json.loads(path.read_text()) for path in sorted(folder.glob("uci-*.json"))]
    return {(r["dataset"], r["preset"]): r for r in every if "metrics" in r}


def render(results: dict[tuple[str, str], Result]) -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for name in NAMES:
        own = {method: r for (dataset, method), r in results.items() if dataset == name}
        if own:
            parts.append(section(name, own))
    return "\n".join(parts)


def section(name: str, own: dict[str, Result]) -> str:
    """Return what is known of one data set."""
    order = [m for m in METHODS if m in own] + sorted(set(own) - set(METHODS))
    rows = next(iter(own.values()))["rows"]
    lines = [
        f"## {name.upper()}",
        "",
        f"{rows['train']:,} training rows, {rows['test']:,} test rows.",
        "",
        *table(HEADINGS, [score_row(m, own[m]) for m in order] + quoted_rows(name)),
        "",
    ]
    if ratios := [row for m in order for row in ratio_rows(m, own[m])]:
        lines += [*table(RATIO_HEADINGS, ratios), ""]
    return "\n".join([*lines, *table(RUN_HEADINGS, [run_row(m, own[m]) for m in order]), ""])


HEADINGS = (
    "method",
    "log_prob",
    "gap",
    "joint",
    "NRMSE",
    "E log p(x_u given z)",
    "KL of the match",
)
RATIO_HEADINGS = ("ratio", "K", "estimate", "effective sample size", "k")
RUN_HEADINGS = (
    "run",
    "parameters",
    "minutes",
    "steps",
    "samples",
    "µs per row",
    "hardware",
    "seed",
    "commit",
)


def score_row(method: str, result: Result) -> list[str]:
    """Return a method's scores."""
    metrics = result["metrics"]
    names = ("log_prob", "log_prob_gap", "joint_log_prob", "nrmse", "reconstruction", "match_kl")
    return [NAMES_OF.get(method, method), *(figure(metrics, name) for name in names)]


def quoted_rows(name: str) -> list[list[str]]:
    """Return what has been published; by the ratio for the first two."""
    label = "quoted" if name == "bsds" else "quoted, complete set"
    rows = [
        [f"{method} ({label})", f"{scores[name][0]:.3f}", "", "", f"{scores[name][1]:.3f}", "", ""]  # type: ignore[index]
        for method, scores in QUOTED.items()
    ]
    if name == "bsds":
        for method, joint in QUOTED_JOINT.items():
            rows.append([f"{method} ({label})", "", "", f"{joint:.3f}", "", "", ""])
    return rows


def ratio_rows(method: str, result: Result) -> list[list[str]]:
    """Return the paper's estimate at every number of draws."""
    metrics = result["metrics"]
    keys = [key.rpartition("_")[2] for key in metrics if key.startswith("log_prob_ratio")]
    return [
        [
            NAMES_OF.get(method, method),
            f"{count:,}",
            figure(metrics, f"log_prob_ratio_{count}"),
            figure(metrics, f"effective_sample_size_{count}", digits=1),
            figure(metrics, f"pareto_k_{count}", digits=2),
        ]
        for count in sorted(int(key) for key in keys if key.isdigit())
    ]


def run_row(method: str, result: Result) -> list[str]:
    """Return where a method's figures come from."""

    def or_blank(name: str, form: Callable[[Any], str] = str) -> str:
        return form(result[name]) if result.get(name) is not None else ""

    return [
        NAMES_OF.get(method, method),
        or_blank("parameters", "{:,}".format),
        or_blank("train_minutes", "{:.1f}".format),
        or_blank("steps", "{:,}".format),
        or_blank("num_samples", "{:,}".format),
        figure(result["metrics"], "impute_microseconds", digits=0),
        or_blank("hardware"),
        or_blank("seed"),
        or_blank("commit"),
    ]


ABLATION = """# What each part is worth

`benchmarks/ablation.py`: our best model, and the same training with one thing changed, each judged
on the same test rows and masks.
"""
ABLATION_HEADINGS = (
    "variant",
    "log_prob",
    "against best",
    "gap",
    "joint",
    "NRMSE",
    "parameters",
    "minutes",
    "seed",
    "commit",
)


def ablation(lines: Sequence[Result]) -> str:
    """Return the tables of variants."""
    parts = [ABLATION]
    for name in [name for name in NAMES if name in {line["dataset"] for line in lines}]:
        own = [line for line in lines if line["dataset"] == name]
        best = {line["seed"]: line for line in own if line["variant"] == "best"}
        rows = [variant_row(line, best.get(line["seed"])) for line in own]
        where = f"{own[0]['rows']['test']:,} test rows, {own[0]['hardware']}."
        parts.append(
            "\n".join([f"## {name.upper()}", "", where, "", *table(ABLATION_HEADINGS, rows)])
        )
    return "\n\n".join(parts) + "\n"


def variant_row(line: Result, best: Result | None) -> list[str]:
    """Return a variant's scores beside those of the best model of the same seed."""
    metrics = line["metrics"]
    less = "" if best is None else f"{metrics['log_prob'] - best['metrics']['log_prob']:+.3f}"
    others = ("log_prob_gap", "joint_log_prob", "nrmse")
    return [
        line["variant"],
        figure(metrics, "log_prob"),
        less,
        *(figure(metrics, name) for name in others),
        f"{line['parameters']:,}",
        f"{line['train_minutes']:.1f}",
        str(line["seed"]),
        line["commit"],
    ]


def figure(metrics: dict[str, float], name: str, digits: int = 3) -> str:
    """Return a figure with its spread, as far as there are any."""
    if metrics.get(name) is None:
        return ""
    spread = metrics.get(f"{name}_std")
    return f"{metrics[name]:,.{digits}f}" + ("" if spread is None else f" ± {spread:,.{digits}f}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, numbers to the right."""
    lines = [" | ".join(headings), "|".join(["---", *["---:"] * (len(headings) - 1)])]
    lines += [" | ".join(row) for row in rows]
    return [f"| {line} |" if "---" not in line else f"|{line}|" for line in lines]


if __name__ == "__main__":
    main()
