"""Preallocation: a pool's pages are there, hold what they held, and nothing is asked for that is not to be had."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from kvist.core.errors import ConfigError
from kvist.execution.kv_dtype import KV_DTYPES
from kvist.execution.kv_storage import KVStorage
from kvist.execution.preallocation import PART_BYTES, Preallocation
from kvist.models.registry import read_model
from kvist.weights.checkpoint import open_checkpoint


def resident_pages(data):
    """Whether each page of `data`, which begins one, is in memory."""
    pages = np.zeros(-(-data.nbytes // mmap.PAGESIZE), np.uint8)
    mincore = ctypes.CDLL(None).mincore
    address, held = ctypes.c_void_p(data.ctypes.data), pages.ctypes.data_as(ctypes.c_void_p)
    assert not mincore(address, ctypes.c_size_t(data.nbytes), held)
    return pages & 1 == 1


def new_pages(num_bytes):
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)


def test_all_pages_become_resident_and_keep_what_they_held():
    data = new_pages(3 * PART_BYTES + mmap.PAGESIZE)
    places = [5, PART_BYTES + 7, len(data) - 1]
    data[places] = [1, 2, 3]
    preallocation = Preallocation(data)
    preallocation.wait()
    assert resident_pages(data).all()
    assert data[places].tolist() == [1, 2, 3]
    assert int(data.sum()) == 6


def test_closing_ends_it_early_or_late():
    early, late = Preallocation(new_pages(64 * PART_BYTES)), Preallocation(new_pages(PART_BYTES))
    early.close()
    late.wait()
    late.close()


def test_more_than_there_is_is_refused():
    data = np.broadcast_to(np.zeros(1, np.uint8), 1 << 60)
    with pytest.raises(ConfigError, match=r"asks for 1099511627776 MiB of KV pool.*lower --kv-cache-bytes"):
        Preallocation(data)


def test_a_pool_takes_the_memory_of_the_blocks_asked_for(tiny_model):
    spec = read_model(open_checkpoint(tiny_model("llama"))).spec
    storage = KVStorage(spec, num_blocks=4096, block_size=16, dtype=KV_DTYPES["float32"])
    half = storage.data[: storage.data.nbytes // 2]
    storage.preallocate(2048)
    storage.close()
    assert resident_pages(half)[: PART_BYTES // mmap.PAGESIZE].all()
