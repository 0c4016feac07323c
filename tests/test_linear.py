"""Linear layers whose gradients go straight to their places: the same numbers as autograd's."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from postmatch.nets import linear as linear_module
from postmatch.nets.linear import GradientPlaces, Half, Linear, linear
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.mlp import ResidualMLP
from postmatch.training.flat import untrained_halves


class Two(nn.Module):
    """A layer that is used twice, with several leading axes, and a plain one between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain = Linear(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer of the plain layer of the layer."""
        return self.layer(self.plain(self.layer(x).relu()))


NETS = {
    "mlp": lambda: ResidualMLP(6, 16, 2),
    "masked": lambda: MaskedResidualNet(6, 4, 16, 2),
    "twice": Two,
}


def both_ways(net: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return the gradients of parameters and of x, by autograd and by places."""
    theirs = torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])
    places = {p: torch.zeros_like(p) for p in net.parameters()}
    with GradientPlaces(places).filled():
        (mine,) = torch.autograd.grad(net(x).square().sum(), [x], retain_graph=False)
    for p in net.parameters():
        p.grad = None
    again = {p: torch.zeros_like(p) for p in net.parameters()}
    with GradientPlaces(again).filled():
        net(x).square().sum().backward()
    found = [again[p] if p.grad is None else again[p] + p.grad for p in net.parameters()]
    return list(theirs[1:]), found, theirs[0], mine


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("leading", [(5,), (3, 5)])
def test_places_get_what_autograd_gives(name: str, leading: tuple[int, ...]) -> None:
    net = NETS[name]().double()
    x = torch.randn(*leading, 6, dtype=torch.double, requires_grad=True)
    theirs, found, input_theirs, input_mine = both_ways(net, x)
    assert_close(input_mine, input_theirs)
    for expected, place in zip(theirs, found, strict=True):
        assert_close(place, expected)
    assert any(expected.abs().max() > 0.1 for expected in theirs)


def test_linear_layers_fill_their_places_and_leave_grad_alone() -> None:
    net = Linear(4, 3)
    places = {p: torch.ones_like(p) for p in net.parameters()}
    with GradientPlaces(places).filled():
        net(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    assert_close(places[net.weight], torch.full((3, 4), 3.0))  # two rows, added to what was there
    assert_close(places[net.bias], torch.full((3,), 3.0))
    net(torch.ones(2, 4)).sum().backward()  # outside, autograd's own way
    assert_close(net.weight.grad, torch.full((3, 4), 2.0))
    assert_close(places[net.weight], torch.full((3, 4), 3.0))


def test_places_are_full_precision_though_products_are_half() -> None:
    net, x = Linear(32, 8), torch.randn(64, 32)
    places = {p: torch.zeros_like(p) for p in net.parameters()}
    with torch.autocast("cpu", torch.bfloat16), GradientPlaces(places).filled():
        out = net(x)
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
    exact = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    for parameter, expected in zip(net.parameters(), exact, strict=True):
        assert places[parameter].dtype == torch.float32
        apart = (places[parameter] - expected).abs().max() / expected.abs().max()
        assert 0.0 < apart < 0.03


@pytest.mark.parametrize("name", ["mlp", "masked"])
def test_what_a_layer_reads_beside_the_backward_pass_is_not_changed_by_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Autograd adds into a gradient that nobody else holds. Where a GPU works side by side, a
    # layer may read its gradient long after its own backward pass has returned.
    read: list[tuple[int, Tensor]] = []  # addresses, for a reference would hide the defect
    fill = linear_module._fill

    def noted(ctx: object, gradient: Tensor, x: Tensor, mask: Tensor | None) -> None:
        read.append((gradient.data_ptr(), gradient.clone()))
        fill(ctx, gradient, x, mask)

    monkeypatch.setattr(linear_module, "_fill", noted)
    net = NETS[name]()
    x = torch.randn(8, 6, requires_grad=True)
    places = GradientPlaces({p: torch.zeros_like(p) for p in net.parameters()})
    with places.filled():
        net(x).square().sum().backward()
        later = {t.data_ptr(): t for t in places.read}
        for address, before in read:
            assert_close(later[address].view_as(before), before, atol=0.0, rtol=0.0)
    assert len(read) >= 5
    assert not places.read


def test_halves_of_what_is_not_trained_are_rounded_and_of_nothing_else() -> None:
    net = nn.Sequential(Linear(5, 4), Linear(4, 3))
    net[0].requires_grad_(False)
    net[1].bias.requires_grad_(False)
    halves = untrained_halves(net)
    assert set(halves) == {net[0].weight, net[0].bias, net[1].bias}
    for parameter, half in halves.items():
        assert half.value.dtype == torch.bfloat16
        assert torch.equal(half.value, parameter.detach().to(torch.bfloat16))
        assert not torch.equal(half.value.float(), parameter)  # some bits are lost
        assert not half.value.requires_grad
        assert not half.gradient.numel()
    assert untrained_halves(net.requires_grad_(True)) == {}


def test_a_masked_layer_that_is_not_trained_keeps_its_zeros_in_half_precision() -> None:
    layer, x = Linear(6, 4).requires_grad_(False), torch.randn(5, 6)
    mask = torch.rand(4, 6).round()
    other = {p: Half(torch.randn_like(p).bfloat16(), p.new_empty(0)) for p in layer.parameters()}
    with torch.autocast("cpu", torch.bfloat16), places_of_another(other).filled():
        found = linear(x, layer.weight, layer.bias, mask)
    weight, bias = (half.value for half in other.values())
    expected = nn.functional.linear(x.bfloat16(), weight * mask.bfloat16(), bias)
    assert torch.equal(found, expected)


def test_a_bias_is_trained_beside_a_weight_that_is_not() -> None:
    layer, x = Linear(6, 4), torch.randn(5, 6)
    layer.weight.requires_grad_(False)
    other = {p: Half(torch.randn_like(p).bfloat16(), p.new_empty(0)) for p in layer.parameters()}
    with torch.autocast("cpu", torch.bfloat16), places_of_another(other).filled():
        found = layer(x)
        found.float().sum().backward()
    weight, _ = (half.value for half in other.values())
    expected = nn.functional.linear(x.bfloat16(), weight, layer.bias.bfloat16())
    assert torch.equal(found, expected)
    assert layer.weight.grad is None
    assert_close(layer.bias.grad, torch.full((4,), 5.0))


def places_of_another(halves: dict[nn.Parameter, Half]) -> GradientPlaces:
    """Return places for a layer that is trained, beside these halves of what is not."""
    trained = Linear(2, 2)
    return GradientPlaces({p: torch.zeros_like(p) for p in trained.parameters()}, halves)
