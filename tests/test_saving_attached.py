"""What was attached is saved alone, and goes back to its own VAE or to none."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors
from torch import Tensor
from torch.distributions import Normal

from linear_gaussian import draw_rows, linear_gaussian
from postmatch import MatchedVAE, load, save
from postmatch.saving import CONFIG, WEIGHTS
from postmatch.vaes.base import VAE
from postmatch.vaes.external import from_functions
from small_models import people_model
from test_attaching import OURS, Foreign, independent_maps, small, state


def pair_of_levels() -> tuple[VAE, Tensor]:
    vae = from_functions(
        lambda x: (Normal(x[:, :1], 0.1), Normal(x[:, None, None, 1:], 0.1)),
        lambda z: Normal(torch.cat([z[0], z[1].flatten(1)], dim=1), 0.1),
        (Normal(torch.zeros(1), 1.0), Normal(torch.zeros(1, 1, 1), 1.0)),
    )
    return vae, torch.randn(20, 2)


def foreign(dtype: torch.dtype = torch.float32) -> tuple[VAE, Tensor]:
    return Foreign(dtype).eval().vae(), torch.randn(20, 5)


EVERY = {
    "vector": lambda: (linear_gaussian(3, 2), draw_rows(linear_gaussian(3, 2), 20)[0]),
    "map": lambda: independent_maps(20),
    "codes": OURS["VQVAE"],
    "hierarchy": OURS["HierarchicalVAE"],
    "table": OURS["TableVAE"],
    "levels": pair_of_levels,
    "foreign": foreign,
    "half": lambda: foreign(torch.float16),
}


def attached(name: str = "vector") -> tuple[MatchedVAE, Tensor]:
    vae, x = EVERY[name]()
    return small(vae.eval(), x), x


def answers(model: MatchedVAE, x: Tensor) -> Tensor:
    shape = (len(x), 1, *x.shape[2:]) if x.dim() == 4 else x.shape
    observed = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return model.given(x, observed).impute(4)


@pytest.mark.parametrize("name", EVERY)
def test_an_attached_part_comes_back_and_answers_the_same_to_the_bit(
    name: str, tmp_path: Path
) -> None:
    model, x = attached(name)
    save(model, tmp_path / "part")
    before = state(model.vae)
    loaded = load(tmp_path / "part", vae=model.vae)
    assert state(model.vae) == before
    assert torch.equal(answers(loaded, x), answers(model, x))
    assert loaded.partial.facts == model.partial.facts
    assert sorted(p.name for p in (tmp_path / "part").iterdir()) == [CONFIG, WEIGHTS]


def test_the_vae_itself_is_not_in_the_folder(tmp_path: Path) -> None:
    model, _ = attached("hierarchy")
    save(model, tmp_path / "part")
    saved = safetensors.load_file(tmp_path / "part" / WEIGHTS)
    assert set(saved) == set(model.partial.state_dict())
    own = {p.data_ptr() for p in model.vae.parameters()}
    assert not own & {p.data_ptr() for p in model.partial.parameters()}


@pytest.mark.parametrize("change", ["a weight", "the type", "a buffer"])
def test_another_vae_is_refused(change: str, tmp_path: Path) -> None:
    module, x = Foreign().eval(), torch.randn(20, 5)
    save(small(module.vae(), x), tmp_path / "part")
    other = copy.deepcopy(module)
    load(tmp_path / "part", vae=other.vae())  # the same weights elsewhere in memory
    with torch.no_grad():
        if change == "a weight":
            other.mean.weight[0, 0] += 1e-6
        elif change == "a buffer":
            other.up[1].running_mean[0] += 1e-6
        else:
            other.double()
    with pytest.raises(ValueError, match="part: vae must be the one that this part was attached"):
        load(tmp_path / "part", vae=other.vae())


def test_a_part_needs_its_vae_and_a_table_none(tmp_path: Path) -> None:
    model, _ = attached()
    save(model, tmp_path / "part")
    save(people_model(), tmp_path / "table")
    with pytest.raises(ValueError, match=r"give that, load\(folder, vae=...\)"):
        load(tmp_path / "part")
    with pytest.raises(ValueError, match="a model of kind 'table' needs no vae"):
        load(tmp_path / "table", vae=model.vae)


def test_a_slim_part_is_half_the_size_and_answers_alike(tmp_path: Path) -> None:
    model, x = attached()
    save(model, tmp_path / "full")
    save(model, tmp_path / "slim", slim=True)
    full, half = (safetensors.load_file(tmp_path / n / WEIGHTS) for n in ("full", "slim"))
    sizes = [sum(t.numel() * t.element_size() for t in w.values()) for w in (full, half)]
    assert sizes[1] < 0.6 * sizes[0]
    found = answers(load(tmp_path / "slim", vae=model.vae), x)
    assert (found - answers(model, x)).abs().max() < 1e-2


def changed(folder: Path, **entries: Any) -> None:
    path = folder / CONFIG
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "config": {**told["config"], **entries}}))


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"more": 1}, "check {'more'}"),
        ({"shapes": {}}, "shapes must have features"),
        ({"sizes": {}}, "sizes must have channels"),
        (
            {"shapes": {"features": [3], "pixels": False, "levels": [[-2]], "num_codes": 0}},
            "lists of whole numbers",
        ),
        (
            {"shapes": {"features": [4], "pixels": False, "levels": [[2]], "num_codes": 0}},
            "does not fit",
        ),
        (
            {"shapes": {"features": [3], "pixels": False, "levels": [], "num_codes": 0}},
            "levels and num_codes",
        ),
    ],
)
def test_a_wrong_configuration_of_a_part_is_refused(
    entries: dict[str, Any], told: str, tmp_path: Path
) -> None:
    model, _ = attached()
    save(model, tmp_path / "part")
    changed(tmp_path / "part", **entries)
    with pytest.raises(ValueError, match=f"part: .*{told}"):
        load(tmp_path / "part", vae=model.vae)


def test_sizes_beyond_reason_are_refused(tmp_path: Path) -> None:
    model, _ = attached()
    save(model, tmp_path / "part")
    sizes = json.loads((tmp_path / "part" / CONFIG).read_text())["config"]["sizes"]
    changed(tmp_path / "part", sizes={**sizes, "width": 10**9})
    with pytest.raises(ValueError, match="width cannot be 1000000000"):
        load(tmp_path / "part", vae=model.vae)


def test_functions_without_weights_cannot_be_told_apart(tmp_path: Path) -> None:
    vae, x = EVERY["levels"]()
    model = small(vae, x)
    save(model, tmp_path / "part")
    assert json.loads((tmp_path / "part" / CONFIG).read_text())["config"]["vae_sha256"] is None
    assert torch.equal(answers(load(tmp_path / "part", vae=vae), x), answers(model, x))
    with pytest.raises(ValueError, match="attached to"):  # but from a model that has some
        load(tmp_path / "part", vae=linear_gaussian(2, 2))
