"""A small mixed table and a model of it, trained in a second."""

import functools
from typing import Any

import numpy as np
import pandas as pd

from postmatch import TableModel, TableModelConfig, fit_table

TINY = TableModelConfig(
    latent_size=4,
    width=32,
    num_blocks=1,
    prior_width=32,
    head_width=32,
    mask_blocks=1,
    latent_components=2,
    column_components=3,
)


def people(rows: int = 400, holes: float = 0.25) -> pd.DataFrame:
    """Return correlated columns of every kind, in units far from 1, with holes."""
    random = np.random.default_rng(7)
    size = random.normal(size=rows)
    frame = pd.DataFrame(
        {
            "income": 40_000 + 9_000 * size + 3_000 * random.normal(size=rows),
            "weight": 70.0 + 8.0 * size + 4.0 * random.normal(size=rows),
            "rooms": np.clip(np.rint(4 + 1.5 * size), 1, 9),
            "town": np.where(size > 0.3, "Aix", np.where(size > -0.5, "Bonn", "Cork")),
            "shirt": np.where(size > 0.5, "L", np.where(size > -0.5, "M", "S")),
            "owner": size > 0,
        }
    )
    return frame.astype({"owner": "boolean"}).mask(random.random(frame.shape) < holes)


def fit_small(data: Any, steps: int = 300, **options: Any) -> TableModel:
    return fit_table(data, config=TINY, max_steps=steps, device="cpu", **options)


@functools.cache
def people_model() -> TableModel:
    return fit_small(people(), ordered={"shirt": ["S", "M", "L"]})
