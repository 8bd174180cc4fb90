"""What a run came to and whose attributes are not watched yet."""

from __future__ import annotations

from typing import Any


class Unsettled:
    """What was met since the attributes of objects were watched last; :class:`Holders` takes it from here."""

    def __init__(self) -> None:
        #: The objects that were met.
        self.pending: list[Any] = []
        #: What values are bound to, and where these are: it is watched with its contents.
        self.also: list[tuple[Any, str]] = []
        #: The names that objects such as an ``attrgetter`` ask others for.
        self.asked_names: set[str] = set()
        #: Whether something was met that asks others for any attribute.
        self.asks_all = False
