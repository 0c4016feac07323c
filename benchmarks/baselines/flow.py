"""A neural spline flow of complete rows, to tell how hard the data are (Durkan et al., 2019).

It knows no conditional densities: its joint log-likelihood stands beside the published ones.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from postmatch.randomness import seeded
from postmatch.training.plan import Losses
from protocol import Outcome, Task, fit, number_of_parameters

TRANSFORMS = 10
BINS = 8
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


def build(num_features: int, width: int, blocks: int) -> Flow:
    """Return an untrained flow of autoregressive splines, each from a masked residual network.

    Raises:
        ModuleNotFoundError: Without zuko.
    """
    try:
        from zuko.flows import NSF
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nsf needs zuko: pip install 'postmatch[flows]'") from None
    flow = NSF(
        num_features,
        transforms=TRANSFORMS,
        bins=BINS,
        randperm=True,
        hidden_features=[width] * blocks,
        residual=True,
    )
    return Flow(flow.transform)


def nsf(task: Task) -> Outcome:
    """Train and judge the flow."""
    c, test = task.config, task.rows.test
    with seeded(task.seed):
        model = build(task.num_features, c.width, c.blocks).to(test.device)
    report = fit(task, model, model.losses)
    with torch.no_grad():
        joint = torch.cat([model.log_prob(x).double() for x in test.split(_AT_ONCE)])
    return Outcome(
        "NSF",
        task.settings("blocks", "width", transforms=TRANSFORMS, bins=BINS),
        number_of_parameters(model),
        report,
        {"joint_log_prob": float(joint.mean() - task.log_scale.double().sum())},
        "exact joint log-likelihood; no conditional densities",
        task.used,
    )
