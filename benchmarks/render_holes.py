"""A table of results/hole_kinds.jsonl, for docs/images.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from render_scoreboard import table

INKED = {"pixels": "single pixels", "areas": "areas"}
TEXT = """
Which holes decide that, by `benchmarks/hole_kinds.py`: PSNR of the mean of ten, of {images:,} test
images with one draw of masks.{blank} **Error** is the mean
squared error that the mean of very many draws would have, in thousandths, and **spread** the
variance of draws, both of the holes to their left. They are equal if draws are what the truth might
be. The mean of ten draws has the error + spread / 10, so that it favours draws which are too much
alike.{imputed}
"""
IMPUTED = """ **Impute** is the PSNR of what `impute` returns, the mean of 32 draws that are spread
evenly, so that little of the spread is left; it was not measured of all."""
BLANK = """ {images} of their holes have no stroke in them, and there an error
that nobody can see decides; what stands below **strokes** leaves these out."""
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
    blank = BLANK.format(**kinds["blank"]) if kinds["blank"]["images"] else ""
    known = any("imputed" in line["kinds"]["all"] for line in own.values())
    told = IMPUTED if known else ""
    text = TEXT.format(images=kinds["all"]["images"], blank=blank, imputed=told)
    if blank:
        order = sorted(own, key=lambda model: -inked(own[model]["kinds"]))
        text += ORDER.format(names=", ".join(names[model] for model in order))
    others = [model for model, line in own.items() if is_other(line, results.get(model))]
    for model in others:
        trained = own[model]["trained"]
        minutes, steps = trained["train_minutes"], trained["steps"]
        text += OTHER.format(name=names[model], minutes=minutes, steps=steps)
    headings = ["method", "all", *(["impute"] if known else [])]
    headings += ["no stroke", "strokes"] if blank else []
    for kind in INKED.values():
        headings += [kind, "error", "spread"]
    return "\n".join(
        [text, *table(headings, [row(names[m], own[m], imputed=known) for m in own]), ""]
    )


def is_other(line: Mapping[str, Any], result: Mapping[str, Any] | None) -> bool:
    """Return whether a line is about another training than the result."""
    return result is None or any(line["trained"][each] != result[each] for each in line["trained"])


def row(name: str, line: Mapping[str, Any], *, imputed: bool) -> list[str]:
    """Return the cells of one model, with an empty one if it alone does not know ``imputed``."""
    kinds = line["kinds"]
    values = [kinds["all"]["psnr"], *([kinds["all"].get("imputed")] if imputed else [])]
    if kinds["blank"]["images"]:
        values += [kinds["blank"]["psnr"], inked(kinds)]
    for kind in map(kinds.get, INKED):
        values += [kind["psnr"], 1e3 * kind["error"], 1e3 * kind["spread"]]
    return [name, *("" if value is None else f"{value:.2f}" for value in values)]


def inked(kinds: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the PSNR of holes with strokes."""
    chosen = [kinds[kind] for kind in INKED]
    total: int = sum(each["images"] for each in chosen)
    return float(sum(each["images"] * each["psnr"] for each in chosen)) / total
