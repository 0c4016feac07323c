"""Convolutional networks between images and vectors, and pixels as features."""

import pytest
import torch
from torch.distributions import Bernoulli, Normal
from torch.testing import assert_close

from postmatch.distributions.noise import from_noise, noise_size
from postmatch.distributions.pixels import Pixels
from postmatch.nets.conv import ConvDecoder, ConvEncoder


def test_strides_alone_change_the_size_and_the_last_kernel_ends_it() -> None:
    layers = ((4, 5, 1), (6, 5, 2), (8, 3, 2), (10, 7, 1))
    assert ConvEncoder(2, layers)(torch.randn(3, 2, 28, 28)).shape == (3, 10)
    assert ConvEncoder(2, layers)(torch.randn(3, 2, 32, 32)).shape == (3, 40)  # 8 x 8 less 7 x 7


def test_a_decoder_grows_one_position_to_an_image() -> None:
    decoder = ConvDecoder(5, ((8, 7, 1), (6, 5, 2), (4, 3, 1), (3, 5, 2)))
    z = torch.randn(2, 4, 5)
    images = decoder(z)
    assert images.shape == (2, 4, 3, 28, 28)
    assert_close(images[1, 2], decoder(z[1, 2]), atol=1e-5, rtol=1e-5)


def test_logits_may_have_either_sign() -> None:
    torch.manual_seed(0)
    decoder = ConvDecoder(5, ((8, 7, 1), (1, 5, 2)))
    decoder.layers[-1].weight.data.mul_(100.0)  # type: ignore[union-attr, operator]
    images = decoder(torch.randn(50, 5))
    # A leaky ReLU behind the last layer would make negative ones a hundred times smaller.
    assert -images.min() > 0.3 * images.max()


def test_padded_kernels_must_be_odd() -> None:
    with pytest.raises(ValueError, match="kernel must be odd where edges are padded, got 4"):
        ConvEncoder(1, ((4, 4, 2), (4, 7, 1)))


def test_a_pixel_of_three_channels_counts_once() -> None:
    mean, x = torch.randn(2, 5, 3, 4, 6), torch.randn(5, 3, 4, 6)
    pixels = Pixels(Normal(mean, 0.5))
    log_each = pixels.log_prob(x)
    assert log_each.shape == (2, 5, 1, 4, 6)
    assert_close(log_each[:, :, 0], Normal(mean, 0.5).log_prob(x).sum(2))
    assert torch.equal(pixels.mean, mean)
    assert noise_size(pixels) == 3 * 4 * 6
    uniform = torch.rand(2, 5, 72)
    assert torch.equal(from_noise(pixels, uniform), from_noise(Normal(mean, 0.5), uniform))


def test_pixels_are_drawn_as_their_base_is() -> None:
    torch.manual_seed(0)
    chance = torch.rand(1, 1, 4, 4)
    drawn = Pixels(Bernoulli(chance)).sample(torch.Size([4_000]))
    error = (chance * (1.0 - chance) / 4_000).sqrt()
    assert ((drawn.mean(0) - chance).abs() < 4.5 * error).all()
