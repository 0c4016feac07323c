"""The codebook of a VQ-VAE, by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from postmatch.vaes.vq import Codebook


def codebook(vectors: list[float], decay: float = 0.9, patience: int = 100) -> Codebook:
    book = Codebook(len(vectors), 1, decay, patience=patience)
    for buffer in (book.vectors, book.sums):
        buffer.copy_(torch.tensor(vectors)[:, None])
    return book


def test_the_nearest_code_is_the_nearest() -> None:
    book = Codebook(7, 3)
    features = torch.randn(2, 4, 5, 3)
    distance = (features[..., None, :] - book.vectors).norm(dim=-1)
    assert torch.equal(book.nearest(features), distance.argmin(-1))
    assert_close(book(book.nearest(book.vectors)), book.vectors)


def test_an_update_moves_vectors_to_the_running_mean_of_their_features() -> None:
    book = codebook([0.0, 10.0])
    features = torch.tensor([[1.0], [3.0], [9.0]])
    codes = book.nearest(features)
    assert codes.tolist() == [0, 0, 1]
    book.update(features, codes)
    # Counts .9 + .1 * 2 and .9 + .1 * 1; sums .9 * 0 + .1 * 4 and .9 * 10 + .1 * 9.
    assert_close(book.counts, torch.tensor([1.1, 1.0]))
    assert_close(book.sums[:, 0], torch.tensor([0.4, 9.9]))
    # Smoothed counts add up to 2.1 as before: (1.1 + 1e-5) / (2.1 + 2e-5) * 2.1, and so on.
    smooth = [(n + 1e-5) / (2.1 + 2e-5) * 2.1 for n in (1.1, 1.0)]
    assert_close(book.vectors[:, 0], torch.tensor([0.4 / smooth[0], 9.9 / smooth[1]]))
    assert book.idle.tolist() == [0, 0]
    book.update(features[:2], codes[:2])
    assert_close(book.counts, torch.tensor([0.9 * 1.1 + 0.2, 0.9]))
    assert_close(book.sums[:, 0], torch.tensor([0.9 * 0.4 + 0.4, 0.9 * 9.9]))
    assert book.vectors[1].item() == pytest.approx(9.9, rel=1e-4)  # unused, so it stays
    assert book.idle.tolist() == [0, 1]


def test_vectors_converge_to_the_means_of_clusters() -> None:
    book, centres = codebook([-0.1, 0.1], decay=0.99), torch.tensor([-2.0, 3.0])
    for _ in range(800):
        features = (centres[torch.randint(2, (50,))] + 0.1 * torch.randn(50))[:, None]
        book.update(features, book.nearest(features))
    # The average has a memory of 1 / (1 - .99) = 100 batches, each with about 25 of a cluster.
    assert ((book.vectors[:, 0] - centres).abs() < 4.5 * 0.1 / math.sqrt(2500)).all()


def test_an_idle_code_starts_again_at_a_feature_when_patience_ends() -> None:
    book = codebook([0.0, 100.0], patience=3)
    features = torch.tensor([[1.0], [2.0], [3.0]])
    for waited in (1, 2):
        book.update(features, book.nearest(features))
        assert book.vectors[1].item() == pytest.approx(100.0, rel=1e-4)
        assert book.idle.tolist() == [0, waited]
    before = book.counts.clone()
    book.update(features, book.nearest(features))
    assert book.vectors[1].item() in (1.0, 2.0, 3.0)
    assert book.sums[1] == book.vectors[1]
    assert (book.counts[1].item(), book.idle.tolist()) == (1.0, [0, 0])
    assert_close(book.counts[0], 0.9 * before[0] + 0.3)  # the other goes on
    assert (book.nearest(features) == 1).any()


def test_an_idle_code_starts_again_where_no_vector_fits() -> None:
    features = torch.tensor([0.0] * 500 + [6.0, 8.0])[:, None]
    at_six = 0
    for seed in range(400):
        book = codebook([0.0, 100.0], patience=1)
        book.update(features, book.nearest(features), torch.Generator().manual_seed(seed))
        assert book.vectors[1].item() in (6.0, 8.0)
        at_six += book.vectors[1].item() == 6.0
    # In proportion to 36 and 64; the error of a share of 400 draws is .024.
    assert abs(at_six / 400 - 0.36) < 4 * 0.024


def test_where_idle_codes_start_again_is_decided_by_the_generator() -> None:
    features, found = torch.randn(500, 1), []
    for seed in (1, 1, 2):
        torch.manual_seed(len(found))  # of no effect
        book = codebook([0.0, 100.0, 200.0], patience=1)
        book.update(features, book.nearest(features), torch.Generator().manual_seed(seed))
        found.append(book.vectors.clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0][1:], found[2][1:])
    assert found[0][1] != found[0][2]


def test_features_that_are_not_finite_change_nothing() -> None:
    book = codebook([0.0, 10.0], patience=1)
    before = {name: buffer.clone() for name, buffer in book.named_buffers()}
    features = torch.tensor([[1.0], [math.nan]])
    book.update(features, book.nearest(features))
    for name, buffer in book.named_buffers():
        assert torch.equal(buffer, before[name]), name
