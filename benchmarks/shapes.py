"""The paper's networks for its five UCI sets, and the published way to evaluate them."""

import argparse
import time
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from imputation import hardware
from postmatch.data.uci import NAMES
from postmatch.distributions.autoregressive import (
    AutoregressiveMixture,
    mixture_log_prob,
    split_mixture,
)
from postmatch.distributions.noise import choose_component, standard_normal
from postmatch.nets.made import MaskedResidualNet
from postmatch.partial import MaskedEncoder
from postmatch.recipes.results import commit
from postmatch.recipes.uci import config_of

SHAPES = {name: config_of(name, "paper") for name in NAMES}
WIDTH = SHAPES["power"].width


class EntryByEntry(Distribution):
    """The same mixture, with one pass through its network per entry, as in the published code."""

    arg_constraints: ClassVar[dict] = {}
    has_rsample = False

    def __init__(self, net: MaskedResidualNet, context: Tensor) -> None:
        self.net, self.context = net, context
        super().__init__(context.shape[:-1], torch.Size([net.size]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, each conditional from a pass of its own."""
        total = value.new_zeros(())
        for i in range(self.net.size):
            logits, mean, scale = split_mixture(self.net(value, self.context), dim=-2)
            own = (t[..., i : i + 1] for t in (logits, mean, scale))
            total = total + mixture_log_prob(value[..., i : i + 1], *own)[..., 0]
        return total

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws, each entry from a pass of its own."""
        uniform = torch.unflatten(uniform, -1, (self.net.size, 2))
        context = self.context.expand(*uniform.shape[:-2], -1)
        z = self.context.new_zeros(uniform.shape[:-1])
        for i in range(self.net.size):
            logits, mean, scale = split_mixture(self.net(z, context)[..., i], dim=-1)
            k = choose_component(logits, uniform[..., i, 0], dim=-1).unsqueeze(-1)
            noise = standard_normal(uniform[..., i, 1])
            z[..., i] = mean.gather(-1, k)[..., 0] + scale.gather(-1, k)[..., 0] * noise
        return z


class Published(nn.Module):
    """A partial encoder whose posterior is evaluated entry by entry; it shares the weights."""

    def __init__(self, encoder: MaskedEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the same distribution, for D times the work."""
        found = self.encoder(x, observed)
        assert isinstance(found, AutoregressiveMixture)
        assert found.context is not None
        return EntryByEntry(found.net, found.context)


def parser(description: str, seconds: float) -> argparse.ArgumentParser:
    """Return the options that the benchmarks of these shapes share."""
    options = argparse.ArgumentParser(description=description.splitlines()[0])
    options.add_argument("--shape", choices=SHAPES, default="power")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=seconds, help="how long to measure")
    options.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32")
    options.add_argument("--compiled", action="store_true", help="compile the networks first")
    options.set_defaults(jobs=1)
    return options


def prepare(arguments: argparse.Namespace) -> torch.device:
    """Set threads and seed, and return the device to measure on."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def provenance(arguments: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Return where a line of results comes from."""
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "hardware": hardware(arguments),
        "torch": torch.__version__,
        "seed": 0,
        "commit": commit(),
    }


def per_second(times: dict[str, float], rows: int) -> dict[str, float]:
    """Return both ways' rows per second and their ratio."""
    return {
        "rows_per_second": round(1e3 * rows / times["ours"], 1),
        "standin_rows_per_second": round(1e3 * rows / times["standin"], 1),
        "speedup": round(times["standin"] / times["ours"], 2),
    }


def median_ms(functions: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the median time of each function, taking turns, so that a busy moment meets all."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for run in functions.values():
        for _ in range(5):  # within these, a GPU also records its step
            run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, run in functions.items():
            synchronise()
            start = time.perf_counter()
            run()
            synchronise()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: float(np.median(each)) for name, each in times.items()}


def steady_ms(run: Callable[[], object], steps: int) -> float:
    """Return the time of each of many steps in a row, none of which is waited for."""
    synchronise()
    start = time.perf_counter()
    for _ in range(steps):
        run()
    synchronise()
    return 1e3 * (time.perf_counter() - start) / steps


def synchronise() -> None:
    """Wait for the device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def product_rate(batch: int, device: torch.device) -> float:
    """Return the operations per second of the product that the networks are made of."""
    a, b = torch.randn(batch, WIDTH, device=device), torch.randn(WIDTH, WIDTH, device=device)
    many = 50
    ms = median_ms({"product": lambda: [a @ b for _ in range(many)]}, seconds=1.0)["product"]
    return 2.0 * batch * WIDTH * WIDTH * many / (1e-3 * ms)


def products_of(module: nn.Module) -> int:
    """Return the multiplications of one row through the linear layers of a module, once each."""
    return sum(p.numel() for p in module.parameters() if p.dim() == 2)
