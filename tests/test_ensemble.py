"""An ensemble of table VAEs is the equal mixture of its members."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.members import MemberMixture
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.tabular import TableModelConfig, table_model
from postmatch.vaes.ensemble import EnsembleEncoder, TableEnsemble

_SPECS = (
    ColumnSpec("number", step=1e-3, knots=(-2.0, -0.5, 0.0, 0.5, 2.0)),
    ColumnSpec("ordered", size=4),
    ColumnSpec("category", size=3),
)
_SMALL = TableModelConfig(
    latent_size=3, width=16, num_blocks=1, prior_width=8, head_width=8, num_members=3
)


def _ensemble() -> MatchedVAE:
    torch.manual_seed(3)
    model = table_model(_SPECS, _SMALL).eval()
    with torch.no_grad():  # far enough apart that a wrong member would show
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def _members(model: MatchedVAE) -> list[MatchedVAE]:
    assert isinstance(model.vae, TableEnsemble)
    assert isinstance(model.partial, EnsembleEncoder)
    pairs = zip(model.vae.tables, model.partial.encoders, strict=True)
    return [MatchedVAE(vae, partial) for vae, partial in pairs]


def _rows() -> tuple[Tensor, Tensor]:
    x = torch.tensor([[0.3, 2.0, 1.0], [-1.0, 0.0, 2.0], [0.9, 3.0, 0.0]])
    observed = torch.tensor([[True, False, True], [False, True, False], [False, False, True]])
    return x, observed


def _normals() -> MemberMixture:
    means = [torch.tensor([[-2.0, 0.0]]), torch.tensor([[1.0, 1.0]])]
    return MemberMixture([Independent(Normal(mean, 0.5), 1) for mean in means])


def test_the_density_of_member_and_vector_is_the_member_s_own_over_their_number() -> None:
    mixture = _normals()
    value = torch.tensor([[1.0, 0.7, 1.2]])
    exact = mixture.parts[1].log_prob(value[:, 1:]) - math.log(2)
    assert_close(mixture.log_prob(value), exact)


@pytest.mark.parametrize("shared", [True, False])
def test_draws_name_their_member_and_come_from_it(shared: bool) -> None:
    mixture, count = _normals(), 4096
    torch.manual_seed(0)
    if shared:
        size = noise_size(mixture)
        assert size == 3
        z = from_noise(mixture, quasi_uniform(count, size, 0, torch.device("cpu")))
    else:
        z = mixture.sample(torch.Size([count]))
    for m, part in enumerate(mixture.parts):
        own = z[z[..., 0] == m][:, 1:]
        # Half of the draws, within four standard errors of a fair coin.
        assert abs(len(own) - count / 2) < 4 * math.sqrt(count / 4)
        error = (own.mean(0) - part.mean[0]).abs() / (0.5 / math.sqrt(len(own)))
        assert float(error.max()) < 4


def test_a_part_without_from_noise_is_told_as_such() -> None:
    part = Independent(torch.distributions.Laplace(torch.zeros(1, 2), 1.0), 1)
    assert noise_size(MemberMixture([part, part])) is None


def test_independent_noise_selects_a_member_for_each_row() -> None:
    parts = [
        MultivariateNormal(torch.full((5, 2), mean), torch.eye(2) * 1e-4) for mean in (0.0, 9.0)
    ]
    mixture = MemberMixture(parts)
    z = from_noise(mixture, torch.rand(200, 5, 3, generator=torch.Generator().manual_seed(0)))
    assert_close(z[..., 1:].mean(-1), 9.0 * z[..., 0], atol=0.1, rtol=0.0)
    assert 0.3 < float(z[..., 0].mean()) < 0.7


def test_draws_too_few_to_meet_every_member_come_from_those_they_meet() -> None:
    model, (x, observed) = _ensemble(), _rows()
    size = noise_size(model.given(x, observed).latent)
    assert size is not None
    noise = quasi_uniform(1, size, 0, torch.device("cpu"))
    z = from_noise(model.given(x, observed).latent, noise)
    member = _members(model)[int(z[0, 0, 0])]
    assert_close(z[..., 1:], from_noise(member.given(x, observed).latent, noise[..., 1:]))


def test_each_row_is_decoded_by_the_member_that_its_latent_names() -> None:
    model = _ensemble()
    z = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    x, _ = _rows()
    for m, member in enumerate(_members(model)):
        named = torch.cat([torch.full((4, 5, 1), float(m)), z], dim=-1)
        decoded = model.vae.decode(named).log_prob(x[0])
        assert_close(decoded, member.vae.decode(z).log_prob(x[0]))


def test_the_conditional_density_is_the_mean_of_the_members_densities() -> None:
    model, (x, observed) = _ensemble(), _rows()
    only = torch.zeros_like(observed)
    only[torch.arange(3), torch.tensor([1, 0, 1])] = True  # one hidden cell of each row
    seen = ~only
    marginals = model.given(x, seen).marginals(num_samples=6 * 4096)
    together = marginals.log_prob(x)[:, only].exp().mean(0)
    each = [
        m.given(x, seen).marginals(num_samples=8192).log_prob(x)[:, only].exp().mean(0)
        for m in _members(model)
    ]
    # Quasi-random averages of 24,576 and 3 x 8,192 draws.
    assert_close(together, torch.stack(each).mean(0), rtol=0.02, atol=1e-4)


def test_the_bound_of_an_ensemble_is_near_its_density_for_one_hidden_cell() -> None:
    model, (x, _) = _ensemble(), _rows()
    seen = torch.tensor([[True, True, False]]).expand(3, 3)
    exact = model.given(x, seen).marginals(16_384).log_prob(x)[..., 2].exp().mean(0).log()
    with torch.no_grad():
        bound = model.given(x, seen).log_prob(x, num_samples=8192, seed=0)
    # No weight exceeds twice its mean by much, so 8,192 draws have a standard error near 0.015.
    assert_close(bound, exact, atol=0.06, rtol=0.0)


def test_a_config_that_is_not_of_whole_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="num_members must be a positive whole number, got 0"):
        TableModelConfig(num_members=0)
