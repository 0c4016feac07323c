"""A table of results/inpainting_beside.jsonl, for docs/images.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from images_prose import CHANGES, NAMES_OF, OTHER_CLASSIFIERS, OTHERS
from images_remarks import usual_digest
from render_scoreboard import figure, table

Result = dict[str, Any]
HEADINGS = (
    "other training",
    "what differs",
    "models on the GPU",
    "minutes",
    "steps",
    "PSNR, mean of ten",
    "precision",
    "recall",
    "PSNR, pixels drawn",
)


def others(lines: Sequence[Result], own: Mapping[str, Result]) -> list[str]:
    """Return what models reached that were trained another time than those above."""
    usual = usual_digest(own)
    bare = [line.get("extractor") == usual for line in lines]
    rows = [
        [
            NAMES_OF[line["model"]],
            "; ".join(CHANGES[name] for name in line.get("changed", ())),
            str(line["side_by_side"]),
            f"{line['minutes']:.1f}",
            f"{line['steps']:,}",
            figure(line, "psnr"),
            *(figure(line, n) if same else f"({figure(line, n)})" for n in ("precision", "recall")),
            figure(line, "drawn_psnr") if "drawn_psnr" in line else "",
        ]
        for line, same in zip(lines, bare, strict=True)
    ]
    text = OTHERS if all(bare) else OTHERS + OTHER_CLASSIFIERS
    return [text, "\n", "\n".join(table(HEADINGS, rows)), "\n"] if rows else []
