"""Rubin's rules: one answer from the analyses of several imputed tables."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Pooled", "pool"]

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Pooled:
    """The pooled estimate of each parameter; every field has the shape of one estimate."""

    estimate: Floats
    variance: Floats
    """Total variance, of which ``within`` and ``between`` imputations are the parts."""
    within: Floats
    between: Floats
    dof: Floats
    """Degrees of freedom of Student's t; infinite when the imputations agree."""
    fraction_missing_information: Floats

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Return the lower and upper ends of the central interval at ``level``."""
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level}")
        from scipy.stats import t

        margin = t.ppf((1 + level) / 2, self.dof) * np.sqrt(self.variance)
        return self.estimate - margin, self.estimate + margin


def pool(
    estimates: ArrayLike, variances: ArrayLike, complete_dof: ArrayLike | None = None
) -> Pooled:
    r"""Return the estimates of m imputed tables as one (Rubin 1987, section 3.3).

    .. math:: T = \bar{U} + (1 + \tfrac{1}{m}) B, \quad
        \lambda = (1 + \tfrac{1}{m}) B / T, \quad
        \nu_m = (m - 1) / \lambda^2

    with the mean variance :math:`\bar{U}` and the variance B of the estimates. Where the complete
    table would leave :math:`\nu` degrees of freedom, those of Barnard and Rubin (1999) are used,
    which never exceed it:

    .. math:: \frac{1}{\tilde{\nu}} = \frac{1}{\nu_m}
        + \frac{\nu + 3}{\nu (\nu + 1) (1 - \lambda)}

    Args:
        estimates: ``(imputations, *parameters)``.
        variances: Squared standard errors, of the same shape.
        complete_dof: Degrees of freedom had nothing been missing, such as rows minus parameters.

    Example:
        >>> pooled = pool([1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
        >>> float(pooled.estimate), round(float(pooled.variance), 3), round(float(pooled.dof), 3)
        (2.0, 1.833, 3.781)
    """
    q, u = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if q.shape != u.shape:
        raise ValueError(f"variances must have the shape of estimates, {q.shape}, got {u.shape}")
    if q.ndim == 0 or len(q) < 2:
        raise ValueError("estimates must come from at least two imputed tables")
    if (u < 0).any():
        raise ValueError("variances must not be negative")
    m = len(q)
    within, between = u.mean(0), q.var(0, ddof=1)
    added = (1 + 1 / m) * between
    variance = within + added
    # No variance at all means that nothing was uncertain, so nothing of it is due to missing cells.
    share = np.divide(added, variance, out=np.zeros_like(added), where=variance > 0)
    with np.errstate(divide="ignore"):
        dof = np.divide(m - 1, share**2)
        if complete_dof is not None:
            nu = np.asarray(complete_dof, np.float64)
            dof = 1 / (1 / dof + 1 / ((nu + 1) / (nu + 3) * nu * (1 - share)))
    return Pooled(
        estimate=q.mean(0),
        variance=variance,
        within=within,
        between=between,
        dof=dof,
        fraction_missing_information=share + (1 - share) * 2 / (dof + 3),
    )
