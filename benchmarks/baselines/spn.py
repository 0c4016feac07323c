"""Sum-product networks of Gaussian leaves: SPFlow's, with exact conditionals, in double precision.

SPFlow must be installed; ``circuit.py`` tells when it is not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from spflow.learn import learn_spn
from spflow.meta import Scope
from spflow.modules.leaves import Normal
from spflow.modules.module import Module
from spflow.modules.ops import Cat
from spflow.modules.products import Product
from spflow.modules.sums import Sum
from spflow.utils.cache import Cache
from torch import Tensor

from gaussian import JITTER
from postmatch.randomness import seeded
from protocol import Answer, ExactDensity, number_of_parameters

COSINES = 3  # of a feature's ranks, by which dependence is judged
_EMPTY = 1e-9  # rows: nodes that are used by fewer stay as they are
_AT_ONCE = 1 << 20  # numbers in the leaves of all rows


@final
class Circuit(ExactDensity):
    r"""A density of sums :math:`\sum_k w_k\, p_k(x)` and products of features apart, as a tree.

    Args:
        root: Has one output; each of its nodes feeds one other.
    """

    def __init__(self, root: Module) -> None:
        self.root = root.double()
        self.leaves = [node for node in root.modules() if isinstance(node, Normal)]
        self.sums = [node for node in root.modules() if isinstance(node, Sum)]

    @property
    def parameters(self) -> int:
        """Return how many free numbers there are; the weights of a sum add up to one."""
        return number_of_parameters(self.root) - len(self.sums)

    def blocks(self, x: Tensor) -> list[slice]:
        """Return rows to be answered at a time, by the memory that it takes."""
        step = max(1, _AT_ONCE // sum(leaf.loc.numel() for leaf in self.leaves))
        return [slice(i, i + step) for i in range(0, len(x), step)]

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of what is not NaN in each row."""
        found: Tensor = self.root.log_likelihood(x.double())
        return found.flatten()

    def given(self, x: Tensor, observed: Tensor) -> "CircuitAnswer":
        """Return the distribution of what is hidden; hidden entries may hold anything."""
        return CircuitAnswer(self, x, observed)

    def mean(self, x: Tensor) -> Tensor:
        r"""Return :math:`\sum_l P(l \mid x_o)\, \mu_l` over each feature's leaves; x_u is NaN."""
        mean = torch.zeros_like(x)
        for leaf, share in zip(self.leaves, self._shares(x, self.leaves), strict=True):
            mean[:, leaf.scope.query] += (share * leaf.loc.detach()).sum((2, 3))
        return mean

    def improve(self, rows: Tensor) -> None:
        r"""Take one step of expectation maximisation, as SPFlow's own, with its rows in parts.

        Leaves get the mean and the variance of the rows weighted by :math:`P(l \mid x)`, edges of
        sums the weights :math:`\sum_x P(k \mid x)`, up to their sum.
        """
        moments = [torch.zeros_like(leaf.loc).repeat(3, 1, 1, 1) for leaf in self.leaves]
        counts = [torch.zeros_like(node.logits) for node in self.sums]
        nodes = [*self.leaves, *(node.inputs for node in self.sums)]
        for block in self.blocks(rows):
            x = rows[block].double()
            shares = self._shares(x, nodes)  # (rows, features, channels, 1)
            for leaf, moment, share in zip(
                self.leaves, moments, shares[: len(moments)], strict=True
            ):
                away = x[:, leaf.scope.query, None, None] - leaf.loc.detach()
                moment += torch.stack([(share * away**power).sum(0) for power in range(3)])
            for count, share in zip(counts, shares[len(moments) :], strict=True):
                count += share.sum(0).unsqueeze(2)
        with torch.no_grad():
            for leaf, moment in zip(self.leaves, moments, strict=True):
                _move(leaf, *moment)
            for node, count in zip(self.sums, counts, strict=True):
                positive = count.clamp(min=_EMPTY)
                node.weights = positive / positive.sum(1, keepdim=True)

    @torch.enable_grad()
    def _shares(self, x: Tensor, nodes: Sequence[Module]) -> Sequence[Tensor]:
        r"""Return :math:`P(n \mid x) = \partial \log p(x) / \partial \log p_n(x)` of each node."""
        cache = Cache()
        log_prob = self.root.log_likelihood(x, cache=cache).sum()
        each = [cache["log_likelihood"][node] for node in nodes]
        return torch.autograd.grad(log_prob, each)


def _move(leaf: Normal, total: Tensor, first: Tensor, second: Tensor) -> None:
    """Give a leaf the mean and variance that these moments about its old mean tell."""
    shift = first / total.clamp(min=_EMPTY)
    variance = (second / total.clamp(min=_EMPTY) - shift.square()).clamp(min=0.0) + JITTER
    used = total > _EMPTY
    leaf.scale = torch.where(used, variance.sqrt(), leaf.scale)
    leaf.loc.data = torch.where(used, leaf.loc + shift, leaf.loc)


@final
class CircuitAnswer(Answer):
    r"""The circuit :math:`p(x_u \mid x_o)` of each row."""

    def __init__(self, model: Circuit, x: Tensor, observed: Tensor) -> None:
        self.model, self.observed = model, observed
        self.x = x.double().masked_fill(~observed, torch.nan)

    def log_prob(self, x: Tensor, num_samples: int = 0) -> Tensor:  # noqa: ARG002
        r"""Return :math:`\log p(x) - \log p(x_o)`; nothing is drawn."""
        whole = torch.where(self.observed, self.x, x.double())
        return self.model.log_prob(whole) - self.model.log_prob(self.x)

    def log_prob_gap(self, num_samples: int = 0) -> None:
        """Return nothing: all is exact."""

    def impute(self) -> Tensor:
        """Return the exact conditional means, and what is observed as it is."""
        return torch.where(self.observed, self.x, self.model.mean(self.x))


