"""The latent space of MNIST: its command, its panels, and what it says of partial images."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from postmatch.cli import main
from postmatch.data.images import Images
from postmatch.recipes import mnist_latent, mnist_latent_run
from postmatch.recipes.latent_figure import draw_views, to_plane
from postmatch.recipes.mnist_latent import PANELS, Config, Panel, View, build, look


def digits(split: str) -> tuple[Tensor, Tensor]:
    """Return noise, called a digit."""
    rows = 24 if split == "train" else 30
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (rows, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return images, torch.arange(rows) % 10


def test_a_command_trains_looks_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist_latent_run, "load_images", lambda _: Images("mnist", digits))
    monkeypatch.setattr(mnist_latent_run, "_THREE", 3)
    monkeypatch.setattr(mnist_latent, "DRAWS", 20)
    monkeypatch.setattr(mnist_latent, "_NEIGHBOURS", 3)
    words = ["--plane", "--steps", "2", "--json", "-q", "-o", str(tmp_path)]
    assert main(["reproduce", "mnist-latent", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "mnist-latent-plane.json").read_text())
    assert (tmp_path / "mnist-latent-plane.png").read_bytes().startswith(b"\x89PNG")
    assert told["rows"] == {"train": 7, "test": 9}  # images of 3, 5 and 8 alone
    views = told["metrics"]["views"]
    assert [view["digit"] for view in views] == [3] * 5
    assert views[0]["seen"] == "nothing"
    assert views[1]["seen"] == "columns 14 to 27"
    picture = tmp_path / "mnist-latent-plane.png"
    picture.unlink()
    again = ["--plane", "--draw-only", "--json", "-q", "-o", str(tmp_path)]
    assert main(["reproduce", "mnist-latent", *again]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert picture.exists()
    assert main(["reproduce", "mnist-latent", *again, "--seed", "4"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["seed"], other["draw_seed"], told["draw_seed"]) == (0, 4, 0)
    for view in views:
        assert set(view["shares"]) == {"3", "5", "8"}
        assert sum(view["shares"].values()) == pytest.approx(1.0)


def test_what_was_trained_is_kept_where_it_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist_latent_run, "load_images", lambda _: Images("mnist", digits))
    monkeypatch.setattr(mnist_latent_run, "PANELS", PANELS[:1])
    monkeypatch.setattr(mnist_latent, "_NEIGHBOURS", 3)
    monkeypatch.setitem(sys.modules, "umap", None)
    assert main(["reproduce", "mnist-latent", "--steps", "1", "-q", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("pip install 'postmatch[umap]'") == 2  # before and after
    assert (tmp_path / "weights" / "mnist-latent.safetensors").exists()


def test_the_panels_are_the_papers() -> None:
    assert [panel.told() for panel in PANELS[:4]] == [
        "nothing",
        "rows 21 to 27",
        "rows 17 to 27",
        "rows 0 to 8",
    ]
    assert not PANELS[0].observed().any()
    seen = PANELS[4].observed()[0, 0]
    assert seen[:, 19:].all()
    assert not seen[:, :19].any()
    assert Panel(3).told() == "everything"


def test_the_model_has_the_papers_sizes() -> None:
    found = sum(p.numel() for p in build(Config()).parameters())
    assert found == pytest.approx(2_101_969, rel=0.06)  # our masked network has a few more


def test_shares_count_the_draws_near_images_of_each_digit() -> None:
    torch.manual_seed(0)
    model = build(Config(latent_size=2)).eval()
    image = torch.zeros(1, 28, 28, dtype=torch.uint8)
    drawn = look(model, Panel(0), image, torch.zeros(20, 2), torch.zeros(20)).z
    near = drawn.mean(0) + 0.01 * torch.randn(20, 2)
    far = near + 1e3
    view = look(model, Panel(0), image, torch.cat([near, far]), torch.tensor([4] * 20 + [9] * 20))
    assert view.shares == {4: 1.0, 9: 0.0}
    assert torch.equal(view.z, drawn)  # a seed gives the same draws again
    plane, each = to_plane(near, [view.z])
    assert torch.equal(plane, near)
    figure = draw_views(plane, torch.full((20,), 4), [view], each)
    assert len(figure.axes) == 3


def test_no_images_get_no_answers() -> None:
    x = torch.rand(0, 1, 28, 28)
    answer = build(Config(latent_size=2)).eval().given(x, x.bool())
    assert answer.log_prob(x).shape == answer.log_prob(x, seed=0).shape == (0,)
    assert answer.sample(3).shape == (3, *x.shape)
    assert answer.impute().shape == x.shape


@pytest.mark.parametrize("train_target", [False, True])
def test_the_match_trains_the_encoder_where_it_shall(
    train_target: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    losses = mnist_latent.MatchedVAE.losses

    def tell(*given: Any, **settings: Any) -> Any:
        told.append(settings["train_target"])
        return losses(*given, **settings)

    monkeypatch.setattr(mnist_latent.MatchedVAE, "losses", tell)
    config = Config(latent_size=2, steps=1, train_target=train_target)
    mnist_latent.fit(config, digits("train")[0])
    assert told == [train_target]


def test_what_is_decoded_leaves_out_the_farthest_draws() -> None:
    order = torch.arange(12.0)
    drawn = torch.stack([order, -order], dim=1)
    decoded = order.view(-1, 1, 1, 1) / 12.0 * torch.ones(12, 1, 28, 28)
    seen = torch.zeros(1, 28, 28)
    view = View(seen, seen.bool(), drawn, decoded, {4: 1.0})
    figure = draw_views(drawn, torch.full((12,), 4), [view], [drawn])
    shown = figure.axes[2].images[0].get_array()
    assert shown is not None
    columns = range(14, 6 * 28, 28)
    assert [round(12.0 * float(shown[0, i])) for i in columns] == [1, 3, 5, 7, 9, 11]
