"""Posterior Matching as a user gets it: a plain DataFrame, no settings."""

import time

from holes import Holes
from peers import DRAWS, Answer
from scoring import QUANTILES


def postmatch(holes: Holes, seed: int) -> Answer:
    """Fill, draw and bound with default settings; column kinds are detected, not told."""
    from postmatch import PosteriorMatchingImputer

    start = time.perf_counter()
    imputer = PosteriorMatchingImputer(random_state=seed).fit(holes.train)
    fitted = time.perf_counter()
    point = imputer.transform(holes.test)
    filled = time.perf_counter()
    draws = imputer.sample(holes.test, DRAWS)
    quantiles = imputer.quantiles(holes.test, list(QUANTILES)) if holes.numbers else None
    return Answer(point, draws, quantiles, fitted - start, filled - fitted)
