"""What docs/images.md remarks on the results of a set of images, if there is cause."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from images_prose import (
    ALIKE,
    BEHIND,
    BEHIND_DRAWN,
    CLASSIFIERS,
    LONGER,
    NAMES_OF,
    UNDRAWN,
    UNDRAWN_BUT,
)
from postmatch.recipes.scores import MASK_SEEDS

Result = dict[str, Any]
COMPARED = {"psnr": "PSNR of the mean", "precision": "precision", "recall": "recall"}
LEAST_SPREAD = 0.1  # decibels by which a mean of ten is better than one, if these differ at all


def behind(own: Mapping[str, Result]) -> str:
    """Return in what the peer is ahead of models of ours, by figures as they are printed."""
    drawn = {model: result for model, result in own.items() if "drawn_psnr" in result["metrics"]}
    ahead = {BEHIND: _ahead(own, ""), BEHIND_DRAWN: _ahead(drawn, "drawn_")}
    return "".join(said.format(where="; ".join(found)) for said, found in ahead.items() if found)


def _ahead(own: Mapping[str, Result], prefix: str) -> list[str]:
    """Return of which models the peer is ahead, and in what."""
    if "vaeac" not in own:
        return []
    peer, found = own["vaeac"]["metrics"], []
    for model in [model for model in own if model != "vaeac"]:
        ours, keys = own[model]["metrics"], {prefix + key: name for key, name in COMPARED.items()}
        less = [name for k, name in keys.items() if round(peer[k], 3) > round(ours[k], 3)]
        found += [f"of {NAMES_OF[model]} in {listed(less)}"] if less else []
    return found


def alike(own: Mapping[str, Result]) -> str:
    """Return whose fillings of an image are all the same, if anyone's are."""
    gains = {m: r["metrics"]["psnr"] - r["metrics"]["psnr_per_sample"] for m, r in own.items()}
    names = [NAMES_OF[model] for model, gain in gains.items() if gain < LEAST_SPREAD]
    return ALIKE.format(names=listed(names)) if names else ""


def undrawn(own: Mapping[str, Result], lines: Sequence[Result]) -> str:
    """Return of which models no pixels were drawn, if there are others.

    Args:
        own: The results of one data set, by model.
        lines: Of models that were trained another time.
    """
    models = [model for model, result in own.items() if "drawn_psnr" not in result["metrics"]]
    if not 0 < len(models) < len(own):
        return ""
    known = {line["model"] for line in lines if "drawn_psnr" in line}
    others = UNDRAWN_BUT if known.issuperset(models) else ""
    return UNDRAWN.format(names=listed([NAMES_OF[model] for model in models]), others=others)


def longer(own: Mapping[str, Result]) -> str:
    """Return which models of ours were trained for longer than the peer, if any."""
    minutes = {NAMES_OF[model]: result["train_minutes"] for model, result in own.items()}
    least = minutes.get(NAMES_OF["vaeac"], math.inf) * 1.05
    names = [name for name, each in minutes.items() if each > least]
    return LONGER.format(names=listed(names)) if names else ""


def listed(names: Sequence[str]) -> str:
    """Return names as one says them: a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def classifiers(own: Mapping[str, Result]) -> list[str]:
    """Return which models were judged by other classifiers than the rest, if any."""
    most = usual_digest(own)
    names = [NAMES_OF[model] for model, result in own.items() if digest(result) != most]
    return CLASSIFIERS.format(names=listed(names)).splitlines() if names else []


def usual_digest(own: Mapping[str, Result]) -> str:
    """Return which classifier judged most of the models."""
    ((most, _),) = Counter(map(digest, own.values())).most_common(1)
    return most


def digest(result: Result) -> str:
    """Return which classifier judged a model; none is known of those that are not kept."""
    return str(result.get("extractor", {}).get("digest", result["model"]))


def fewer(own: Mapping[str, Result]) -> str:
    """Return which models were judged by other numbers of images or masks than most, if any."""
    counts = {model: result["rows"]["test"] for model, result in own.items()}
    first = next(iter(counts.values()))
    others = [f"{NAMES_OF[m]}: {count:,}" for m, count in counts.items() if count != first]
    draws = {model: len(result.get("mask_seeds", MASK_SEEDS)) for model, result in own.items()}
    others += [
        f"{NAMES_OF[m]}: {n} of {len(MASK_SEEDS)} draws of masks"
        for m, n in draws.items()
        if n != len(MASK_SEEDS)
    ]
    return f" ({'; '.join(others)}.)" if others else ""
