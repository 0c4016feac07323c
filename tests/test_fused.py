"""Layers with their activations, by places and by autograd: the same numbers, on CPU and GPU."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from postmatch.nets.convolution import Convolution
from postmatch.nets.fused import activated, forked, gelu, mapped
from postmatch.nets.linear import GradientPlaces, Half, Linear
from postmatch.training.flat import untrained_halves

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
LAYERS = {"linear": lambda: Linear(6, 6), "convolution": lambda: Convolution(6)}


def layer_of(name: str, device: str) -> nn.Module:
    """Return a layer with weights and a bias that are far from zero."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.to(device)


def by_autograd(layer: nn.Module, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """Return gradients of the inputs and of the parameters."""
    x, more = inputs
    out = gelu(layer(x) + more)
    return list(torch.autograd.grad((out * weight).sum(), [*inputs, *layer.parameters()]))


def images(device: str) -> tuple[list[Tensor], Tensor]:
    """Return more pixels than a kernel takes at a time, and as many once more to be added."""
    x, more, weight = torch.randn(3, 21, 5, 5, 6, generator=torch.Generator().manual_seed(1))
    return [t.to(device).requires_grad_() for t in (x, more)], weight.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_places_get_what_autograd_gives(name: str, half: bool, device: str) -> None:
    layer, (inputs, weight) = layer_of(name, device), images(device)
    parameters = list(layer.parameters())
    exact = by_autograd(layer, inputs, weight)
    places = {p: torch.zeros_like(p) for p in parameters}
    halves = {p: Half(p.detach().bfloat16(), torch.zeros_like(p).bfloat16()) for p in parameters}
    filled = GradientPlaces(places, halves if half else None).filled()
    with torch.autocast(device, torch.bfloat16, enabled=half), filled:
        out = activated(layer, *inputs)  # type: ignore[arg-type]
        (out.float() * weight).sum().backward()
    assert all(p.grad is None for p in parameters)
    found = [t.grad for t in inputs] + [places[p] + halves[p].gradient.float() for p in parameters]
    for mine, expected in zip(found, exact, strict=True):
        apart = (mine - expected).abs().max() / expected.abs().max()
        assert apart < (0.02 if half else 2e-3 if device == "cuda" else 1e-5)
    if half:  # weights are rounded all at once, and their gradients kept apart
        assert halves[parameters[0]].gradient.abs().max() > 0.1
        assert places[parameters[0]].abs().max() == 0.0


def test_evidence_is_shared_by_samples() -> None:
    layer, (inputs, _) = layer_of("convolution", "cpu"), images("cpu")
    x, more = inputs
    twice = activated(layer, torch.cat([x, 2.0 * x]), more)  # type: ignore[arg-type]
    assert_close(twice[21:], gelu(layer(2.0 * x) + more))


def test_float32_layers_keep_their_digits_among_halves() -> None:
    layer = Linear(6, 3)
    places = {p: torch.zeros_like(p) for p in layer.parameters()}
    halves = {p: Half(*torch.zeros(2, *p.shape, dtype=torch.bfloat16)) for p in places}
    with GradientPlaces(places, halves).filled():  # no autocast: halves are not asked
        out = layer(torch.ones(2, 6))
        out.sum().backward()
    assert_close(out, layer(torch.ones(2, 6)))
    assert_close(places[layer.weight], torch.full((3, 6), 2.0))


def other_halves(layer: nn.Module) -> dict[nn.Parameter, Half]:
    """Return halves that are far from what the layer holds, so that it shows which are used."""
    return {p: Half((1.0 - p.detach()).bfloat16(), p.new_empty(0)) for p in layer.parameters()}


def beside_a_trained_one(halves: dict[nn.Parameter, Half]) -> GradientPlaces:
    """Return these halves, and places for another layer: without any, nothing is asked for."""
    trained = Linear(2, 2)
    return GradientPlaces({p: torch.zeros_like(p) for p in trained.parameters()}, halves)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("graded", [False, True], ids=["no_grad", "grad"])
def test_a_layer_that_is_not_trained_computes_with_its_half(name: str, graded: bool) -> None:
    layer, ((x, _), _) = layer_of(name, "cpu").requires_grad_(False), images("cpu")
    halves, other = other_halves(layer), copy.deepcopy(layer)
    for parameter, half in zip(other.parameters(), halves.values(), strict=True):
        parameter.copy_(half.value)
    exact = layer(x)
    with beside_a_trained_one(halves).filled(), torch.set_grad_enabled(graded):
        full = layer(x)  # no autocast: halves are not asked
        with torch.autocast("cpu", torch.bfloat16):
            found, linear_part = layer(x), layer.without_bias(x)  # type: ignore[operator]
    assert torch.equal(full, exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, other(x))
        assert torch.equal(linear_part, other.without_bias(x))  # type: ignore[operator]
        assert (found - layer(x)).abs().max() > 1.0


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_not_trained_tells_what_autocast_tells_to_the_bit(name: str) -> None:
    layer, ((x, _), weight) = layer_of(name, "cpu").requires_grad_(False), images("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
        with beside_a_trained_one(untrained_halves(layer)).filled():
            found = layer(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad((out * weight).sum(), x)[0] for out in (found, expected)]
    assert torch.equal(*gradients)
    assert gradients[0].abs().max() > 0.1


@pytest.mark.parametrize("name", LAYERS)
def test_a_trained_layer_without_a_place_goes_autograds_way(name: str) -> None:
    layer, ((x, _), weight) = layer_of(name, "cpu"), images("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
        with beside_a_trained_one(other_halves(layer)).filled():
            found = layer(x)
    assert torch.equal(found, expected)
    parameters = list(layer.parameters())
    both = [torch.autograd.grad((out * weight).sum(), parameters) for out in (found, expected)]
    for mine, theirs in zip(*both, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.abs().max() > 0.1


def test_a_layer_that_is_not_trained_tells_halves_in_float32_by_its_own_weight() -> None:
    layer, x = Linear(6, 3).requires_grad_(False), torch.randn(50, 6).bfloat16()
    exact = layer(x.float())
    halves = beside_a_trained_one(other_halves(layer))
    with torch.autocast("cpu", torch.bfloat16), halves.filled():
        found = mapped(layer, x)
    assert torch.equal(found, exact)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sides", [(48, 32), (20, 5), (192, 30)])
def test_a_layer_tells_halves_in_float32(sides: tuple[int, int], device: str) -> None:
    torch.manual_seed(0)
    layer, rows = Linear(*sides).to(device), 40_000
    x = torch.randn(rows, sides[0], device=device).bfloat16().requires_grad_()
    weight = torch.randn(rows, sides[1], device=device)
    exact = layer(x.float())
    expected = torch.autograd.grad((exact * weight).sum(), [x, *layer.parameters()])
    places = {p: torch.ones_like(p) for p in layer.parameters()}
    with torch.autocast(device, torch.bfloat16), GradientPlaces(places).filled():
        out = mapped(layer, x)
        (out * weight).sum().backward()
    assert out.dtype == torch.float32
    # A GPU rounds factors to 10 bits, and the gradient of x has 7.
    assert_close(out, exact, rtol=1e-3, atol=1e-3)
    found = [x.grad, *(place - 1.0 for place in places.values())]
    for mine, true in zip(found, expected, strict=True):
        assert mine is not None
        apart = (mine - true).abs().max() / true.abs().max()
        assert apart < (0.01 if mine.dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_fork_meet(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 7, 70, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    weights = torch.randn(2, *x.shape, generator=torch.Generator().manual_seed(3)).to(device)
    x.requires_grad_()
    both = forked(x)
    (found,) = torch.autograd.grad((weights * torch.stack(both)).sum(), x)
    exact = x.detach().double().requires_grad_()
    loss = (weights[0] * gelu(exact)).sum() + (weights[1] * exact).sum()
    (expected,) = torch.autograd.grad(loss, exact)
    apart = (found.double() - expected).abs().max() / expected.abs().max()
    assert apart < (0.02 if dtype == torch.bfloat16 else 1e-5)
    with torch.no_grad():
        assert_close(forked(x)[0], gelu(x))


@GPU
@pytest.mark.parametrize("shape", [(30, 28, 28, 48), (5, 7, 7, 6), (3, 3, 3, 16), (9, 14, 10, 64)])
def test_gradients_of_a_convolutions_weight_are_those_of_torch(shape: tuple[int, ...]) -> None:
    from postmatch.nets.convolution_kernels import weight_gradient

    gradient, x = torch.randn(2, *shape, device="cuda").bfloat16()
    weight = torch.zeros(shape[-1], shape[-1], 3, 3, device="cuda")
    across = [t.double().movedim(-1, 1) for t in (gradient, x)]
    _, expected, _ = torch.ops.aten.convolution_backward(
        *across, weight.double(), None, *[[1, 1]] * 3, False, [0, 0], 1, [False, True, False]
    )
    assert_close(
        weight_gradient(gradient, x).double(), expected.movedim(1, -1), rtol=1e-3, atol=0.05
    )
