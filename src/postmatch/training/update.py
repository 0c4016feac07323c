"""What one training step does to the weights."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from postmatch.nets.linear import GradientPlaces
from postmatch.training.adam import AdamW
from postmatch.training.averaging import WeightAverage
from postmatch.training.flat import flatten, untrained_halves
from postmatch.training.muon import Muon
from postmatch.training.parallel import average, num_processes, share
from postmatch.training.plan import Losses, Plan, Precision
from postmatch.training.recording import Recorded


@final
class Update:
    """One step: losses of a fresh batch, gradients, clipping, both optimisers, the average.

    It is always the same operations on tensors that stay in place, and asks nothing of the host,
    so that a GPU can play it back; what changes from step to step is in tensors too. A step whose
    loss or gradient is not finite changes nothing but the counts.

    Args:
        module: What is trained; its parameters are views of long vectors until :meth:`close`.
        loss: From the fraction of training done to the losses of a fresh batch.
        plan: How fast.
        generators: What the loss draws from.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor], Losses],
        plan: Plan,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.loss, self.plan = loss, plan
        self.compiled = [m for m in module.modules() if plan.compiled and _is_network(m)]
        for network in self.compiled:
            network.compile(dynamic=False)
        # A compiler does not see what a backward pass does besides returning gradients, and on a
        # CPU adding inside a product costs more than the pass over memory that it saves.
        self.device = next((p.device for p in module.parameters()), torch.device("cpu"))
        direct = self.device.type == "cuda" and not plan.compiled
        halved = direct and plan.precision == "bfloat16"
        apart = plan.orthogonal if plan.orthogonal_rate > 0.0 else "none"
        self.flats = flatten(module, apart=apart, halved=halved)
        self.vectors = [flat.vector for flat in self.flats]
        share([vector.detach() for vector in self.vectors])
        filled = self.flats if direct else []
        self.places = GradientPlaces(
            {p: at for flat in filled for p, at in flat.places.items()},
            {p: half for flat in filled for p, half in flat.halves.items()}
            | (untrained_halves(module) if halved else {}),
        )
        self.fraction, self.rate, self.pull = torch.zeros(3, device=self.device).unbind()
        self.skipped, self.in_a_row = torch.zeros(2, device=self.device, dtype=torch.long).unbind()
        self.adam, self.muon = self._optimisers()
        self.average = WeightAverage(self.vectors, plan.average)
        alone = num_processes() == 1  # messages between processes are not recorded
        self.recorded = Recorded(self._step, self.device, generators, recordable=alone)

    def __call__(self, fraction: float, rate: float) -> Losses:
        """Take one step at this part of training, at this part of the highest rates."""
        self.fraction.fill_(fraction)
        self.rate.fill_(rate)
        self.pull.fill_(self.average.next_pull())
        return self.recorded()

    @torch.no_grad()
    def return_to_average(self) -> None:
        """Put the average in the weights' place for good, and forget where they were going."""
        self.average.load(self.average.average)
        moments = (self.muon.directions, self.adam.means, self.adam.squares, self.adam.counts)
        for each in (*itertools.chain(*moments), self.in_a_row):
            each.zero_()

    def close(self) -> None:
        """Give every parameter a tensor of its own again, and every network its own code."""
        self.recorded.free()
        for flat in self.flats:
            flat.release()
        for network in self.compiled:
            network._compiled_call_impl = None

    def named(self) -> dict[str, Tensor]:
        """Return the tensors that steps change, by name, as they are and not copied."""
        named = {f"weights.{i}": flat.vector.detach() for i, flat in enumerate(self.flats)}
        named |= {f"average.{i}": value for i, value in enumerate(self.average.average)}
        named |= {f"direction.{i}": value for i, value in enumerate(self.muon.directions)}
        named |= {f"mean.{i}": value for i, value in enumerate(self.adam.means)}
        named |= {f"square.{i}": value for i, value in enumerate(self.adam.squares)}
        named |= {f"count.{i}": value for i, value in enumerate(self.adam.counts)}
        return named | {"skipped": self.skipped, "skipped_in_a_row": self.in_a_row}

    def _step(self) -> Losses:
        for flat in self.flats:
            flat.start_over()
        with (
            computed_in(self.plan.precision, self.device),
            _timed_kernels(self.device),
            self.places.filled(),
        ):
            losses = self.loss(self.fraction)
            total = torch.stack(list(losses.values())).sum()
            total.backward()  # type: ignore[no-untyped-call]
        for flat in self.flats:
            flat.gather_gradients()
        average([flat.gradient for flat in self.flats])
        finite = self._clip(total.detach())
        rate = self.rate * self.plan.learning_rate
        self.adam.step(rate, finite)
        decay = rate * self.plan.weight_decay
        # A direction needs no more digits than the products that it comes from.
        rounded: Precision = "float32" if self.plan.precision == "float32" else "tf32"
        with computed_in(rounded, self.device):
            self.muon.step(self.rate * self.plan.orthogonal_rate, decay, finite)
        self.average.update(self.pull * finite)
        self.skipped.add_(~finite)
        self.in_a_row.add_(1).mul_(~finite)
        return {name: value.detach() for name, value in losses.items()}

    def _clip(self, total: Tensor) -> Tensor:
        """Shorten the gradient if it is too long, and return whether it and the loss are finite."""
        norms = [torch.linalg.vector_norm(flat.gradient) for flat in self.flats]
        norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        factor = (self.plan.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        for flat in self.flats:
            flat.gradient.mul_(factor)
        return torch.isfinite(norm + total)

    def _optimisers(self) -> tuple[AdamW, Muon]:
        """Return the optimiser of matrices that are kept apart, and before it that of all else."""
        apart = {flat: flat.kind.sides for flat in self.flats if flat.kind.sides is not None}
        other = [flat for flat in self.flats if flat.kind.sides is None]
        adam = AdamW(
            [flat.vector.detach() for flat in other],
            [flat.gradient for flat in other],
            [self.plan.weight_decay if flat.kind.is_matrix else 0.0 for flat in other],
            betas=(0.9, self.plan.second_moment),
        )
        muon = Muon(
            [flat.vector.detach().view(-1, *sides) for flat, sides in apart.items()],
            [flat.gradient.view(-1, *sides) for flat, sides in apart.items()],
        )
        return adam, muon


def _is_network(module: nn.Module) -> bool:
    return bool(getattr(module, "tensors_only", False))


@contextmanager
def _timed_kernels(device: torch.device) -> Iterator[None]:
    """Let convolutions try which kernel is fastest, which pays if a step is done many times."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def computed_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute matrix products in this precision inside the block, and as before after it."""
    if precision == "bfloat16":
        with (
            computed_in("tf32", device),  # what stays in float32
            torch.autocast(device.type, torch.bfloat16, cache_enabled=False),
        ):
            yield
    elif precision == "tf32" and device.type == "cuda":
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.fp32_precision = before
    else:
        yield
