"""A scikit-learn clusterer, which translates and delegates."""
# ruff: noqa: N803, N806

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from postmatch.cluster_starts import StartKind
from postmatch.cluster_tables import ClusteredTable, NumClusters, fit_table_clusters
from postmatch.estimators import checked_table, column_kinds, missing_tokens, seed_of
from postmatch.training.progress import progress_bar

__all__ = ["PosteriorMatchingClusterer"]

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@final
class PosteriorMatchingClusterer(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Tell which cluster a row belongs to, and how surely, from whatever is there of it.

    A VAE whose prior is a mixture of Gaussians (VaDE) is fitted to the rows, and then its posterior
    given any part of a row: a cell that is missing makes an answer less sure, and is never filled
    in first. Holes are taken to be missing at random. Tables are those that
    :class:`~postmatch.PosteriorMatchingImputer` takes.

    Args:
        n_clusters: How many clusters, or ``auto``: the largest number that two halves of the rows
            agree on, by the prediction strength of mixtures of their codes.
        max_clusters: How many ``auto`` tries.
        start: What clusters start as: ``mixture``, heaps that may overlap; or ``connected``, groups
            of any shape that hang together.
        categorical: Columns of levels without order, by name or in arrays by position.
        ordered: Columns of levels with an order: names, or a dict from names to levels.
        missing_values: What also means a missing cell, besides NaN, None, NA and NaT.
        num_samples: Draws of z per row that a probability is averaged over.
        max_steps: Train for so many steps at most, each of three parts (codes, clusters, match), in
            place of what the table's size suggests.
        max_seconds: Train no longer than this.
        quick: Train for seconds rather than a minute.
        random_state: The same one gives the same clusters.
        device: Where to compute; ``auto`` is a GPU if there is one.
        verbose: Above 0, show the progress of ``fit`` on stderr.

    Attributes:
        model_: The fitted ``ClusteredTable``.
        labels_: The cluster of each row of ``fit``, 0 and up, the largest first.
        n_clusters_: How many clusters there are.
        n_features_in_: How many columns ``fit`` saw.
        feature_names_in_: Their names, if they had any.

    Example:
        >>> X = np.array([[1.5, 2.1], [1.4, np.nan], [8.5, 9.2], [np.nan, 9.3]])
        >>> PosteriorMatchingClusterer(2, max_steps=2).fit(X).predict_proba(X).shape
        (4, 2)
    """

    def __init__(
        self,
        n_clusters: NumClusters = "auto",
        *,
        max_clusters: int = 10,
        start: StartKind = "mixture",
        categorical: Collection[str | int] | None = None,
        ordered: Mapping[str | int, Sequence[str]] | Collection[str | int] | None = None,
        missing_values: Any = np.nan,
        num_samples: int = 50,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        quick: bool = False,
        random_state: Any = 0,
        device: Any = "auto",
        verbose: int = 0,
    ) -> None:
        self.n_clusters, self.max_clusters, self.start = n_clusters, max_clusters, start
        self.categorical, self.ordered = categorical, ordered
        self.missing_values, self.num_samples = missing_values, num_samples
        self.max_steps, self.max_seconds, self.quick = max_steps, max_seconds, quick
        self.random_state, self.device, self.verbose = random_state, device, verbose

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn the columns and the clusters of rows with holes; ``y`` is not looked at."""
        X = checked_table(self, X, reset=True)
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {self.num_samples}")
        self.seed_ = seed_of(self.random_state)
        with progress_bar("Fitting", quiet=not self.verbose) as show:
            self.model_: ClusteredTable = fit_table_clusters(
                X,
                self.n_clusters,
                max_clusters=self.max_clusters,
                start=self.start,
                **column_kinds(X, self.categorical, self.ordered),
                missing=missing_tokens(self.missing_values),
                max_steps=self.max_steps,
                max_seconds=self.max_seconds,
                quick=self.quick,
                seed=self.seed_,
                device=self.device,
                show=show if self.verbose else None,
            )
        if notes := self.model_.table.notes:
            warnings.warn("; ".join(notes), UserWarning, stacklevel=2)
        self.n_clusters_ = self.model_.num_clusters
        self.labels_: Whole = self._probabilities(X).argmax(1)
        return self

    def predict(self, X: Any) -> Whole:
        """Return the likeliest cluster of each row, ``(rows,)``."""
        return np.asarray(self.predict_proba(X).argmax(1), np.int64)

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each cluster given what each row shows, ``(rows, clusters)``.

        A row of which nothing is there gets about the shares of the clusters.
        """
        check_is_fitted(self)
        return self._probabilities(checked_table(self, X, reset=False))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _probabilities(self, X: Any) -> Floats:
        return self.model_.probabilities(X, num_samples=self.num_samples, seed=self.seed_)
