"""Choosing what to measure next in microseconds, without PyTorch."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
_FORMAT = 1


@final
class FastAcquirer:
    """Runs what :func:`postmatch.export.export_acquirer` wrote, with ONNX Runtime on one thread.

    Args:
        folder: Where the files are.

    Raises:
        FileNotFoundError: If they are not there.
        ModuleNotFoundError: Without onnxruntime.
        ValueError: If they are of another version.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        facts = json.loads((self.folder / "acquirer.json").read_text())
        if facts["format"] != _FORMAT:
            raise ValueError(f"{folder} has format {facts['format']}, and only {_FORMAT} is known")
        self.features, self.latent_size = tuple(facts["features"]), int(facts["latent_size"])
        self._members, self._levels = facts.get("members", 0), facts.get("levels", [])
        self.costs = np.array(facts["costs"], np.float32)
        mask = math.prod(facts["mask"])
        self._reveals = np.zeros((len(self.costs), mask), np.bool_)
        for row, own in zip(self._reveals, facts["offers"], strict=True):
            row[own] = True
        # Each feature on its own, in order: the usual case, and the fastest.
        self._single = np.array_equal(self._reveals, np.eye(mask, dtype=np.bool_))
        self._equal = bool((self.costs == 1.0).all())
        self._gains = _session(self.folder / "gains.onnx")
        self._others: dict[str, InferenceSession] = {}
        shape = (1, self.features[0] + facts["mask"][0], *self.features[1:])
        self._numbers = math.prod(self.features)
        self._seen = np.zeros(shape, np.float32)
        self._out = np.zeros((1, len(self.costs)), np.float32)
        self._flat = self._seen.reshape(-1)  # of the same memory
        self._binding = _bound(self._gains, self._seen, self._out)

    def choose(
        self, x: ArrayLike, observed: ArrayLike, *, price: float = 0.0, money: float = math.inf
    ) -> tuple[int, float]:
        """Return the best offer for a row and its expected gain in nats, -1 and 0 if there is none.

        Args:
            x: The row, flat or not; what is not observed may be anything.
            observed: What is observed of it.
            price: Nats that a unit of cost must bring.
            money: What may be spent.
        """
        seen = np.asarray(observed, np.bool_).reshape(-1)
        self._look(np.asarray(x, np.float32).reshape(-1), seen)
        self._gains.run_with_iobinding(self._binding)
        gains = self._out[0]
        gains[seen if self._single else self._closed(seen)] = -np.inf
        value = gains if self._equal else gains / self.costs
        if money < math.inf:
            value = np.where(self.costs > money, -np.inf, value)
        best = int(value.argmax())
        most = float(value[best])
        return (best, float(gains[best])) if most >= price and most > -math.inf else (-1, 0.0)

    def gains(self, x: ArrayLike, observed: ArrayLike) -> Floats:
        """Return the expected gain of each offer for many rows, ``(batch, offers)``.

        Args:
            x: Rows, ``(batch, *features)``.
            observed: What is observed of them.
        """
        seen = np.asarray(observed, np.bool_)
        told: Floats = self._gains.run(None, {"seen": _side_by_side(x, seen)})[0]
        flat = seen.reshape(len(seen), -1)
        told[flat if self._single else self._closed(flat)] = -np.inf
        return told

    def expect(
        self, x: ArrayLike, observed: ArrayLike, num_samples: int = 32, seed: int = 0
    ) -> Floats:
        """Return rows with what is hidden filled: by means, or by the category most often drawn."""
        seen, noise = np.asarray(observed, np.bool_), np.random.default_rng(seed)
        visible, batch = _side_by_side(x, seen), len(seen)
        if self._members:
            z = self._drawn(visible, num_samples, noise)
        else:
            mean, factor = self._other("partial").run(None, {"seen": visible})
            drawn = noise.standard_normal((num_samples, 1, self.latent_size))
            z = mean + np.einsum("bij,sj->sbi", factor, drawn[:, 0])
        flat = z.reshape(num_samples * batch, -1).astype(np.float32)
        decoded = self._other("decoder").run(None, {"z": flat})[0]
        decoded = decoded.reshape(num_samples, -1, *self.features)
        expected = decoded.mean(0)
        for column in self._levels:
            drawn_codes = decoded[..., column].T.astype(np.int64)  # (batch, samples)
            expected[:, column] = [np.bincount(codes).argmax() for codes in drawn_codes]
        filled: Floats = np.where(seen, np.asarray(x, np.float32), expected)
        return filled

    def _drawn(self, visible: Floats, num_samples: int, noise: np.random.Generator) -> Floats:
        """Return draws of z, ``(samples * batch, size)``, those of the first draw first."""
        count, size = num_samples * len(visible), self.latent_size
        parts = (noise.random((count, 1 + size)), noise.standard_normal((count, size)))
        seen = np.tile(visible, (num_samples, 1))
        inputs = {"seen": seen, "noise": np.hstack(parts).astype(np.float32)}
        z: Floats = self._other("partial").run(None, inputs)[0]
        return z

    def _look(self, x: Floats, seen: Mask) -> None:
        """Lay visible values and mask side by side where the network reads them."""
        count, cells = self._numbers, self._reveals.shape[1]
        if len(x) != count or len(seen) != cells:
            found = f"{len(x)} and {len(seen)}"
            raise ValueError(f"x and observed must have {count} and {cells} entries, got {found}")
        whole = seen if cells == count else np.tile(seen, count // cells)
        self._flat[:count] = 0.0
        np.copyto(self._flat[:count], x, where=whole)
        self._flat[count:] = seen

    def _closed(self, seen: Mask) -> Mask:
        closed: Mask = ~((~seen).astype(np.float32) @ self._reveals.T.astype(np.float32) > 0.0)
        return closed

    def _other(self, name: str) -> "InferenceSession":
        if name not in self._others:
            self._others[name] = _session(self.folder / f"{name}.onnx")
        return self._others[name]


def _side_by_side(x: ArrayLike, observed: Mask) -> Floats:
    values = np.where(observed, np.asarray(x, np.float32), np.float32(0.0))
    return np.concatenate([values, observed.astype(np.float32)], axis=1)


def _session(path: Path) -> "InferenceSession":
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ModuleNotFoundError("FastAcquirer needs pip install 'postmatch[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _bound(session: "InferenceSession", inputs: Floats, outputs: Floats) -> Any:
    """Return a binding that reads and writes these arrays without a copy."""
    binding = session.io_binding()
    for array, bind, name in (
        (inputs, binding.bind_input, session.get_inputs()[0].name),
        (outputs, binding.bind_output, session.get_outputs()[0].name),
    ):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    return binding
