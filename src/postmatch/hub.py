"""Folders of models on the Hugging Face Hub, and back."""

import re
from pathlib import Path
from typing import Any

from postmatch.folders import CARD, MODEL_FILES

PREFIX = "hub:"
_NAME = re.compile(r"[a-zA-Z0-9][\w.-]*/[a-zA-Z0-9][\w.-]*")


def fetch(place: str) -> Path:
    """Return a folder with the files of a model, fetched if they are not here yet.

    Only the files that a model consists of are fetched, whatever else is there; none of them is
    ever run.

    Args:
        place: ``owner/name``, or ``owner/name@revision`` for a branch, a tag or a commit.

    Raises:
        ImportError: If huggingface_hub is not installed.
        FileNotFoundError: If there is no such model, or no such revision.
    """
    hub = _hub()
    name, _, revision = place.partition("@")
    check_name(name)
    try:
        found = hub.snapshot_download(
            name, revision=revision or None, allow_patterns=list(MODEL_FILES)
        )
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(f"{PREFIX}{place}: no such model: {reason}") from None
    return Path(found)


def upload(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Put a model's files and its card on the Hub in one commit, and return its address.

    The account is the one that ``hf auth login`` or ``HF_TOKEN`` told huggingface_hub.
    """
    hub = _hub()
    check_name(name)
    api = hub.HfApi()
    address = api.create_repo(name, private=private, exist_ok=True)
    api.upload_folder(
        repo_id=name,
        folder_path=folder,
        commit_message=message,
        allow_patterns=[*MODEL_FILES, CARD],
    )
    return str(address)


def check_name(name: str) -> None:
    """Raise unless a name is that of a model on the Hub."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a model on the Hub is called owner/name, got {name!r}")


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise ImportError(
            "huggingface_hub is an extra: install it with pip install 'postmatch[hub]'"
        ) from None
    return huggingface_hub
