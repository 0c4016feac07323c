"""A table of results/hole_kinds.jsonl, for docs/images.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from render_scoreboard import table

KINDS = {"blank": "no stroke", "pixels": "single pixels", "areas": "areas"}
INKED = ("pixels", "areas")
TEXT = """
Which holes decide that, by `benchmarks/hole_kinds.py`: PSNR of the mean of ten, of {images:,} test
images with one draw of masks. {blank} of their holes have no stroke in them, and there an error
that nobody can see decides; what stands below **strokes** leaves these out. **Error** is the mean
squared error that the mean of very many draws would have, in thousandths, and **spread** the
variance of draws, both where there are strokes. They are equal if draws are what the truth might
be. The mean of ten draws has the error + spread / 10, so that it favours draws which are too much
alike.
"""
ORDER = "By strokes alone the order is: {names}.\n"
OTHER = "{name} is here one of {minutes:.1f} minutes and {steps:,} steps.\n"


def holes(
    lines: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    results: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return a table of what kinds of holes are worth, or nothing if there are no lines.

    Args:
        lines: Those of one data set; of a model that has several, the last counts.
        names: Of models, in the order of the page.
        results: The results above the table, by model.
    """
    latest = {line["model"]: line for line in lines}
    own = {model: latest[model] for model in names if model in latest}
    if not own:
        return ""
    kinds = next(iter(own.values()))["kinds"]
    text = TEXT.format(images=kinds["all"]["images"], blank=kinds["blank"]["images"])
    order = sorted(own, key=lambda model: -inked(own[model]["kinds"], "psnr"))
    text += ORDER.format(names=", ".join(names[model] for model in order))
    others = [model for model, line in own.items() if is_other(line, results.get(model))]
    for model in others:
        told = own[model]["trained"]
        text += OTHER.format(name=names[model], minutes=told["train_minutes"], steps=told["steps"])
    headings = ("method", "all", *KINDS.values(), "strokes", "error", "spread")
    return "\n".join([text, *table(headings, [row(names[m], own[m]) for m in own]), ""])


def is_other(line: Mapping[str, Any], result: Mapping[str, Any] | None) -> bool:
    """Return whether a line is about another training than the result."""
    return result is None or any(line["trained"][each] != result[each] for each in line["trained"])


def row(name: str, line: Mapping[str, Any]) -> list[str]:
    """Return the cells of one model."""
    kinds = line["kinds"]
    ratios = [*(kinds[kind]["psnr"] for kind in ("all", *KINDS)), inked(kinds, "psnr")]
    errors = [1e3 * inked(kinds, each) for each in ("error", "spread")]
    return [name, *(f"{value:.2f}" for value in ratios + errors)]


def inked(kinds: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """Return the mean over holes with strokes."""
    chosen = [kinds[kind] for kind in INKED]
    total: int = sum(each["images"] for each in chosen)
    return float(sum(each["images"] * each[name] for each in chosen)) / total
