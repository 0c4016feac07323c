"""Tables of the page about images: kinds of holes, costs, speed, and other trainings."""

import sys
from pathlib import Path
from typing import Any

from small_page import SCORES, STEP, drawn, judged, page, rows_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from render_costs import cost_row


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


def test_a_step_of_another_network_than_that_of_the_result_says_so() -> None:
    result = judged("mnist", "vdvae", parameters={"vae": 4_000, "partial": 2_000})
    assert "one before it" not in page(result, costs=[STEP])
    result["parameters"]["partial"] = 2_001
    assert "one before it: VDVAE on Some GPU.\n" in page(result, costs=[STEP])


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
