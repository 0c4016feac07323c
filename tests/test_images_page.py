"""The page about images holds what the results say, and nothing that they do not."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from postmatch.image_files import write_image
from postmatch.recipes.inpainting_config import Model, config_of
from postmatch.recipes.results import write_result
from small_zoo import result_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import render_images
from images_remarks import listed
from render_costs import cost_row
from render_images import command, render

ROOT = Path(__file__).parents[1]
SCORES = {
    "psnr": 21.2344,
    "psnr_std": 0.0321,
    "psnr_per_sample": 18.7654,
    "psnr_per_sample_std": 0.0456,
    "precision": 0.9136,
    "precision_std": 0.0042,
    "recall": 0.9874,
    "recall_std": 0.0016,
}
STEP = {
    "benchmark": "partial_cost",
    "dataset": "mnist",
    "model": "vdvae",
    "parameters": {"vae": 4_000, "both": 6_000},
    "ms_vae": 8.0,
    "ms_both": 10.0,
    "batch_size": 128,
    "precision": "bfloat16",
    "seed": 0,
    "commit": "abc1234",
    "hardware": "Some GPU",
}


def judged(dataset: str, model: str, **changes: Any) -> dict[str, Any]:
    result = result_of(dataset, "vdvae", metrics=SCORES)
    config = result["config"] | {"steps": 30_000}  # of which nothing else matters here
    return result | {"model": model, "config": config} | changes


def page(*results: dict[str, Any], pictures: tuple[str, ...] = (), **rest: Any) -> str:
    there = {name: f"img/{name}" for name in pictures}
    return render({(r["dataset"], r["model"]): r for r in results}, there, **rest)


def rows_of(text: str, section: str) -> list[list[str]]:
    """Return the cells of all tables below a heading, without their headings."""
    lines = text.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    rulers = [i for i, row in enumerate(cells) if row[0] == "---"]
    heads = {*rulers, *(i - 1 for i in rulers)}
    return [row for i, row in enumerate(cells) if i not in heads]


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


def test_a_training_that_time_ended_tells_how_far_it_came() -> None:
    cut = judged("mnist", "vdvae", steps=7_301, train_minutes=6.41)
    assert rows_of(page(cut), "MNIST")[-1][4] == "7,301 of 30,000"
    typed = "postmatch reproduce inpainting --dataset mnist --model vdvae"
    assert command(cut) == f"{typed} --max-minutes 6.4"
    assert command(judged("mnist", "vdvae")) == typed
    twice = cut | {"trainings": 2, "steps": 12_000}
    assert rows_of(page(twice), "MNIST")[-1][4] == "12,000"
    assert command(twice) == f"{typed}  # and 1 more with --go-on, 6.4 minutes in all"
    peer = judged("omniglot", "vaeac")
    assert command(peer) == "python benchmarks/baselines/image_run.py --dataset omniglot"


def test_a_result_of_other_test_images_says_so() -> None:
    few = judged("mnist", "vaeac", rows={"train": 54_000, "test": 500})
    assert "10,000 test images. (VAEAC: 500.)" in page(judged("mnist", "vdvae"), few)
    assert "10,000 test images.\n" in page(judged("mnist", "vdvae"))
    once = judged("mnist", "vqvae", mask_seeds=[0])
    assert "(VQ-VAE: 1 of 5 draws of masks.)" in page(
        judged("mnist", "vdvae", mask_seeds=5 * [0]), once
    )


def line_of(model: str, **trained: Any) -> dict[str, Any]:
    """Return a line of hole_kinds.py."""
    of = {"blank": (2, 60.0, 0.5, 0.9), "pixels": (10, 27.0, 0.004, 0.001)}
    of |= {"areas": (30, 18.0, 0.02, 0.011), "all": (42, 22.25, 0.3, 0.4)}
    names = ("images", "psnr", "error", "spread")
    kinds = {kind: dict(zip(names, values, strict=True)) for kind, values in of.items()}
    return {"dataset": "omniglot", "model": model, "trained": trained, "kinds": kinds}


def test_kinds_of_holes_stand_below_their_data_set() -> None:
    ours, peer = judged("omniglot", "vdvae"), judged("omniglot", "vaeac")
    told = {name: ours[name] for name in ("train_minutes", "steps", "commit")}
    lines = [line_of("vaeac", **told | {"steps": 7_001}), line_of("vdvae", **told)]
    lines[0]["kinds"]["areas"]["psnr"] = 18.4
    text = page(ours, peer, judged("mnist", "vdvae"), kinds=lines)
    cells = ["22.25", "60.00", "20.25"]  # of strokes 3 parts areas, 1 part pixels
    cells += ["27.00", "4.00", "1.00", "18.00", "20.00", "11.00"]
    better = [*cells[:2], "20.55", *cells[3:6], "18.40", *cells[7:]]
    assert rows_of(text, "Omniglot")[-2:] == [["VDVAE", *cells], ["VAEAC", *better]]
    assert "By strokes alone the order is: VAEAC, VDVAE.\n" in text
    assert "of 42 test\nimages with one draw of masks. 2 of their holes" in text
    assert "VAEAC is here one of" in text
    assert "and 7,001 steps." in text
    assert "VDVAE is here" not in text
    assert "hole_kinds.py" not in page(judged("mnist", "vdvae"), kinds=lines)


def test_what_impute_returns_has_a_column_where_it_is_known() -> None:
    ours, peer = line_of("vdvae"), line_of("vaeac")
    results = judged("omniglot", "vdvae"), judged("omniglot", "vaeac")
    assert "**Impute**" not in page(*results, kinds=[ours, peer])
    ours["kinds"]["all"]["imputed"] = 22.5
    text = page(*results, kinds=[ours, peer])
    assert "the mean of 32 draws" in text
    assert "| method | all | impute | no stroke |" in text
    found = {name: cells for name, *cells in rows_of(text, "Omniglot")[-2:]}
    assert found["VDVAE"][:3] == ["22.25", "22.50", "60.00"]
    assert found["VAEAC"][:3] == ["22.25", "", "60.00"]


def test_where_all_holes_have_strokes_nothing_is_said_of_others() -> None:
    line = line_of("vdvae") | {"dataset": "mnist"}
    line["kinds"]["blank"] = {"images": 0, "psnr": None, "error": None, "spread": None}
    text = page(judged("mnist", "vdvae"), kinds=[line])
    cells = ["22.25", "27.00", "4.00", "1.00", "18.00", "20.00", "11.00"]
    assert rows_of(text, "MNIST")[-1] == ["VDVAE", *cells]
    assert "strokes" not in text.split("hole_kinds.py`:")[1].split("## ")[0]
    assert "with one draw of masks. **Error** is" in text


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


def test_costs_are_those_of_the_last_run_and_their_ratios() -> None:
    codes = STEP | {"model": "vqvae", "ms_partial": 4.0, "parameters": {"vae": 100, "both": 250}}
    del codes["ms_both"]
    codes["parameters"]["prior"] = 90
    lines = [STEP | {"ms_both": 99.0}, STEP, codes]
    text = page(judged("mnist", "vdvae"), costs=lines)
    rest = ["128", "bfloat16", "Some GPU", "abc1234"]
    assert rows_of(text, "What the partial posterior costs") == [
        ["VQ-VAE", "100", "250", "+150%", "8.00", "(4.00)", "+50%", *rest],
        ["VDVAE", "4,000", "6,000", "+50%", "8.00", "10.00", "+25%", *rest],
    ]
    assert "Of its parameters, 90 are those of its prior" in text
    # A measurement, and not made to look well.
    assert cost_row(STEP | {"ms_both": 6.0})[5] == "-25%"


def test_what_was_trained_another_time_stands_with_its_data_set() -> None:
    line = {"model": "vaeac", "side_by_side": 6, "minutes": 12.513, "steps": 9_481, **SCORES}
    line |= {"extractor": "vqvae"}  # as of a result that tells none
    text = page(
        judged("mnist", "vqvae"),
        judged("omniglot", "vqvae"),
        beside=[
            line | {"dataset": "omniglot"},
            line | {"dataset": "omniglot", "model": "vqvae", "changed": {"turned": True}},
            line | {"dataset": "celeba"},
        ],
    )
    scores = ["21.234 ± 0.032", "0.914 ± 0.004", "0.987 ± 0.002"]
    ran = ["6", "12.5", "9,481", *scores, ""]
    assert others_of(text, "Omniglot") == [
        ["VAEAC", "", *ran],
        ["VQ-VAE", "drawings turned and mirrored in eight ways", *ran],
    ]
    assert text.count("Trained other times") == 1
    more = page(judged("mnist", "vqvae"), beside=[line | {"dataset": "mnist"} | drawn()["metrics"]])
    assert others_of(more, "MNIST") == [["VAEAC", "", *ran[:-1], "21.134 ± 0.032"]]


def others_of(text: str, section: str) -> list[list[str]]:
    """Return the cells of the table of other trainings."""
    return [row for row in rows_of(text, section) if len(row) == 9]


def test_a_peer_with_fewer_minutes_is_said_to_have_had_them() -> None:
    ours, peer = judged("mnist", "vdvae"), judged("mnist", "vaeac")  # for 12.345 minutes
    assert "fewer minutes" not in page(ours)
    assert "fewer minutes" not in page(ours, peer | {"train_minutes": 11.9})
    text = page(ours, judged("mnist", "vqvae"), peer | {"train_minutes": 11.7})
    assert "VAEAC had fewer minutes than VQ-VAE and VDVAE.\n" in text


def test_the_page_says_in_what_the_peer_is_ahead() -> None:
    ours, peer = judged("mnist", "vdvae"), judged("mnist", "vaeac")
    assert "is ahead" not in page(ours)
    assert "is ahead" not in page(ours, peer)  # by equal figures
    better = {"psnr": 21.239, "precision": 0.9141, "recall": 0.988}
    text = page(ours, judged("mnist", "vqvae"), peer | {"metrics": peer["metrics"] | better})
    which = "PSNR of the mean and recall"
    assert f"VAEAC is ahead of VQ-VAE in {which}; of VDVAE in {which}.\n" in text
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def drawn(**changes: float) -> dict[str, Any]:
    """Return scores with those of drawn pixels, which are a tenth less but for changes."""
    of_pixels = {
        f"drawn_{name}": value - (0 if name.endswith("_std") else 0.1)
        for name, value in SCORES.items()
    }
    return {"metrics": SCORES | of_pixels | changes}


def test_drawn_pixels_have_a_table_of_the_models_that_were_judged_by_them() -> None:
    text = page(judged("mnist", "vqvae"), judged("mnist", "vdvae") | drawn())
    table = text.split("| pixels drawn, too |")[1].split("\n\n")[0]
    cells = "| VDVAE | 21.134 ± 0.032 | 18.665 ± 0.046 | 0.814 ± 0.004 | 0.887 ± 0.002 |"
    assert table.splitlines()[2:] == [cells]
    assert "| pixels drawn, too |" not in page(judged("mnist", "vdvae"))


def test_the_page_says_in_what_the_peer_is_ahead_with_pixels_drawn() -> None:
    ours, peer = judged("mnist", "vdvae"), judged("mnist", "vaeac")
    assert "is ahead" not in page(ours | drawn(), peer | drawn())
    better = drawn(drawn_psnr=21.2, drawn_precision=0.5)
    said = "With pixels drawn, VAEAC is ahead of VDVAE in PSNR of the mean.\n"
    # The other model was not judged so, and nothing is said of it.
    text = page(judged("mnist", "vqvae"), ours | drawn(), peer | better)
    assert text.count("is ahead") == 1
    assert said in text


def test_a_model_whose_fillings_are_all_one_is_named() -> None:
    collapsed = {"metrics": SCORES | {"psnr_per_sample": SCORES["psnr"] - 0.004}}
    text = page(judged("mnist", "vdvae"), judged("mnist", "vaeac") | collapsed)
    assert "fillings of an image by VAEAC are one" in text
    assert "are one, to" not in page(judged("mnist", "vdvae"), judged("mnist", "vaeac"))


def test_scores_of_several_classifiers_are_said_to_be_so() -> None:
    one, two = judged("mnist", "conv"), judged("mnist", "vdvae")
    said = "Judged by another classifier than the rest"
    assert said in page(one, two)
    same, other = {"extractor": {"digest": "abc"}}, {"extractor": {"digest": "def"}}
    assert said in page(one | same, two | other)
    assert said in page(one | same, two)
    assert said not in page(one | same, two | same)
    assert said not in page(one | same, two | same, judged("omniglot", "vdvae") | other)
    peer = judged("mnist", "vaeac")
    assert f"{said}, trained alike: plain VAE." in page(one, two | same, peer | same)


def test_a_step_of_another_network_than_that_of_the_result_says_so() -> None:
    result = judged("mnist", "vdvae", parameters={"vae": 4_000, "partial": 2_000})
    assert "one before it" not in page(result, costs=[STEP])
    result["parameters"]["partial"] = 2_001
    assert "one before it: VDVAE on Some GPU.\n" in page(result, costs=[STEP])


def test_a_model_whose_settings_have_changed_is_named() -> None:
    def trained(model: Model, **settings: Any) -> dict[str, Any]:
        config = dataclasses.asdict(config_of("omniglot", model)) | settings
        return judged("omniglot", model, config=json.loads(json.dumps(config)))

    same, codes = trained("vqvae"), trained("vqvae", context_blocks=[1, 1, 1, 1])
    assert "have changed" not in page(same, judged("omniglot", "vaeac"))
    assert "have changed since: VQ-VAE of Omniglot." in page(codes)
    # A hierarchy has no codes, so that what is said of them is nothing to it.
    assert "have changed" not in page(trained("vdvae", num_codes=7, prior_width=3))
    assert "have changed since: VDVAE of Omniglot." in page(trained("vdvae", shift=5))


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


def test_scores_by_another_classifier_stand_in_parentheses() -> None:
    ours = judged("mnist", "vdvae") | {"extractor": {"digest": "abc"}}
    line = {"dataset": "mnist", "model": "vdvae", "side_by_side": 1, "minutes": 2.0, "steps": 7}
    line |= SCORES
    known, unknown = line | {"extractor": "abc"}, line | {"extractor": "xyz"}
    text = page(ours, beside=[known])
    assert "in parentheses" not in text
    assert rows_of(text, "MNIST")[-1][5:8] == ["21.234 ± 0.032", "0.914 ± 0.004", "0.987 ± 0.002"]
    for other in (unknown, line):
        text = page(ours, beside=[known, other])
        assert "Figures in parentheses are by another" in text
        marked = ["21.234 ± 0.032", "(0.914 ± 0.004)", "(0.987 ± 0.002)"]
        assert rows_of(text, "MNIST")[-1][5:8] == marked
        assert rows_of(text, "MNIST")[-2][6] == "0.914 ± 0.004"


def test_models_of_which_no_pixels_were_drawn_are_named() -> None:
    drawn = judged("mnist", "vqvae", metrics=SCORES | {f"drawn_{k}": v for k, v in SCORES.items()})
    bare, line = judged("mnist", "vdvae"), {"dataset": "mnist", "model": "vdvae", **SCORES}
    line |= {"side_by_side": 1, "minutes": 2.0, "steps": 7}
    assert "No pixels were drawn of VDVAE.\n" in page(drawn, bare, beside=[line])
    line |= drawn["metrics"]
    text = page(drawn, bare, beside=[line])
    assert "No pixels were drawn of VDVAE. Those of other trainings, below, were.\n" in text
    assert "No pixels were drawn" not in page(drawn)
    assert "No pixels were drawn" not in page(judged("mnist", "vdvae"))


def test_speed_is_that_of_the_last_line_on_the_same_and_of_the_fastest_step() -> None:
    about = {"hardware": "Some CPU", "commit": "abc1234"}
    fill = about | {"benchmark": "inpaint_speed", "model": "mnist-vdvae", "draws": 6, "ms": 99.6}
    codes = about | {
        "benchmark": "pixelcnn_sampling", "grid": [7, 7], "batch": 32, "ms_cached": 96.4,
        "ms_naive": 3711.6, "speedup": 38.5, "differences": 0, "parameters": 2_277_856,
    }  # fmt: skip
    step = about | {"benchmark": "hierarchy_step", "batch_size": 128, "parameters": 7_145_118}
    lines = [
        fill | {"ms": 1e4}, fill, codes | {"ms_cached": 1e4}, codes, {"benchmark": "scaling"},
        step | {"ms_per_step": 24.83}, step | {"ms_per_step": 26.17},
    ]  # fmt: skip
    text = page(judged("mnist", "vdvae"), speeds=lines)
    assert rows_of(text, "How fast") == [
        ["mnist-vdvae", "6", "100", "Some CPU", "abc1234"],
        ["7 x 7", "2,277,856", "32", "96", "3,712", "38", "0", "Some CPU", "abc1234"],
    ]
    assert "took 24.8 ms on\nan Some CPU (batch 128, 7,145,118 parameters" in text
    assert "## How fast" not in page(judged("mnist", "vdvae"), speeds=[{"benchmark": "scaling"}])


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
