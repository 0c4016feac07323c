"""One thread for small networks, and no trace of it afterwards."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from postmatch.threads import one_thread


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
