"""Saved models come back as they were, or not at all."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import torch as safetensors
from torch import nn

from postmatch import TableModel, folders, load, save
from postmatch.saving import CONFIG, TABLE, WEIGHTS, _slimmed, _stored, is_model
from small_models import fit_small, people, people_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(people_model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def slim(tmp_path: Path) -> Path:
    save(people_model(), tmp_path / "slim", slim=True)
    return tmp_path / "slim"


def change(folder: Path, **entries: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def others(folder: Path) -> list[str]:
    return [path.name for path in folder.parent.iterdir() if path != folder]


def test_a_loaded_model_gives_the_same_answers_to_the_bit(folder: Path) -> None:
    frame, model, loaded = people(), people_model(), load(folder, device="cpu")
    pd.testing.assert_frame_equal(loaded.impute(frame), model.impute(frame), check_exact=True)
    np.testing.assert_array_equal(loaded.score(frame[:20]), model.score(frame[:20]))
    pd.testing.assert_frame_equal(loaded.sample(frame, 1)[0], model.sample(frame, 1)[0])
    assert loaded.table == model.table
    assert (loaded.config, loaded.facts) == (model.config, model.facts)


def test_a_folder_holds_three_files_and_none_of_them_is_a_pickle(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, TABLE, WEIGHTS]
    config = json.loads((folder / CONFIG).read_text())
    assert (config["format_version"], config["kind"]) == (1, "table")
    assert config["facts"]["rows"] == 400
    assert others(folder) == []


def test_loading_leaves_the_random_state_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    load(folder, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_saving_again_replaces_the_model(folder: Path) -> None:
    other = fit_small(people(30), 2)
    save(other, folder)
    assert load(folder, device="cpu").facts["rows"] == 30
    assert others(folder) == []


def test_parent_folders_are_made_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "a" / "b", tmp_path / "empty"):
        assert not is_model(place)
        save(people_model(), place)
        assert is_model(place)


@pytest.mark.parametrize("name", [CONFIG, TABLE, WEIGHTS])
def test_a_truncated_file_is_noticed(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=f"model: {name} is damaged"):
        load(folder)


@pytest.mark.parametrize("name", [TABLE, WEIGHTS])
def test_a_changed_byte_is_noticed(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        load(folder)


@pytest.mark.parametrize("name", [CONFIG, TABLE, WEIGHTS])
def test_a_lost_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks its {name}"):
        load(folder)


def test_no_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such model folder"):
        load(tmp_path / "nothing")


def test_a_newer_version_is_told_as_such(folder: Path) -> None:
    change(folder, format_version=99, extra="unknown today")
    with pytest.raises(ValueError, match=r"newer postmatch \(format 99"):
        load(folder)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"kind": "vq"}, "kind of model must be one of table, attached, got 'vq'"),
        ({"format_version": "1"}, "not that of a postmatch model"),
        ({"more": 1}, "check more"),
        ({"sha256": {}}, "must hold the digests"),
        ({"facts": []}, "facts must be an object"),
        ({"config": {"latent_size": 4}}, "must have exactly the sizes"),
    ],
)
def test_a_wrong_configuration_is_refused(
    folder: Path, entries: dict[str, Any], reason: str
) -> None:
    change(folder, **entries)
    with pytest.raises(ValueError, match=reason):
        load(folder)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ({"depth": 3}, "check depth"),
        ({"width": 10**9}, "width cannot be 1000000000"),
        ({"width": "32"}, "width cannot be '32'"),
        ({"width": 48}, "does not fit"),
    ],
)
def test_sizes_are_checked(folder: Path, size: dict[str, Any], reason: str) -> None:
    config = json.loads((folder / CONFIG).read_text())["config"]
    change(folder, config={**config, **size})
    with pytest.raises(ValueError, match=reason):
        load(folder)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a loaded file ran code",))


def test_a_pickle_in_disguise_is_refused_and_not_run(folder: Path) -> None:
    data = pickle.dumps(Bomb())
    (folder / WEIGHTS).write_bytes(data)
    digests = json.loads((folder / CONFIG).read_text())["sha256"]
    change(folder, sha256={**digests, WEIGHTS: hashlib.sha256(data).hexdigest()})
    with pytest.raises(ValueError, match="does not fit"):
        load(folder)


def test_what_is_no_model_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    with pytest.raises(ValueError, match="is no model of postmatch"):
        save(people_model(), tmp_path / "thesis")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ValueError, match="this is a file"):
        save(people_model(), tmp_path / "file")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


def test_a_model_beside_a_stranger_is_not_overwritten(folder: Path) -> None:
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"also holds notes.txt"):
        save(people_model(), folder)
    assert load(folder).facts["rows"] == 400


@pytest.mark.parametrize("name", [TABLE, WEIGHTS, CONFIG])
def test_an_interrupted_save_leaves_the_old_model(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = folders._write

    def interrupted(path: Path, data: bytes) -> None:
        if path.name == name:
            raise KeyboardInterrupt
        write(path, data)

    other = fit_small(people(30), 2)
    monkeypatch.setattr(folders, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(other, folder)
    assert load(folder).facts["rows"] == 400
    assert others(folder) == []


def test_a_save_killed_between_old_and_new_leaves_the_old_model(folder: Path) -> None:
    folder.rename(folder.with_name(".model.previous"))  # all that a kill at the worst moment leaves
    assert is_model(folder)
    assert load(folder).facts["rows"] == 400
    save(fit_small(people(30), 2), folder)
    assert load(folder).facts["rows"] == 30
    assert others(folder) == []


def test_a_model_built_by_hand_is_not_saved() -> None:
    bare: Any = people_model().model
    with pytest.raises(TypeError, match="not a MatchedVAE"):
        save(bare, "nowhere")


def test_saving_and_loading_are_inverse_for_every_kind_of_column(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "date": pd.to_datetime(["2024-01-01", "2024-05-06", None, "2024-02-02"]),
            "text": ["é", "b", "é", None],
            "none": [None] * 4,
            "truth": pd.array([True, None, False, True], dtype="boolean"),
            "number": [1e9, -0.5, np.nan, 3.25],
        }
    )
    model: TableModel = fit_small(frame, 2, missing=["-999"])
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.table == model.table
    pd.testing.assert_frame_equal(loaded.impute(frame), model.impute(frame))


def test_a_slim_model_agrees_to_a_hundredth_of_a_spread(slim: Path) -> None:
    frame, model, loaded = people(), people_model(), load(slim, device="cpu")
    numbers = ["income", "weight"]
    spread = frame[numbers].std()
    wrong = (loaded.impute(frame)[numbers] - model.impute(frame)[numbers]).abs() / spread
    assert wrong.max().max() < 1e-2
    levels = [0.05, 0.5, 0.95]
    before, after = model.quantiles(frame, levels), loaded.quantiles(frame, levels)
    for name in numbers:
        each = np.stack([after[level][name] - before[level][name] for level in levels])
        # The root mean square: where a draw changes its component, one quantile may jump.
        assert np.sqrt((each**2).mean()) < 1e-2 * spread[name]
    chances = [each.predict(frame, "town").probabilities for each in (model, loaded)]
    np.testing.assert_allclose(chances[1], chances[0], atol=1e-2)
    np.testing.assert_allclose(loaded.score(frame), model.score(frame), atol=1e-2)


def test_a_slim_folder_is_half_the_size_and_says_what_it_is(folder: Path, slim: Path) -> None:
    full, half = ((place / WEIGHTS).stat().st_size for place in (folder, slim))
    assert 0.5 < half / full < 0.55
    config = json.loads((slim / CONFIG).read_text())
    assert (config["format_version"], config["slim"]) == (2, True)
    assert "slim" not in json.loads((folder / CONFIG).read_text())  # as older versions read it


def test_a_slim_model_is_loaded_in_float32_and_loses_nothing_more(slim: Path) -> None:
    loaded = load(slim, device="cpu")
    assert {value.dtype for value in loaded.model.state_dict().values()} == {torch.float32}
    again, full = slim.with_name("again"), slim.with_name("full")
    save(loaded, again, slim=True)
    assert (again / WEIGHTS).read_bytes() == (slim / WEIGHTS).read_bytes()
    save(loaded, full)
    same = load(full, device="cpu").impute(people(50))
    pd.testing.assert_frame_equal(same, loaded.impute(people(50)), check_exact=True)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.0, 1e-7, 65_504.0], torch.float16),
        ([0.0, 0.0], torch.float16),
        ([], torch.float16),
        ([1.0, -65_520.0], torch.float32),  # infinite in float16
        ([1e-7, 3e-7], torch.float32),  # 2 or 3 bits left
        ([1.0, float("nan")], torch.float32),
    ],
)
def test_a_tensor_beyond_the_range_of_half_precision_stays_as_it_is(
    value: list[float], dtype: torch.dtype
) -> None:
    kept = _slimmed(torch.tensor(value))
    assert kept.dtype == dtype
    if dtype == torch.float32:
        assert torch.equal(kept.nan_to_num(), torch.tensor(value).nan_to_num())


def test_constants_of_a_slim_model_stay_exact() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("edges", torch.tensor([1.0 + 2.0**-20, 1e9]))
    module.register_buffer("index", torch.tensor([100_001]))
    kept = _stored(module, slim=True)
    assert torch.equal(kept["edges"], torch.tensor([1.0 + 2.0**-20, 1e9]))
    assert torch.equal(kept["index"], torch.tensor([100_001]))
    assert (kept["weight"].dtype, kept["bias"].dtype) == (torch.float16, torch.float16)


def test_a_slim_model_with_a_huge_weight_comes_back_right(tmp_path: Path) -> None:
    model = fit_small(people(30), 2)
    name, huge = next(iter(model.model.named_parameters()))
    with torch.no_grad():
        huge.fill_(123_456.0)
    save(model, tmp_path / "slim", slim=True)
    loaded = load(tmp_path / "slim", device="cpu").model.state_dict()
    assert torch.equal(loaded[name], huge)
    assert safetensors.load_file(tmp_path / "slim" / WEIGHTS)[name].dtype == torch.float32


@pytest.mark.parametrize("name", [TABLE, WEIGHTS])
def test_a_changed_byte_of_a_slim_model_is_noticed(slim: Path, name: str) -> None:
    data = bytearray((slim / name).read_bytes())
    data[len(data) // 2] ^= 1
    (slim / name).write_bytes(bytes(data))
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        load(slim)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"slim": False}, "is torch.float16, and slim False"),
        ({"slim": "yes"}, "slim must be true or false, got 'yes'"),
        ({"format_version": 1}, "check slim"),
        ({"format_version": 3}, "newer postmatch"),
    ],
)
def test_what_a_slim_model_says_of_itself_must_be_true(
    slim: Path, entries: dict[str, Any], reason: str
) -> None:
    change(slim, **entries)
    with pytest.raises(ValueError, match=reason):
        load(slim)


def test_a_full_model_that_calls_itself_slim_is_refused(folder: Path) -> None:
    change(folder, format_version=2, slim=True)
    with pytest.raises(ValueError, match=r"is torch.float32, and slim True"):
        load(folder)
