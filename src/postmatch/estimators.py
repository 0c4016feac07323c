"""scikit-learn estimators, which translate and delegate."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self, final

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from postmatch.models import TableModel, fit_table
from postmatch.tables.cells import is_missing, level_text
from postmatch.tables.detection import NO_VALUE
from postmatch.tables.frames import Frame, frame_of
from postmatch.tables.overrides import several
from postmatch.training.progress import progress_bar

__all__ = ["PosteriorMatchingImputer"]

Floats = NDArray[np.float64]


@final
class PosteriorMatchingImputer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill holes with what the rest of their row says: means, or the most probable levels.

    A VAE of the rows is fitted together with its posterior given any part of a row, so that all
    patterns of holes have one model. Holes are taken to be missing at random.

    DataFrames (pandas, polars, pyarrow) may mix numbers, text, categories, booleans and dates, and
    come back as they are, holes filled; columns that look like identifiers or free text are passed
    through, with a warning. Arrays of numbers come back as float64.

    Args:
        categorical: Columns of levels without order, by name or in arrays by position.
        ordered: Columns of levels with an order: names, or a dict from names to levels.
        missing_values: What also means a missing cell, besides NaN, None, NA and NaT.
        num_samples: Draws per row that a filled value is averaged over.
        max_steps: Train for so many steps at most, in place of what the table's size suggests.
        max_seconds: Train no longer than this.
        quick: Train for seconds rather than minutes.
        add_indicator: Append, for each column that had holes in ``fit``, whether a cell was one.
        keep_empty_features: Keep columns without any value in ``fit``, numbers as 0, rather than
            drop them with a warning.
        random_state: The same one gives the same model and the same draws.
        device: Where to compute; ``auto`` is a GPU if there is one.
        verbose: Above 0, show the progress of ``fit`` on stderr.

    Attributes:
        model_: The fitted ``TableModel``, which answers more questions.
        n_features_in_: How many columns ``fit`` saw.
        feature_names_in_: Their names, if they had any.
        empty_features_: Positions of the columns without any value in ``fit``.
        indicator_features_: Positions of the columns that indicators are made for.

    Example:
        >>> X = np.array([[1.5, 2.1], [2.5, 4.2], [np.nan, 4.3], [2.4, np.nan]])
        >>> PosteriorMatchingImputer(max_steps=2).fit_transform(X).shape
        (4, 2)
    """

    def __init__(
        self,
        *,
        categorical: Collection[str | int] | None = None,
        ordered: Mapping[str | int, Sequence[str]] | Collection[str | int] | None = None,
        missing_values: Any = np.nan,
        num_samples: int = 32,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        quick: bool = False,
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        random_state: Any = 0,
        device: Any = "auto",
        verbose: int = 0,
    ) -> None:
        self.categorical, self.ordered = categorical, ordered
        self.missing_values, self.num_samples = missing_values, num_samples
        self.max_steps, self.max_seconds, self.quick = max_steps, max_seconds, quick
        self.add_indicator, self.keep_empty_features = add_indicator, keep_empty_features
        self.random_state, self.device, self.verbose = random_state, device, verbose

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn the columns and train the model on rows with holes; ``y`` is not looked at."""
        X = checked_table(self, X, reset=True)
        holes = self._holes(X)
        self.empty_features_ = np.flatnonzero(holes.all(0))
        some = holes.any(0) & (self.keep_empty_features | ~holes.all(0))
        self.indicator_features_ = np.flatnonzero(some) if self.add_indicator else np.arange(0)
        self.seed_ = seed_of(self.random_state)
        with progress_bar("Fitting", quiet=not self.verbose) as show:
            self.model_: TableModel = fit_table(
                X,
                **column_kinds(X, self.categorical, self.ordered),
                missing=missing_tokens(self.missing_values),
                max_steps=self.max_steps,
                max_seconds=self.max_seconds,
                quick=self.quick,
                seed=self.seed_,
                device=self.device,
                show=show if self.verbose else None,
            )
        self._warn()
        return self

    def transform(self, X: Any) -> Any:
        """Return X with its holes filled."""
        check_is_fitted(self)
        X = checked_table(self, X, reset=False)
        filled = self.model_.impute(X, num_samples=self.num_samples, seed=self.seed_)
        return self._shaped(filled, X)

    def sample(self, X: Any, num_samples: int) -> list[Any]:
        """Return completed copies of X, each with a joint draw of the holes of every row.

        For multiple imputation; ``postmatch.pool`` makes one answer of the analyses of the copies.
        """
        check_is_fitted(self)
        X = checked_table(self, X, reset=False)
        draws = self.model_.sample(X, num_samples, seed=self.seed_)
        return [self._shaped(drawn, X) for drawn in draws]

    def quantiles(self, X: Any, levels: Sequence[float]) -> dict[float, Any]:
        """Return, per level, X with each hole filled by that quantile of its own distribution."""
        check_is_fitted(self)
        X = checked_table(self, X, reset=False)
        found = self.model_.impute_quantiles(X, levels, seed=self.seed_)
        return {level: self._shaped(filled, X) for level, filled in found.items()}

    def score_samples(self, X: Any) -> Floats:
        """Return the log-likelihood of what each row shows, in the units of X, ``(rows,)``."""
        check_is_fitted(self)
        X = checked_table(self, X, reset=False)
        return self.model_.score(X, seed=self.seed_, precise=True)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns that ``transform`` returns."""
        check_is_fitted(self)
        names = np.asarray(_check_feature_names_in(self, input_features), dtype=object)
        flags = [f"missingindicator_{name}" for name in names[self.indicator_features_]]
        return np.array([*names[self._kept()], *flags], dtype=object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _warn(self) -> None:
        """Say which columns are dropped, and what else ``transform`` will not do."""
        names = self.model_.table.names
        dropped = [] if self.keep_empty_features else [names[i] for i in self.empty_features_]
        notes = [note for note in self.model_.table.notes if NO_VALUE not in note]
        if dropped:
            listed = ", ".join(map(repr, dropped))
            notes.insert(0, f"dropped, since they have no value in fit: {listed}")
        if notes:
            warnings.warn("; ".join(notes), UserWarning, stacklevel=3)

    def _holes(self, X: Any) -> NDArray[np.bool_]:
        frame, tokens = frame_of(X), missing_tokens(self.missing_values)
        columns = [frame.cells(position, tokens).missing for position in range(len(frame.names))]
        return np.stack(columns, axis=1)

    def _kept(self) -> list[int]:
        dropped = () if self.keep_empty_features else self.empty_features_
        return [position for position in range(self.n_features_in_) if position not in dropped]

    def _shaped(self, filled: Any, X: Any) -> Any:
        """Return filled columns, the empty ones zero or dropped, with the indicators."""
        if self.keep_empty_features and len(self.empty_features_):
            filled = _with_zeros(frame_of(filled), self.empty_features_.tolist(), self._holes(X))
        elif len(self.empty_features_):
            filled = _columns(filled, self._kept())
        if len(self.indicator_features_):
            names = self.get_feature_names_out()[-len(self.indicator_features_) :].tolist()
            filled = _appended(filled, names, self._holes(X)[:, self.indicator_features_])
        return filled


def checked_table(estimator: BaseEstimator, X: Any, *, reset: bool) -> Any:
    """Return a DataFrame as it is, anything else as an array of float64, or of objects."""
    if nw.dependencies.is_polars_lazyframe(X):
        frame_of(X)  # raises
    if nw.dependencies.is_into_dataframe(X):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X
    return validate_data(
        estimator,
        X,
        reset=reset,
        dtype=object if _has_text(X) else np.float64,
        ensure_all_finite="allow-nan",
    )


def column_kinds(
    X: Any,
    categorical: Collection[str | int] | None,
    ordered: Mapping[str | int, Sequence[str]] | Collection[str | int] | None,
) -> dict[str, Any]:
    """Return what ``fit_table`` is told of columns, whose positions become names."""
    names = frame_of(X).names
    order = several("ordered", ordered or ())
    return {
        "categorical": [_name(key, names) for key in several("categorical", categorical or ())],
        "ordered": {_name(key, names): order[key] for key in order}
        if isinstance(order, Mapping)
        else [_name(key, names) for key in order],
    }


def missing_tokens(missing_values: Any) -> tuple[str, ...]:
    """Return the texts that mean a missing cell."""
    return () if is_missing(missing_values) else (level_text(missing_values),)


def seed_of(random_state: Any) -> int:
    """Return a seed; a generator gives another one each time."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _has_text(X: Any) -> bool:
    if not isinstance(X, np.ndarray):
        return False
    objects = X.dtype.kind == "O" and any(isinstance(value, str) for value in X.flat)
    return X.dtype.kind == "U" or objects


def _name(key: str | int, names: Sequence[str]) -> str:
    """Return a column's name; a number that names none is a position."""
    if (
        isinstance(key, int | np.integer)
        and str(key) not in names
        and -len(names) <= key < len(names)
    ):
        return names[key]
    return str(key)


def _with_zeros(frame: Frame, positions: Collection[int], holes: NDArray[np.bool_]) -> Any:
    numbers = [p for p in positions if frame.form(p) in ("float", "integer") and holes[:, p].any()]
    return frame.fill({p: (holes[:, p], np.zeros(holes[:, p].sum())) for p in numbers})


def _columns(data: Any, positions: Sequence[int]) -> Any:
    if isinstance(data, np.ndarray):
        return data[:, positions]
    if nw.dependencies.is_pandas_dataframe(data):
        return data.iloc[:, positions]
    return nw.from_native(data, eager_only=True)[:, list(positions)].to_native()


def _appended(data: Any, names: Sequence[str], flags: NDArray[np.bool_]) -> Any:
    if isinstance(data, np.ndarray):
        return np.hstack([data, flags.astype(data.dtype)])
    frame = nw.from_native(data, eager_only=True)
    columns = [
        nw.new_series(name, flag.tolist(), nw.Boolean, backend=frame.implementation)
        for name, flag in zip(names, flags.T, strict=True)
    ]
    return frame.with_columns(*columns).to_native()
