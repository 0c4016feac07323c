"""Models in folders: safetensors and versioned JSON, never pickle; loading runs no code.

A folder holds ``config.json`` (what the model is, how it was made, digests of the other files),
``table.json`` (its columns) and ``weights.safetensors``, in half precision if the model is slim. A
part that was attached to a VAE has no table; its VAE stays where it is, and is told by a digest.
"""

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from postmatch.attached_encoder import AttachedEncoder
from postmatch.conditioning import MatchedVAE
from postmatch.folders import MODEL_FILES, Files, digest, parsed, to_json, write_beside
from postmatch.hub import PREFIX, fetch
from postmatch.models import TableModel, device_of
from postmatch.randomness import seeded
from postmatch.saving_attached import attached_config, attached_encoder, check_same
from postmatch.tables import Table
from postmatch.tabular import TableModelConfig, table_model
from postmatch.vaes.base import VAE
from postmatch.vaes.external import in_float32

FORMAT_VERSION = 2
CONFIG, TABLE, WEIGHTS = MODEL_FILES
_FULL = {"format_version", "kind", "config", "facts", "sha256"}
_KEYS = {1: _FULL, 2: _FULL | {"slim"}}
_ATTACHED = "attached"


def save(model: TableModel | MatchedVAE, folder: str | Path, *, slim: bool = False) -> None:
    """Write a model to a folder, which then holds either what it held before or all of the model.

    Args:
        model: What ``fit_table`` or ``load`` returned; of what ``attach`` did, the attached part is
            saved alone.
        folder: Where to.
        slim: Write weights in half precision (float16), to move a large model: half the size, and
            answers that agree to about a hundredth of a column's spread. ``load`` gives back
            float32. Constants stay exact, and so does a tensor whose largest entry is out of
            float16's range.

    Raises:
        ValueError: If the folder holds anything but a model.
        TypeError: If the model's class is one that ``load`` could not rebuild.
    """
    _put(_files(model, slim=slim), Path(folder))


@overload
def load(folder: str | Path, *, device: str | torch.device = "auto") -> TableModel: ...


@overload
def load(folder: str | Path, *, vae: VAE) -> MatchedVAE: ...


def load(
    folder: str | Path, *, device: str | torch.device = "auto", vae: VAE | None = None
) -> TableModel | MatchedVAE:
    """Return the model that ``save`` wrote.

    Args:
        folder: Where it is; ``hub:owner/name`` is on the Hugging Face Hub, and fetched from it.
        device: Where it shall answer; ``auto`` is a GPU if there is one.
        vae: What the folder's part was attached to; it answers where this is.

    Raises:
        FileNotFoundError: If the folder or one of its files is not there.
        ValueError: If a file is damaged, or was written by a newer version, or is no model; or if
            its part was attached to another VAE.
    """
    device = device_of(device)
    if isinstance(folder, str) and folder.startswith(PREFIX):
        folder = fetch(folder.removeprefix(PREFIX))
    folder = Path(folder)
    place = folder if folder.exists() else _previous(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"{folder}: no such model folder")
    try:
        config, files = _read(place)
        if vae is not None or config["kind"] == _ATTACHED:
            return _attached(config, files, vae)
        builder = _BUILDERS.get(config["kind"])
        if builder is None:
            known = ", ".join((*_BUILDERS, _ATTACHED))
            raise ValueError(f"the kind of model must be one of {known}, got {config['kind']!r}")
        return builder(config, files).to(device)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def is_model(folder: str | Path) -> bool:
    """Return whether there is a model to load, sound or not."""
    return any((place / CONFIG).is_file() for place in (Path(folder), _previous(Path(folder))))


def _files(model: TableModel | MatchedVAE, *, slim: bool) -> Files:
    """Return the contents of each file, the one that vouches for the others last."""
    files: Files = {}
    module: nn.Module
    if isinstance(model, TableModel):
        kind, module, facts = "table", model.model, model.facts
        told = dataclasses.asdict(model.config)
        files[TABLE] = to_json(model.table.to_json())
    elif isinstance(model, MatchedVAE) and isinstance(model.partial, AttachedEncoder):
        kind, module, facts = _ATTACHED, model.partial, model.partial.facts
        told = attached_config(model.vae, model.partial)
    else:
        raise TypeError(
            f"save knows how to rebuild a TableModel, not a {type(model).__name__}: "
            "save the state_dict() of a model built by hand, and its sizes, yourself"
        )
    files[WEIGHTS] = safetensors.save(_stored(module, slim=slim))
    config = {
        "format_version": 2 if slim else 1,  # the first one that knows of it
        "kind": kind,
        "config": told,
        "facts": facts,
        "sha256": {name: digest(data) for name, data in files.items()},
        **({"slim": True} if slim else {}),
    }
    return {**files, CONFIG: to_json(config)}


def _stored(model: nn.Module, *, slim: bool) -> dict[str, Tensor]:
    """Return a model's tensors as they are written; of a slim one, parameters in half precision."""
    state = {name: value.cpu().contiguous() for name, value in model.state_dict().items()}
    if slim:
        state |= {name: _slimmed(state[name]) for name, _ in model.named_parameters()}
    return state


def _slimmed(value: Tensor) -> Tensor:
    """Return a tensor in float16, or as it is if its largest entry is out of float16's range.

    That is 6e-5 to 65,504: within it no entry is off by more than half the last bit of the largest.
    """
    half = value.half()
    if value.numel() == 0:
        return half
    error = (value - half.to(value.dtype)).abs().max()
    return half if error <= 2.0**-11 * value.abs().max() else value  # False of a NaN


