"""Models on the Hugging Face Hub, with a card that tells how they were made, and how good."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from postmatch.attached_encoder import AttachedEncoder
from postmatch.conditioning import MatchedVAE
from postmatch.folders import CARD
from postmatch.hub import check_name, upload
from postmatch.models import TableModel
from postmatch.saving import save

_METHOD = (
    "The method is Posterior Matching (Strauss and Oliva, NeurIPS 2022): one model that answers "
    "every question p(hidden | observed)."
)


def push(
    model: TableModel | MatchedVAE,
    name: str,
    *,
    scores: Mapping[str, float] | None = None,
    private: bool = False,
    slim: bool = False,
) -> str:
    """Put a model on the Hugging Face Hub, where ``load("hub:owner/name")`` finds it.

    Args:
        model: A table's model, or what ``attach`` returned, of which the attached part goes alone.
        name: ``owner/name``.
        scores: What the card shall tell of how good it is, beside how it was made.
        private: Whether only you may see it, if it is not there yet.
        slim: Write weights in half precision; see ``save``.

    Returns:
        Its address.

    Raises:
        ImportError: If huggingface_hub is not installed.
    """
    check_name(name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(model, folder, slim=slim)
        (folder / CARD).write_text(card(model, name, scores or {}), encoding="utf-8")
        return upload(folder, name, private=private, message="Add a model of postmatch")


def card(model: TableModel | MatchedVAE, name: str, scores: Mapping[str, float]) -> str:
    """Return a model card, Markdown with a head that the Hub reads."""
    told, load, facts, tag = _told(model, name)
    head = ["---", "library_name: postmatch", "tags:", "- posterior-matching", "- vae", f"- {tag}"]
    lines = [*head, "---", "", f"# {name.partition('/')[2]}", "", told, _METHOD, ""]
    lines += ["```python", "import postmatch", "", load, "```", ""]
    if scores:
        lines += ["## Scores", "", *_rows(scores), ""]
    lines += ["## How it was made", "", *_rows(facts)]
    return "\n".join(lines) + "\n"


def _told(model: TableModel | MatchedVAE, name: str) -> tuple[str, str, Mapping[str, Any], str]:
    """Return what a model is, how it is loaded, its facts, and what the Hub files it under."""
    if isinstance(model, TableModel):
        count = len(model.table.columns)
        told = f"A model of a table with {count} columns, which fills holes, samples and scores."
        return told, f'model = postmatch.load("hub:{name}")', model.facts, "tabular"
    assert isinstance(model.partial, AttachedEncoder)  # save has refused all others
    shapes = model.partial.shapes
    told = (
        f"An encoder of partly observed rows of shape {shapes.features}, attached to a VAE that is "
        "not part of it: load it with that VAE, which is recognised by a digest of its weights."
    )
    assumed = [f"{told_}." for told_ in model.vae.assumptions]
    if assumed:
        told += " Assumed on the VAE's behalf: " + " ".join(assumed)
    return told, f'model = postmatch.load("hub:{name}", vae=mine)', model.partial.facts, "attached"


def _rows(numbers: Mapping[str, Any]) -> list[str]:
    """Return a table of plain facts; what is longer than a number or a word is left out."""
    plain = {k: v for k, v in numbers.items() if isinstance(v, int | float | str)}
    lines = ["| | |", "|---|---|"]
    return lines + [f"| {k.replace('_', ' ')} | {_number(v)} |" for k, v in plain.items()]


def _number(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
