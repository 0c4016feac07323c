"""Training that may be cut off at any moment: what is on the disk is enough to go on."""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from postmatch.folders import digest, parsed, to_json, write_beside

FORMAT_VERSION = 1
TENSORS, FACTS, LOG = "state.safetensors", "state.json", "log.jsonl"


class State(NamedTuple):
    """All that a run is: tensors on the CPU, and plain JSON."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


@final
@dataclass(frozen=True)
class Checkpoints:
    """The latest states of one run, each a folder of its own.

    A state is written aside and then given its name in one step, so whenever a run is killed, the
    newest folder with a proper name is complete.

    Args:
        folder: Holds the states, ``log.jsonl`` and nothing else.
        about: What is trained on what; states of anything else are refused.
        every_seconds: How often a run saves.
        keep: How many states stay; two, so that a damaged file costs a minute and not a run.
    """

    folder: Path
    about: str = ""
    every_seconds: float = 60.0
    keep: int = 2

    def save(self, step: int, state: State) -> None:
        """Add a state, and remove those that are too old."""
        tensors = safetensors.save({k: v.contiguous() for k, v in state.tensors.items()})
        head = {"format_version": FORMAT_VERSION, "about": self.about, "sha256": digest(tensors)}
        place = self.folder / f"step-{step:010}"
        partial = write_beside(
            place, {TENSORS: tensors, FACTS: to_json({**head, "facts": state.facts})}
        )
        try:
            if place.exists():  # a run that was resumed has come to the same step again
                shutil.rmtree(place)
            partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        for old in self._places()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        for cut_off in self.folder.glob(".step-*.part"):
            shutil.rmtree(cut_off, ignore_errors=True)

    def load(self) -> State | None:
        """Return the newest state that is sound; None if there is none.

        Raises:
            ValueError: If it is the state of another run.
        """
        for place in reversed(self._places()):
            try:
                about, state = _read(place)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                warnings.warn(f"{place} cannot be used: {error}", stacklevel=2)
                continue
            if about != self.about:
                raise ValueError(
                    f"{self.folder} holds an unfinished run on other data, or of another seed"
                )
            return state
        return None

    def log(self, line: Mapping[str, Any]) -> None:
        """Add a line to the log, which ends where the run stands."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def cut_log(self, step: int) -> None:
        """Forget what was logged after a step: the run goes on from there."""
        path = self.folder / LOG
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _logged_at(line) <= step]
            path.write_text("".join(f"{line}\n" for line in kept))

    def clear(self) -> None:
        """Remove all states."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _places(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())


def run_on(rows: Tensor, seed: int) -> str:
    """Return what a run on these rows is about."""
    return digest(rows.cpu().numpy().tobytes() + str(seed).encode())


def _read(place: Path) -> tuple[str, State]:
    content = parsed((place / FACTS).read_bytes(), FACTS)
    version = content["format_version"]
    if version != FORMAT_VERSION:
        raise ValueError(f"written in format {version}, this one reads {FORMAT_VERSION}")
    tensors = (place / TENSORS).read_bytes()
    if digest(tensors) != content["sha256"]:
        raise ValueError(f"{TENSORS} is damaged")
    facts: Mapping[str, Any] = content["facts"]
    return content["about"], State(safetensors.load(tensors), dict(facts))


def _logged_at(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line cut off by a kill
