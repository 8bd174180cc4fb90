"""Names of a package whose modules are imported when the name is first asked for, so that ``import`` stays short."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Args:
        package: the ``globals()`` of the package. A name that was found is kept there.
        homes: the full name of the module in which each name is.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f'module {package["__name__"]!r} has no attribute {name!r}')
        value = package[name] = getattr(importlib.import_module(homes[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*package, *homes})

    return __getattr__, __dir__
