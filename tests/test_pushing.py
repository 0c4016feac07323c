"""Models move over the Hub and come back the same; nothing else is fetched, and nothing is run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from loopback_hub import Hub, loopback_hub
from postmatch import load, push, save
from postmatch.pushing import card
from postmatch.saving import CONFIG, TABLE, WEIGHTS
from small_models import people, people_model
from test_external import Plain
from test_saving_attached import answers, attached

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with loopback_hub() as there:
        monkeypatch.setattr(constants, "ENDPOINT", there.address)
        files = f"{there.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setenv("HF_TOKEN", "hf_nobody")
        yield there


def test_a_table_moves_over_the_hub(hub: Hub) -> None:
    frame, model = people()[:20], people_model()
    assert push(model, "someone/people", private=True) == f"{hub.address}/someone/people"
    (told,) = hub.created
    assert "private" in (told.get("visibility"), *(key for key in told if told[key] is True))
    assert sorted(hub.repositories["someone/people"]) == ["README.md", CONFIG, TABLE, WEIGHTS]
    loaded = load("hub:someone/people", device="cpu")
    pd.testing.assert_frame_equal(loaded.impute(frame), model.impute(frame), check_exact=True)
    np.testing.assert_array_equal(loaded.score(frame), model.score(frame))


def test_an_attached_part_moves_over_the_hub_alone(hub: Hub) -> None:
    model, x = attached("hierarchy")
    push(model, "someone/part")
    loaded = load("hub:someone/part@main", vae=model.vae)
    assert torch.equal(answers(loaded, x), answers(model, x))
    with pytest.raises(ValueError, match="holds what was attached to a VAE"):
        load("hub:someone/part")


def test_nothing_but_a_models_own_files_is_fetched(hub: Hub) -> None:
    model, _ = attached()
    push(model, "someone/part")
    hub.repositories["someone/part"]["modeling.py"] = b"raise SystemExit"
    load("hub:someone/part", vae=model.vae)
    fetched = {path.rsplit("/", 1)[1] for path in hub.asked if "/resolve/" in path}
    assert fetched == {CONFIG, WEIGHTS}


def test_a_damaged_file_on_the_hub_is_noticed(hub: Hub) -> None:
    model, _ = attached()
    push(model, "someone/part")
    files = hub.repositories["someone/part"]
    files[WEIGHTS] = files[WEIGHTS][:-1] + b"?"
    with pytest.raises(ValueError, match=f"{WEIGHTS} is damaged"):
        load("hub:someone/part", vae=model.vae)


@pytest.mark.parametrize("place", ["someone/nothing", "someone/part@never"])
def test_what_is_not_there_is_told(hub: Hub, place: str) -> None:
    hub.repositories["someone/part"] = {}
    with pytest.raises(FileNotFoundError, match=f"hub:{place}: no such model"):
        load(f"hub:{place}")


@pytest.mark.parametrize("name", ["people", "a/b/c", "../etc", "someone/"])
def test_a_name_must_have_an_owner(name: str) -> None:
    with pytest.raises(ValueError, match="called owner/name"):
        load(f"hub:{name}")
    with pytest.raises(ValueError, match="called owner/name"):
        push(people_model(), name)


def test_a_card_tells_scores_facts_and_how_to_load() -> None:
    told = card(people_model(), "someone/people", {"nrmse": 0.51234, "coverage": 0.9})
    assert told.startswith("---\nlibrary_name: postmatch\n")
    assert "# people\n\nA model of a table with 6 columns" in told
    assert 'postmatch.load("hub:someone/people")' in told
    assert "| nrmse | 0.5123 |\n| coverage | 0.9 |" in told
    assert f"| rows | {people_model().facts['rows']} |" in told


def test_a_card_tells_what_was_assumed_of_the_vae() -> None:
    from postmatch.vaes.external import from_functions
    from test_attaching import small

    module, x = Plain(), torch.randn(20, 5)
    with pytest.warns(UserWarning, match="assumed"):
        vae = from_functions(module.encode, module.decode, module.prior, x)
    told = card(small(vae, x), "someone/part", {})
    assert f"Assumed on the VAE's behalf: {vae.assumptions[0]}." in told
    assert 'load("hub:someone/part", vae=mine)' in told


def test_a_folder_that_is_called_like_the_hub_is_a_path(tmp_path: Path) -> None:
    save(people_model(), tmp_path / "hub:people")
    assert load(tmp_path / "hub:people", device="cpu").facts == people_model().facts


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'postmatch\[hub\]'"):
        load("hub:someone/people")