def _read(folder: Path) -> tuple[Mapping[str, Any], Files]:
    """Return the checked configuration and the contents of the files it vouches for."""
    config = parsed(_bytes(folder, CONFIG), CONFIG)
    version = config.get("format_version")
    if type(version) is not int or version < 1:
        raise ValueError(f"{CONFIG} is not that of a postmatch model")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"written by a newer postmatch (format {version}, this one reads up to "
            f"{FORMAT_VERSION}): upgrade postmatch to read it"
        )
    keys = _KEYS[version]
    if set(config) != keys:
        odd = ", ".join(sorted(set(config) ^ keys))
        raise ValueError(f"{CONFIG} must have the keys {', '.join(sorted(keys))}; check {odd}")
    digests = config["sha256"]
    names = (WEIGHTS,) if config["kind"] == _ATTACHED else (TABLE, WEIGHTS)
    if not isinstance(digests, dict) or set(digests) != set(names):
        raise ValueError(f"{CONFIG} must hold the digests of {' and '.join(names)}")
    files = {name: _bytes(folder, name) for name in names}
    for name, data in files.items():
        if digest(data) != digests[name]:
            raise ValueError(f"{name} is damaged: it is not the file that was saved")
    return config, files


def _table_model(config: Mapping[str, Any], files: Files) -> TableModel:
    table = Table.from_json(parsed(files[TABLE], TABLE))
    sizes = _sizes(config["config"])

    def build() -> nn.Module:
        return table_model(table.specs, sizes)

    model = _filled(build, config, files, f"{CONFIG} and {TABLE}")
    assert isinstance(model, MatchedVAE)
    return TableModel(table, model, sizes, config["facts"])


def _attached(config: Mapping[str, Any], files: Files, vae: VAE | None) -> MatchedVAE:
    """Return a VAE with the part that was attached to it."""
    if config["kind"] != _ATTACHED:
        raise ValueError(f"a model of kind {config['kind']!r} needs no vae to be loaded")
    if vae is None:
        raise ValueError("holds what was attached to a VAE: give that, load(folder, vae=...)")
    asked = in_float32(vae)
    check_same(asked, config["config"])

    def build() -> nn.Module:
        return attached_encoder(asked, config["config"], config["facts"])

    partial = _filled(build, config, files, f"{CONFIG} and the VAE")
    assert isinstance(partial, AttachedEncoder)
    device = next((p.device for p in asked.parameters()), torch.device("cpu"))
    model = MatchedVAE(asked, partial.to(device).eval())
    model.training = False  # not eval(), which would reach the VAE
    return model


def _filled(
    build: Callable[[], nn.Module], config: Mapping[str, Any], files: Files, fits: str
) -> nn.Module:
    """Return a module with the saved weights."""
    if not isinstance(config["facts"], dict):
        raise ValueError(f"facts must be an object, got {config['facts']!r}")
    slim = config.get("slim", False)
    if not isinstance(slim, bool):
        raise ValueError(f"slim must be true or false, got {slim!r}")
    try:
        weights = safetensors.load(files[WEIGHTS])
        with seeded(0):  # building draws weights, which the saved ones replace
            module = build()
        module.load_state_dict(weights)
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{WEIGHTS} does not fit {fits}: {reason}") from None
    for name, value in _stored(module, slim=slim).items():
        if (weights[name].dtype == torch.float16) != (value.dtype == torch.float16):
            raise ValueError(
                f"{WEIGHTS} does not fit {CONFIG}: {name} is {weights[name].dtype}, and slim {slim}"
            )
    return module


_BUILDERS: dict[str, Callable[[Mapping[str, Any], Files], TableModel]] = {"table": _table_model}


def _sizes(config: Any) -> TableModelConfig:
    """Return the sizes of a model, each checked."""
    fields = {field.name: field for field in dataclasses.fields(TableModelConfig)}
    if not isinstance(config, dict) or set(config) != set(fields):
        given = set(config) if isinstance(config, dict) else set()
        odd = ", ".join(sorted(given ^ set(fields)))
        raise ValueError(f"config must have exactly the sizes of a table's model; check {odd}")
    for name, value in config.items():
        wanted = fields[name].type
        allowed = (int, float) if wanted is float else (wanted,)
        if type(value) not in allowed or (isinstance(value, int | float) and not 0 <= value <= 1e6):
            raise ValueError(f"config: {name} cannot be {value!r}")
    return TableModelConfig(**config)


def _put(files: Files, folder: Path) -> None:
    """Write files to a new folder, and put it in the place of the old one."""
    folder = folder.resolve()  # through a link, so that the link stays
    previous = _previous(folder)
    if not folder.exists() and previous.exists():  # an earlier save was cut off half way
        previous.rename(folder)
    _check_place(folder)
    partial = write_beside(folder, files)
    try:
        if previous.exists():
            shutil.rmtree(previous)
        if folder.exists():
            folder.rename(previous)  # where load looks as long as there is no folder
        partial.rename(folder)
        shutil.rmtree(previous, ignore_errors=True)
    finally:  # also after Ctrl-C
        shutil.rmtree(partial, ignore_errors=True)
        if not folder.exists() and previous.exists():
            previous.rename(folder)


def _check_place(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"{folder}: a model is saved as a folder, and this is a file")
    here = {path.name for path in folder.iterdir()}
    if not here:
        return
    if not {CONFIG, WEIGHTS} <= here:
        raise ValueError(f"{folder}: is no model of postmatch, so it is not overwritten")
    strange = sorted(here - {CONFIG, TABLE, WEIGHTS})
    if strange:
        raise ValueError(f"{folder}: is not overwritten, because it also holds {strange[0]}")


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder}: the model lacks its {name}") from None
