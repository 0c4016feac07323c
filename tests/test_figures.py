"""The pictures of the documentation: what they show is true, and they can be made again."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from postmatch import zoo
from postmatch.data.images import Images
from postmatch.image_files import read_image
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.partial import MaskedEncoder
from postmatch.recipes.gallery import side_by_side
from postmatch.recipes.results import write_result
from postmatch.vaes.vq import VQVAE
from small_zoo import result_of, ship

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import diagrams
import figures


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that shipped models are looked for in."""
    place = tmp_path / "zoo"
    place.mkdir()
    monkeypatch.setattr(zoo, "FOLDER", place)
    return place


def labelled_noise(count: int = 400) -> Images:
    """Return images of noise, four of each class in a row."""
    labels = torch.arange(count) // 4
    pixels = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8)
    return Images("mnist", lambda _: (pixels, labels))


def test_images_of_a_gallery_are_spread_over_the_classes() -> None:
    images = labelled_noise()
    mixed = torch.randperm(400)
    shuffled = Images("mnist", lambda _: (images.test[mixed], images.test_labels[mixed]))
    chosen = figures.some_images(shuffled)
    classes = [int(images.test_labels[(images.test == one).flatten(1).all(1)][0]) for one in chosen]
    assert classes == [6, 18, 31, 43, 56, 68, 81, 93]


def test_a_gallery_is_written_pixel_for_pixel_below_its_labels(tmp_path: Path) -> None:
    columns = [torch.rand(2, 1, 28, 28) for _ in range(3 + figures.DRAWS)]
    picture = side_by_side(columns, figures.SCALE)
    places = {"image": 0.5, "seen": 1.5, "zeros": 2.5, "draws": 6.0}
    figures.write(figures.labelled(picture, len(columns), places), tmp_path / "gallery.png")
    written, _ = read_image(tmp_path / "gallery.png", 3)
    assert torch.equal(written[:, figures.HEAD :], picture)
    head = written[:, : figures.HEAD].amin(0)
    column = picture.shape[2] // len(columns)
    inked = [bool((part < 128).any()) for part in torch.split(head, column, dim=1)]
    assert inked[:3] == [True] * 3
    assert any(inked[3:])


def test_what_is_seen_is_left_alone_and_draws_differ_but_can_be_had_again(folder: Path) -> None:
    model = zoo.pretrained(ship(folder, "mnist", "vdvae"), device="cpu")
    x, observed = torch.rand(3, 1, 28, 28), torch.rand(3, 1, 28, 28) < 0.5
    zeros, *draws = figures.fillings(model, x, observed)
    assert len(draws) == figures.DRAWS
    for filled in (zeros, *draws):
        assert torch.equal(filled[observed], x[observed])
    assert not torch.equal(draws[0], draws[1])
    torch.manual_seed(5)
    for one, other in zip(figures.fillings(model, x, observed), (zeros, *draws), strict=True):
        assert torch.equal(one, other)


def test_images_from_nothing_are_of_the_partial_posterior_and_others_of_the_prior(
    folder: Path,
) -> None:
    model = zoo.pretrained(ship(folder, "mnist", "vqvae"), device="cpu")
    assert isinstance(model.vae, VQVAE)
    assert isinstance(model.partial, MaskedEncoder)
    told, prior_net = model.partial.head.net, model.vae.prior_net
    assert isinstance(told, PixelCNN)
    assert isinstance(prior_net, PixelCNN)
    with torch.no_grad():  # codes that each of the two holds for certain
        for net, code in ((told, 1), (prior_net, 2)):
            net.last.weight.zero_()
            net.last.bias.copy_(50.0 * torch.eye(len(net.last.bias))[code])
        codes = torch.tensor([1, 2]).view(2, 1, 1).expand(2, *told.grid)
        expected = model.vae.decode(codes).mean.clamp(0.0, 1.0)
    for drawn, image in zip(figures.joint_samples(model, (1, 28, 28), 3), expected, strict=True):
        torch.testing.assert_close(drawn, image.expand(3, -1, -1, -1))


def test_pictures_are_of_shipped_models_and_never_of_faces(folder: Path) -> None:
    for dataset in ("omniglot", "celeba"):
        write_result(folder / f"{dataset}-vdvae.json", result_of(dataset, "vdvae"))
        (folder / f"{dataset}-vdvae.safetensors").touch()
    of_drawings = {"inpainting-omniglot-vdvae", "joint-omniglot-vdvae"}
    assert {*figures.every_figure()} == {*diagrams.DIAGRAMS, *of_drawings}


def test_missing_data_are_told_and_the_rest_is_drawn(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ship(folder, "mnist", "vqvae")
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path / "nowhere"))
    output = tmp_path / "img"
    figures.main(["--output", str(output), "--only", "inpainting-mnist-vqvae", "lookahead"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "inpainting-mnist-vqvae.png is left as it is" in line
    assert "nowhere/mnist is not there" in line
    assert [path.name for path in output.iterdir()] == ["lookahead.svg"]


def test_pictures_are_the_same_every_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(folder, "mnist", "vqvae")
    images = labelled_noise()
    monkeypatch.setattr(figures, "load_images", lambda _: images)
    for name in ("first", "second"):
        torch.manual_seed(len(name))
        figures.main(["--output", str(tmp_path / name)])
    of_digits = {"inpainting-mnist-vqvae.png", "joint-mnist-vqvae.png"}
    names = {"posterior-matching.svg", "lookahead.svg", *of_digits}
    assert {path.name for path in (tmp_path / "first").iterdir()} == names
    for name in names:
        first, second = ((tmp_path / way / name).read_bytes() for way in ("first", "second"))
        assert first == second


def test_entropies_in_the_diagram_are_those_of_the_curves() -> None:
    for scale in (0.35, 0.55):
        exact = 0.5 * math.log(2.0 * math.pi * math.e * scale**2)
        # At 1.4, the widest curve loses 6e-5 of its mass at the end of the grid.
        assert abs(diagrams.entropy(diagrams.normal(1.4, scale)) - exact) < 1e-3
    # Mutual information of z and which of three draws it was: at most log 3.
    each = np.mean([diagrams.entropy(p) for p in diagrams.TELLING])
    gain = diagrams.entropy(diagrams.mean_density(diagrams.TELLING)) - each
    assert 0.8 * math.log(3.0) < gain < math.log(3.0)
