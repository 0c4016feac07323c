"""Ask any VAE any conditional question, by Posterior Matching."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postmatch.answers import Prediction
    from postmatch.attaching import attach
    from postmatch.clusterers import PosteriorMatchingClusterer
    from postmatch.conditioning import Conditional, MatchedVAE
    from postmatch.estimators import PosteriorMatchingImputer
    from postmatch.models import TableModel, fit_table
    from postmatch.objectives import elbo, match, match_kl
    from postmatch.partial import PartialEncoder
    from postmatch.pooling import Pooled, pool
    from postmatch.prior_fitting import fit_prior
    from postmatch.pushing import push
    from postmatch.randomness import seeded
    from postmatch.saving import load, save
    from postmatch.tables import Table
    from postmatch.tabular import TableModelConfig
    from postmatch.vaes.base import VAE
    from postmatch.zoo import pretrained

__version__ = "0.1.0"

__all__ = [
    "VAE",
    "Conditional",
    "MatchedVAE",
    "PartialEncoder",
    "Pooled",
    "PosteriorMatchingClusterer",
    "PosteriorMatchingImputer",
    "Prediction",
    "Table",
    "TableModel",
    "TableModelConfig",
    "attach",
    "elbo",
    "fit_prior",
    "fit_table",
    "load",
    "match",
    "match_kl",
    "pool",
    "pretrained",
    "push",
    "save",
    "seeded",
]

_MODULES = {
    "VAE": "vaes.base",
    "Conditional": "conditioning",
    "MatchedVAE": "conditioning",
    "PartialEncoder": "partial",
    "Pooled": "pooling",
    "PosteriorMatchingClusterer": "clusterers",
    "PosteriorMatchingImputer": "estimators",
    "Prediction": "answers",
    "Table": "tables",
    "TableModel": "models",
    "TableModelConfig": "tabular",
    "attach": "attaching",
    "elbo": "objectives",
    "fit_prior": "prior_fitting",
    "fit_table": "models",
    "load": "saving",
    "match": "objectives",
    "match_kl": "objectives",
    "pool": "pooling",
    "pretrained": "zoo",
    "push": "pushing",
    "save": "saving",
    "seeded": "randomness",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: torch takes seconds to load."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
