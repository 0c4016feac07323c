"""The section of docs/images.md about what a partial posterior costs, of partial_cost.jsonl."""

from collections.abc import Mapping, Sequence
from typing import Any

from render_scoreboard import table

Result = dict[str, Any]
COST = """
## What the partial posterior costs

`benchmarks/partial_cost.py`, on MNIST: parameters, and milliseconds of a training step, of the VAE
alone and with its partial posterior. A VQ-VAE is matched after it has been trained, so beside a
step of its own stands, in parentheses, one of the match alone.
"""
COST_HEADINGS = (
    "model",
    "parameters, VAE",
    "with q(z given x_o)",
    "more",
    "step, VAE",
    "with the match",
    "more",
    "batch",
    "precision",
    "hardware",
    "commit",
)


def cost_section(
    costs: Sequence[Result],
    names: Mapping[str, str],
    results: Mapping[tuple[str, str], Result],
) -> str:
    """Return the table of parameters and of steps, of lines run twice only the last.

    Args:
        costs: The lines.
        names: Of models, in the order of the page.
        results: By data set and model, to tell whether steps are those of the same networks.
    """
    latest = {(line["model"], line["hardware"]): line for line in costs}
    lines = sorted(latest.values(), key=lambda c: (c["hardware"], list(names).index(c["model"])))
    text = COST
    if priors := {c["parameters"]["prior"] for c in lines if "prior" in c["parameters"]}:
        counts = " or ".join(f"{count:,}" for count in sorted(priors))
        text += f"Of its parameters, {counts} are those of its prior, which no step here trains.\n"
    if others := [f"{names[c['model']]} on {c['hardware']}" for c in lines if differs(c, results)]:
        text += f"Not the network of the results above, but one before it: {', '.join(others)}.\n"
    return "\n".join(
        [
            text,
            *table(COST_HEADINGS, [[names[line["model"]], *cost_row(line)] for line in lines]),
            "",
        ]
    )


def differs(line: Result, results: Mapping[tuple[str, str], Result]) -> bool:
    """Return whether a step was timed of a network that is not the one whose result there is."""
    result = results.get((line["dataset"], line["model"]))
    counted: int = line["parameters"]["both"]
    return result is not None and sum(result["parameters"].values()) != counted


def cost_row(line: Result) -> list[str]:
    """Return what the partial posterior of one model costs, without its name."""
    parameters, alone = line["parameters"], line["ms_vae"]
    added = line["ms_partial"] if "ms_partial" in line else line["ms_both"] - alone
    step = f"({line['ms_partial']:.2f})" if "ms_partial" in line else f"{line['ms_both']:.2f}"
    return [
        f"{parameters['vae']:,}",
        f"{parameters['both']:,}",
        f"{parameters['both'] / parameters['vae'] - 1.0:+.0%}",
        f"{alone:.2f}",
        step,
        f"{added / alone:+.0%}",
        str(line["batch_size"]),
        line["precision"],
        line["hardware"],
        line["commit"],
    ]
