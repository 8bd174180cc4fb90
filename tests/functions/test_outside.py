"""Files that change between calls of graphed functions, and threads that call at once."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck


def by_linecache(path: Path) -> str:
    linecache.checkcache(str(path))
    return linecache.getline(str(path), 1)


def by_os_read(path: Path) -> bytes:
    number = os.open(path, os.O_RDONLY)
    try:
        return os.read(number, 9)
    finally:
        os.close(number)


def mapped(path: Path) -> str:
    return bytes(np.memmap(path, 'u1', 'r')).decode()


FILES: dict[str, Callable[[Path], Any]] = {
    'read_text': lambda path: path.read_text(),
    'os.read': by_os_read,
    'linecache': by_linecache,
    'loadtxt': np.loadtxt,
    'subprocess': lambda path: subprocess.run(['cat', path], capture_output=True, check=True).stdout,
    'memmap': mapped,
}


@pytest.mark.parametrize('how', FILES)
def test_numbers_in_files(sim: Any, how: str, tmp_path: Path) -> None:
    path = tmp_path / 'number'
    fn = ck.graphed(lambda x: x * float(FILES[how](path)))
    for number in range(1, 6):
        path.write_text(f'{number}')
        assert fn(sim.ones(2)).get().tolist() == [number] * 2


def test_threads_count_every_call(sim: Any) -> None:
    class Counter:
        n = 0

    one = Counter()

    def work(x: Any) -> Any:
        one.n += 1
        return x * 2

    fn, before = ck.graphed(work), sys.getswitchinterval()

    def calls(size: int) -> None:
        for _ in range(40):
            fn(sim.ones(size))

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=calls, args=(size,)) for size in (2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert one.n == 120