@final
class Cuts:
    """How LearnSPN cuts a table: features that seem independent, or else two clusters of rows.

    SPFlow's own test of independence takes seconds for the pairs of 43 features, this one
    milliseconds; and its own clusters heed features that are out of a node's scope.

    Args:
        min_rows: Fewer are cut no more.
        threshold: Features with less dependence than that are taken to be independent.
        seed: Of the clusters.
    """

    def __init__(self, min_rows: int, threshold: float, seed: int) -> None:
        self.min_rows, self.threshold = min_rows, threshold
        self.random = np.random.RandomState(seed)

    def features(self, x: Tensor) -> Tensor:
        """Return the group of each feature."""
        self.in_scope = x
        if len(x) < self.min_rows:
            return torch.zeros(x.shape[1], dtype=torch.int)  # a product of leaves in any case
        dependent = (dependence(x) > self.threshold).numpy()
        return torch.from_numpy(connected_components(dependent)[1])

    def rows(self, _: Tensor) -> Tensor:
        """Return the cluster of each row whose features were just looked at in vain."""
        x = self.in_scope
        x = (x - x.mean(0)) / (x.var(0) + JITTER).sqrt()
        labels = KMeans(2, n_init=1, random_state=self.random).fit(x.numpy()).labels_
        return torch.from_numpy(labels if labels.any() else np.arange(len(x)) % 2).long()


def dependence(x: Tensor) -> Tensor:
    r"""Return how much each two features depend on each other, between 0 and 1.

    It is the largest canonical correlation of :math:`\cos \pi j u` of both, where u are their
    ranks as parts of one: the randomized dependence coefficient (Lopez-Paz et al., 2013) of cosines
    that are not random, and that ranks make orthonormal.
    """
    rows, features = x.shape
    ranks = (x.argsort(0).argsort(0).double() + 0.5) / rows
    cosines = (math.pi * ranks[..., None] * torch.arange(1, COSINES + 1)).cos().flatten(1)
    both = (cosines.T @ cosines * (2.0 / rows)).view(features, COSINES, features, COSINES)
    return torch.linalg.matrix_norm(both.transpose(1, 2), ord=2)


class _FirstLeaves(Normal):
    """Gaussian leaves whose variances are those of the rows, and never zero.

    SPFlow divides by the rows per feature less one, which widens them, or makes them NaN.
    """

    def _compute_parameter_estimates(self, data: Tensor, *_: object) -> dict[str, Tensor]:
        return {"loc": data.mean(0), "scale": (data.var(0, correction=0) + JITTER).sqrt()}


def learn(rows: Tensor, min_rows: int, threshold: float, seed: int) -> Circuit:
    """Return the circuit that SPFlow's LearnSPN (Gens and Domingos, 2013) makes of complete rows.

    Args:
        rows: All of them, ``(rows, features)``.
        min_rows: As in ``Cuts``.
        threshold: As in ``Cuts``.
        seed: Of the clusters.
    """
    cuts = Cuts(min_rows, threshold, seed)
    with seeded(seed):
        root = learn_spn(
            rows.double().cpu(),
            _FirstLeaves(Scope(range(rows.shape[1]))),
            min_instances_slice=min_rows,
            partitioning_method=cuts.features,
            clustering_method=cuts.rows,
        )
    return Circuit(compact(root).to(rows.device))


def compact(node: Any) -> Module:
    """Return the same density with sums of sums as one sum, and their leaves side by side."""
    if isinstance(node, Normal):
        return _leaves([node])
    if isinstance(node, Product):
        return Product([compact(part) for part in _inputs(node)])
    weights, parts = zip(*_parts(node), strict=True)
    simple = [i for i, part in enumerate(parts) if isinstance(part.inputs, Normal)]
    others = [i for i in range(len(parts)) if i not in simple]
    inputs = list[Module]()
    if simple:
        inputs.append(Product(_leaves([parts[i].inputs for i in simple])))
    inputs += [compact(parts[i]) for i in others]
    return Sum(inputs, weights=torch.stack([weights[i] for i in simple + others]))


def _inputs(node: Any) -> list[Any]:
    return list(node.inputs.inputs) if isinstance(node.inputs, Cat) else [node.inputs]


def _parts(node: Any, weight: float | Tensor = 1.0) -> Iterator[tuple[Tensor, Any]]:
    """Yield the products that sums of sums come down to, with their weights."""
    shares = node.weights.detach().double().flatten()
    for share, part in zip(shares, _inputs(node), strict=True):
        if isinstance(part, Sum):
            yield from _parts(part, weight * share)
        else:
            yield weight * share, part


def _leaves(leaves: Sequence[Normal]) -> Normal:
    """Return leaves of the same features as channels of one."""
    loc = torch.cat([leaf.loc.detach().double() for leaf in leaves], dim=1)
    scale = torch.cat([leaf.scale.detach().double() for leaf in leaves], dim=1)
    return Normal(leaves[0].scope, loc=loc, scale=scale, validate_args=False)
