"""Large tensors: memory is used again once nobody holds it, and not before, and little of it is kept."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedkin.compute import memory
from fedkin.compute.memory import copied, uninitialised

SHAPE = (5, 2**20)
"""20 MiB of float32: above what ordinary memory is taken for."""

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages to ask for")


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    memory._spare.clear()


def test_memory_is_used_again_once_no_tensor_or_view_of_it_is_left() -> None:
    first = uninitialised(SHAPE, torch.float32).fill_(1)
    place, view = first.data_ptr(), first[2:, 10:20]
    del first
    second = uninitialised(SHAPE, torch.float32).fill_(2)
    assert second.data_ptr() != place
    assert bool((view == 1).all())
    array = view.numpy()
    del view
    third = uninitialised(SHAPE, torch.float32).fill_(3)
    assert third.data_ptr() != place
    assert np.all(array == 1)
    del array
    assert uninitialised(SHAPE, torch.float32).data_ptr() == place


def test_another_size_gets_memory_of_its_own() -> None:
    place = uninitialised(SHAPE, torch.float32).data_ptr()
    other = uninitialised((5, 2**20 + 1), torch.float32)
    same = uninitialised(SHAPE, torch.float64).view(-1)[: 2**20]
    assert other.data_ptr() != place
    assert same.data_ptr() != place
    assert uninitialised((5 * 2**20,), torch.float32).data_ptr() == place


def test_little_memory_is_kept() -> None:
    several = [uninitialised((k, 2**20), torch.float32) for k in range(5, 15)]
    del several
    assert sum(size * len(spare) for size, spare in memory._spare.items()) <= memory._KEPT


@pytest.mark.parametrize("rows", [3, 50])
def test_a_copy_is_a_copy(rows: int) -> None:
    given = torch.arange(rows * 2**17, dtype=torch.float32).view(2**17, rows).t()
    found = copied(given)
    assert torch.equal(found, given)
    assert found.is_contiguous()
    assert not np.shares_memory(found.numpy(), given.numpy())


FAULTS = """
import resource, torch
from fedkin.compute.memory import keep_freed
torch.set_num_threads(1)
keep_freed()
def batch():
    [torch.empty(750_000).fill_(1.0) for _ in range(8)]  # 3 MB or 732 pages each, all freed at once
for _ in range(20):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_of_a_batch_is_there_for_the_next() -> None:
    told = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    assert int(told) < 732, "pages were given back and cleared again"
