"""What the page about images remarks on results, and what it does not."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from postmatch.recipes.inpainting_config import Model, config_of
from small_page import SCORES, drawn, judged, page, rows_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from images_remarks import listed
from render_images import command


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
