"""``cupy.cuda.MemoryHook``: told before and after every allocation, per thread."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_thread_local = threading.local()


def get_memory_hooks() -> collections.OrderedDict[str, MemoryHook]:
    try:
        hooks: collections.OrderedDict[str, MemoryHook] = _thread_local.hooks
    except AttributeError:
        hooks = _thread_local.hooks = collections.OrderedDict()
    return hooks


class MemoryHook:
    """Something to be told of allocations while it is entered."""

    name = 'MemoryHook'

    def __enter__(self) -> MemoryHook:
        hooks = get_memory_hooks()
        if self.name in hooks:
            raise KeyError(f'memory hook {self.name} already exists')
        hooks[self.name] = self
        return self

    def __exit__(self, *_: object) -> None:
        del get_memory_hooks()[self.name]

    def alloc_preprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size`` before memory is taken from the device."""

    def alloc_postprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size``, ``mem_ptr`` after memory was taken from the device."""

    def malloc_preprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``size``, ``mem_size`` before memory is taken from the pool."""

    def malloc_postprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``size``, ``mem_size``, ``mem_ptr``, ``pmem_id`` after memory was taken."""

    def free_preprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size``, ``mem_ptr``, ``pmem_id`` before memory returns to the pool."""

    def free_postprocess(self, **kwargs: Any) -> None:
        """Be told ``device_id``, ``mem_size``, ``mem_ptr``, ``pmem_id`` after memory returned to the pool."""


@contextlib.contextmanager
def told(event: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[None]:
    """Tell every hook of ``event``, with ``before`` and then with ``after`` (filled in by the block)."""
    hooks = list(get_memory_hooks().values())
    for hook in hooks:
        getattr(hook, f'{event}_preprocess')(**before)
    try:
        yield
    finally:
        for hook in hooks:
            getattr(hook, f'{event}_postprocess')(**before, **after)
