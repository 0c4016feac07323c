"""Networks as files: the same choices without PyTorch."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from linear_gaussian import exact_model, linear_gaussian
from postmatch.acquisition import AmortisedGain, choose
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.offers import Offers
from postmatch.partial import AutoregressiveHead, DiagonalHead, FullGaussianHead, MaskedEncoder
from postmatch.vaes.gaussian import GaussianVAE

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from postmatch.export import export_acquirer
from postmatch.fast import FastAcquirer

FEATURES = 5


def model(head: nn.Module) -> MatchedVAE:
    body = nn.Sequential(nn.Linear(2 * FEATURES, 16), nn.SiLU())
    encoder = MaskedEncoder(body, DiagonalHead(16, 3))
    own = MaskedEncoder(nn.Sequential(nn.Linear(2 * FEATURES, 16), nn.SiLU()), head)
    return MatchedVAE(GaussianVAE(encoder, nn.Linear(3, FEATURES), 3), own).eval()


def acquirer(offers: Offers) -> AmortisedGain:
    count = len(offers.costs)
    net = nn.Sequential(nn.Linear(2 * FEATURES, 16), nn.ReLU(), nn.Linear(16, count))
    return AmortisedGain(net, offers).eval()


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AmortisedGain, MatchedVAE]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("onnx") / "here"
    gains, matched = acquirer(Offers.each([FEATURES])), model(FullGaussianHead(16, 3))
    export_acquirer(folder, gains, matched, [FEATURES])
    return folder, gains, matched


def rows(count: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, FEATURES, generator=generator)
    return x, torch.rand(count, FEATURES, generator=generator) < 0.5


def test_choices_and_gains_are_those_of_torch(
    single: tuple[Path, AmortisedGain, MatchedVAE],
) -> None:
    folder, gains, _ = single
    fast, (x, observed) = FastAcquirer(folder), rows()
    exact = gains(x, observed)
    x = x.masked_fill(~observed, math.nan)
    assert np.allclose(fast.gains(x.numpy(), observed.numpy()), exact.numpy(), atol=1e-5)
    for price in (-math.inf, 0.0, 0.2):
        best = choose(gains, x, observed, price=price)
        for i in range(len(x)):
            offer, gain = fast.choose(x[i].numpy(), observed[i].numpy(), price=price)
            assert offer == best.offer[i]
            assert gain == pytest.approx(float(best.gain[i]), abs=1e-5)


def test_groups_costs_and_money_count(tmp_path: Path) -> None:
    torch.manual_seed(1)
    offers = Offers.of([[0, 3], [1], [2, 4]], FEATURES, [2.0, 1.0, 0.5])
    gains = acquirer(offers)
    export_acquirer(tmp_path, gains, model(DiagonalHead(16, 3)), [FEATURES])
    fast, (x, observed) = FastAcquirer(tmp_path), rows()
    assert np.allclose(fast.gains(x, observed), gains(x, observed).numpy(), atol=1e-5)
    for money in (0.7, 1.5, 9.0):
        best = choose(gains, x, observed, price=-9.0, money=torch.full((len(x),), money))
        found = [fast.choose(x[i], observed[i], price=-9.0, money=money)[0] for i in range(len(x))]
        assert found == best.offer.tolist()


def test_what_is_hidden_is_expected_as_by_torch(
    single: tuple[Path, AmortisedGain, MatchedVAE],
) -> None:
    folder, _, matched = single
    x, observed = rows(8)
    found = FastAcquirer(folder).expect(x.numpy(), observed.numpy(), num_samples=4_000)
    exact = matched.given(x, observed).impute(1 << 12).numpy()
    assert np.array_equal(found[observed.numpy()], x.numpy()[observed.numpy()])
    with torch.no_grad():
        spread = matched.given(x, observed).draws(500).std(0).numpy()
    # Four standard errors of 4,000 draws; the other side's noise is evenly spread.
    assert (np.abs(found - exact) <= 4.0 * spread / 4_000**0.5 + 1e-4).all()


def test_no_torch_is_imported(single: tuple[Path, AmortisedGain, MatchedVAE]) -> None:
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from postmatch.fast import FastAcquirer
fast = FastAcquirer(sys.argv[1])
print(fast.choose(np.zeros(5), np.array([True, False, False, True, False]), price=-9.0)[0])
"""
    folder, gains, _ = single
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    observed = torch.tensor([[True, False, False, True, False]])
    best = choose(gains, torch.zeros(1, 5), observed, price=-9.0)
    assert done.stdout.split() == [str(int(best.offer))], done.stderr


def test_what_cannot_be_written_or_read_is_told(
    tmp_path: Path, single: tuple[Path, AmortisedGain, MatchedVAE]
) -> None:
    gains = acquirer(Offers.each([FEATURES]))
    with pytest.raises(TypeError, match="must be a MaskedEncoder, got ExactPartial"):
        export_acquirer(tmp_path, gains, exact_model(linear_gaussian()), [6])
    other = model(AutoregressiveHead(mixture_net(3, 2, 8, 1, 16)))
    with pytest.raises(TypeError, match="must be Gaussian"):
        export_acquirer(tmp_path, gains, other, [FEATURES])
    with pytest.raises(FileNotFoundError):
        FastAcquirer(tmp_path / "nowhere")
    folder, _, _ = single
    with pytest.raises(ValueError, match="must have 5 and 5 entries, got 4 and 5"):
        FastAcquirer(folder).choose(np.zeros(4), np.zeros(5, bool))
    facts = json.loads((folder / "acquirer.json").read_text())
    later = tmp_path / "later"
    later.mkdir()
    (later / "acquirer.json").write_text(json.dumps(facts | {"format": 2}))
    with pytest.raises(ValueError, match="has format 2"):
        FastAcquirer(later)
