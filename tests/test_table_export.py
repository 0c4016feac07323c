"""A table's model as ONNX files: the same choices and the same predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from postmatch import TableModelConfig, fit_table
from postmatch.acquisition import choose
from postmatch.table_acquiring import TableAcquirer, table_acquirer
from small_models import people

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from postmatch.fast import FastAcquirer
from postmatch.table_export import export_table

SMALL = TableModelConfig(
    latent_size=2, width=16, num_blocks=1, prior_width=8, head_width=8, mask_blocks=1, num_members=2
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TableAcquirer]:
    frame = people(150)
    model = fit_table(
        frame, config=SMALL, max_steps=40, device="cpu", ordered={"shirt": ["S", "M", "L"]}
    )
    asks = table_acquirer(model, target="town", groups={"body": ["weight", "shirt"]})
    fitted = asks.fit(frame, steps=5)
    folder = tmp_path_factory.mktemp("onnx") / "people"
    export_table(folder, fitted)
    return folder, fitted


def test_choices_are_those_of_torch(written: tuple[Path, TableAcquirer]) -> None:
    folder, asks = written
    fast, (x, observed) = FastAcquirer(folder), asks.encode(people(30, holes=0.5))
    exact = asks.gains(x, observed)
    junk = x.masked_fill(~observed, 7.0).numpy()
    assert np.allclose(fast.gains(junk, observed.numpy()), exact.numpy(), atol=1e-5)
    best = choose(asks.gains, x, observed, price=-9.0).offer.tolist()
    found = [fast.choose(junk[i], observed[i].numpy(), price=-9.0)[0] for i in range(len(x))]
    assert found == best
    facts = json.loads((folder / "acquirer.json").read_text())
    assert facts["names"] == ["body", "income", "rooms", "owner"]
    assert [facts["columns"][i] for i in facts["offers"][0]] == ["weight", "shirt"]


def test_predictions_are_those_of_torch(written: tuple[Path, TableAcquirer]) -> None:
    folder, asks = written
    x, observed = asks.encode(people(6, holes=0.5))
    rows = asks.model.rows
    found = FastAcquirer(folder).expect(x.numpy(), observed.numpy(), num_samples=4_000)
    assert np.array_equal(found[observed.numpy()], x.numpy()[observed.numpy()])
    exact = rows.points(x, observed, 1 << 11).numpy()
    with torch.inference_mode():
        spread = asks.model.model.given(x, observed).draws(400).std(0).numpy()
    names = [column.name for column in asks.model.table.modelled]
    numbers = [names.index(name) for name in ("income", "weight", "rooms")]
    # Four standard errors of 4,000 draws, and what is left of the noise of torch's.
    allowed = 4.0 * spread / 4_000**0.5 + 0.01
    assert (np.abs(found - exact)[:, numbers] <= allowed[:, numbers]).all()
    place = names.index("town")
    chances = rows.chances(x, observed, place, 1 << 11)
    top = chances.sort(1, descending=True).values
    sure = (~observed[:, place] & (top[:, 0] - top[:, 1] > 0.3)).numpy()
    assert np.array_equal(found[sure, place], exact[sure, place])


def test_sampled_gains_cannot_be_written(
    written: tuple[Path, TableAcquirer], tmp_path: Path
) -> None:
    _, asks = written
    with pytest.raises(TypeError, match="one that was fitted, got one whose gains are sampled"):
        export_table(tmp_path, table_acquirer(asks.model))
