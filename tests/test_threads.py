"""One thread for small networks, and no trace of it afterwards."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from postmatch.threads import for_each, one_thread


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_the_number_of_threads_is_one_inside_and_what_it_was_outside() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread():
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_error_inside_leaves_the_number_of_threads_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="inside"), one_thread():
        raise RuntimeError("inside")
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_callers_in_several_threads_do_not_keep_each_other_s_setting() -> None:
    together = Barrier(4)

    def enter() -> int:
        with one_thread():
            inside = torch.get_num_threads()
            together.wait(timeout=10)  # all are inside before the first leaves
            return inside

    with ThreadPoolExecutor(4) as pool:
        inside = [future.result() for future in [pool.submit(enter) for _ in range(4)]]
    assert inside == [1, 1, 1, 1]
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("inside", [True, False])
def test_items_are_shared_among_as_many_threads_as_there_are_outside(inside: bool) -> None:
    together, seen = Barrier(3), []

    def call(item: int) -> None:
        together.wait(timeout=10)  # three at a time, or it never opens
        seen.append((item, torch.is_inference_mode_enabled()))

    with torch.inference_mode():
        if inside:
            with one_thread():
                for_each(call, range(6))
        else:
            for_each(call, range(6))
    assert sorted(seen) == [(i, True) for i in range(6)]


@pytest.mark.usefixtures("three_threads")
def test_an_error_in_one_of_the_threads_is_raised() -> None:
    def call(item: int) -> None:
        if item == 2:
            raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        for_each(call, range(5))
