"""Flows of complete rows, to tell how hard the data are.

They know no conditional densities: their joint log-likelihoods stand beside the published ones, of
the masked autoregressive flow (Papamakarios et al., 2017) and of neural spline flows (Durkan et
al., 2019).
"""

import math
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from postmatch.randomness import seeded
from postmatch.training.plan import Losses
from protocol import Outcome, Task, fit, number_of_parameters

Kind = Literal["nsf", "maf"]
TRANSFORMS: dict[Kind, int] = {"nsf": 10, "maf": 5}
BINS = 8
MAF_LAYERS = (512, 2)  # width and number
_AT_ONCE = 1 << 12  # rows


@final
class Flow(nn.Module):
    r"""The density :math:`\log p(x) = \log N(f(x); 0, I) + \log |\det f'(x)|`.

    Args:
        transform: From nothing to f, as zuko's lazy transforms.
    """

    def __init__(self, transform: nn.Module) -> None:
        super().__init__()
        self.transform = transform

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density of each row."""
        # Not by zuko's own distribution, whose checks would keep a GPU from recording the step.
        z, log_det = self.transform().call_and_ladj(x)
        log_each: Tensor = -0.5 * z.square() - 0.5 * math.log(2.0 * math.pi)
        return log_each.sum(-1) + log_det

    def losses(self, x: Tensor, *_: object) -> Losses:
        """Return the mean negative log-likelihood of complete rows; masks change nothing."""
        return {"joint": -self.log_prob(x).mean()}


def build(num_features: int, width: int, blocks: int, kind: Kind = "nsf") -> Flow:
    """Return an untrained flow, each of its transforms from a masked network.

    Args:
        num_features: Of a row.
        width: Hidden units of a network.
        blocks: Its hidden layers.
        kind: Splines, or affine maps as in the masked autoregressive flow.

    Raises:
        ModuleNotFoundError: Without zuko.
    """
    try:
        from zuko import flows
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{kind} needs zuko: pip install 'postmatch[flows]'") from None
    hidden = [width] * blocks
    if kind == "maf":
        flow = flows.MAF(num_features, transforms=TRANSFORMS[kind], hidden_features=hidden)
    else:
        flow = flows.NSF(
            num_features,
            transforms=TRANSFORMS[kind],
            bins=BINS,
            randperm=True,
            hidden_features=hidden,
            residual=True,
        )
    return Flow(flow.transform)


def nsf(task: Task) -> Outcome:
    """Train and judge a neural spline flow, as wide as our own networks."""
    settings = task.settings("blocks", "width", transforms=TRANSFORMS["nsf"], bins=BINS)
    return _judged(task, "nsf", task.config.width, task.config.blocks, settings)


def maf(task: Task) -> Outcome:
    """Train and judge a masked autoregressive flow, of the published size."""
    width, blocks = MAF_LAYERS
    settings = task.settings(width=width, blocks=blocks, transforms=TRANSFORMS["maf"])
    return _judged(task, "maf", width, blocks, settings)


def _judged(task: Task, kind: Kind, width: int, blocks: int, settings: dict[str, Any]) -> Outcome:
    test = task.rows.test
    with seeded(task.seed):
        model = build(task.num_features, width, blocks, kind).to(test.device)
    report = fit(task, model, model.losses)
    with torch.no_grad():
        joint = torch.cat([model.log_prob(x).double() for x in test.split(_AT_ONCE)])
    return Outcome(
        kind.upper(),
        settings,
        number_of_parameters(model),
        report,
        {"joint_log_prob": float(joint.mean() - task.log_scale.double().sum())},
        "exact joint log-likelihood; no conditional densities",
        task.used,
    )
