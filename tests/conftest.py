"""What every test shares: one thread, and a fixed seed, so that their order changes nothing."""

import os

import pytest
import torch

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before scipy is imported: no check is skipped
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
