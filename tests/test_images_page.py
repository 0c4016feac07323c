"""The page about images holds what the results say, and nothing that they do not."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from postmatch.image_files import write_image
from postmatch.recipes.results import write_result
from small_page import ROOT, STEP, judged, page, rows_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import render_images


def test_every_number_of_a_result_stands_with_its_spread_and_its_source() -> None:
    rows = rows_of(page(judged("mnist", "vdvae")), "MNIST")
    scores = ["21.234 ± 0.032", "18.765 ± 0.046", "0.914 ± 0.004", "0.987 ± 0.002"]
    assert rows[0] == ["VDVAE", *scores]
    run = ["4,540,000", "2,110,000", "12.3", "30,000", "Some GPU", "7", "abc1234"]
    assert rows[-1] == ["VDVAE", *run]


def test_quoted_rows_are_of_that_data_set_and_say_that_they_are_quoted() -> None:
    text = page(judged("mnist", "vdvae"), judged("omniglot", "conv"))
    mnist, omniglot = (rows_of(text, name)[1:4] for name in ("MNIST", "Omniglot"))
    assert mnist[0] == ["VDVAE + PM (quoted)", "21.603", "", "0.996", "0.996"]
    assert omniglot[2] == ["VAEAC (quoted)", "17.693", "", "0.525", "0.926"]
    assert all(row[0].endswith("(quoted)") for row in mnist + omniglot)


def test_what_has_no_result_is_not_mentioned() -> None:
    text = page(judged("omniglot", "vqvae"))
    assert "## MNIST" not in text
    assert "## CelebA" not in text
    assert "plain VAE" not in text
    assert "`vdvae`" not in text
    assert "## What the partial posterior costs" not in text
    assert "](img/" not in text


def test_the_page_tells_which_models_took_other_steps_than_the_rest() -> None:
    config = judged("omniglot", "conv")["config"] | {"orthogonal_rate": 0.0}
    ours, adam = judged("mnist", "vdvae"), judged("omniglot", "conv", config=config)
    assert "(Muon)" in page(ours, adam)
    assert "Trained by Adam: plain VAE of Omniglot.\n" in page(ours, adam)
    assert "Trained by Adam" not in page(ours)
    assert "(Muon)" not in page(adam)


def test_models_stand_in_one_order_whatever_that_of_the_files() -> None:
    models = ("vaeac", "vdvae-paper", "vdvae", "conv", "vqvae")
    rows = rows_of(page(*(judged("mnist", m) for m in models)), "MNIST")
    names = ["plain VAE", "VQ-VAE", "VDVAE", "VDVAE, the paper's levels", "VAEAC"]
    assert [row[0] for row in rows[:5]] == names
    assert [row[0] for row in rows[-5:]] == names


def test_a_model_without_a_partial_posterior_has_all_its_parameters_in_one_place() -> None:
    parts = {"proposal": 1_000, "prior": 2_000, "generator": 3_500}
    rows = rows_of(page(judged("mnist", "vaeac", parameters=parts)), "MNIST")
    assert rows[-1][:3] == ["VAEAC", "6,500", ""]


def test_only_pictures_that_are_there_are_shown() -> None:
    results = judged("mnist", "vdvae"), judged("omniglot", "vdvae")
    there = ("inpainting-mnist-vdvae.png", "inpainting-mnist-conv.png", "posterior-matching.svg")
    text = page(*results, pictures=there)
    assert "## Images from nothing" not in text
    assert "](img/inpainting-mnist-vdvae.png)" in text
    assert "](img/posterior-matching.svg)" in text
    assert text.count("](img/") == 2  # there is no result of the other


def test_images_from_nothing_have_a_section_of_their_own() -> None:
    there = ("inpainting-mnist-vdvae.png", "joint-mnist-vdvae.png")
    filled, joint = page(judged("mnist", "vdvae"), pictures=there).split("## Images from nothing")
    assert "](img/inpainting-mnist-vdvae.png)" in filled
    assert "](img/joint-mnist-vdvae.png)" in joint
    assert "](img/joint" not in filled
    assert "](img/inpainting" not in joint


def test_pictures_of_the_latent_space_stand_with_what_they_show() -> None:
    text = page(judged("mnist", "conv"), pictures=("mnist-latent.png",))
    own = text.split("## What a part leaves open\n")[1]
    assert "](img/mnist-latent.png)" in own
    assert "UMAP" in own
    assert "--plane" not in own
    assert "leaves open" not in page(judged("mnist", "conv"))


def test_the_page_is_made_of_judged_results_alone(tmp_path: Path) -> None:
    results, pictures = tmp_path / "results", tmp_path / "docs" / "img"
    pictures.mkdir(parents=True)
    (pictures / "inpainting-mnist-vqvae.png").touch()
    write_result(results / "inpainting-mnist-vqvae.json", judged("mnist", "vqvae"))
    unjudged = {k: v for k, v in judged("mnist", "conv").items() if k != "metrics"}
    write_result(results / "inpainting-mnist-conv.json", unjudged)
    (results / "partial_cost.jsonl").write_text(json.dumps(STEP) + "\n")
    output = tmp_path / "docs" / "images.md"
    words = ["--results", str(results), "--pictures", str(pictures), "--output", str(output)]
    render_images.main(words)
    text = output.read_text()
    assert [row[0] for row in rows_of(text, "MNIST")][0::4] == ["VQ-VAE", "VQ-VAE"]
    assert "](img/inpainting-mnist-vqvae.png)" in text
    assert len(rows_of(text, "What the partial posterior costs")) == 1


def test_the_page_that_is_there_is_that_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    there = Path("docs/images.md").read_text()
    output = tmp_path / "docs" / "images.md"
    output.parent.mkdir()
    (output.parent / "img").symlink_to(ROOT / "docs" / "img")
    render_images.main(["--pictures", str(output.parent / "img"), "--output", str(output)])
    assert output.read_text() == there, "run benchmarks/render_images.py"


def test_the_example_of_the_page_runs_and_fills_the_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    code = (ROOT / "docs" / "images.md").read_text().split("```python\n")[1].split("```")[0]
    digit, hole = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    digit[:, 4:24, 12:16], hole[:, 14:] = 255, 255
    monkeypatch.chdir(tmp_path)
    write_image("digit.png", digit)
    write_image("hole.png", hole)
    torch.manual_seed(0)
    known: dict[str, Any] = {}
    exec(code, known)
    assert known["draws"].shape == (6, 1, 1, 28, 28)
    assert known["best"].shape == (1, 1, 28, 28)
    # A stroke that is cut off goes on below, in the middle.
    below = known["best"][0, 0, 15:19]
    assert below[:, 11:17].mean() > 4.0 * below[:, :8].mean()
