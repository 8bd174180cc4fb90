"""The text of results: ``repr`` is one line, ``str`` the whole table, and notebooks show the table with bars."""

from __future__ import annotations

import sys
from collections.abc import Iterator


class Shown:
    """A result whose ``__str__`` has several lines, and whose ``repr`` has one."""

    def _brief(self) -> str:
        """The result in one line; by default the first line of the table."""
        return str(self).partition('\n')[0].rstrip(':')

    def _bars(self) -> Iterator[tuple[str, float, str]]:
        """The bars that notebooks draw: a name, a length, and the length in words."""
        yield from ()

    def __repr__(self) -> str:
        return f'<{type(self).__name__}: {" ".join(self._brief().split())}>'

    def _repr_html_(self) -> str:
        bars = list(self._bars())
        longest = max((length for _name, length, _said in bars), default=0.0)
        rows = ''.join(_bar(name, length / longest, said) for name, length, said in bars if longest)
        table = f'<table class="capturekit">{rows}</table>' if rows else ''
        return table + preformatted(str(self))


def preformatted(text: str) -> str:
    """Text as HTML that keeps its lines and spaces, and breaks lines that are too long."""
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'


def escape(text: str) -> str:
    """Text as HTML."""
    import html  # its table of entities is large, and no capture needs it

    return html.escape(text)


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook: IPython has one, and is not a terminal."""
    shell = getattr(sys.modules.get('IPython'), 'get_ipython', lambda: None)()
    return getattr(shell, 'kernel', None) is not None


def _bar(name: str, share: float, said: str) -> str:
    bar = f'<div style="width:{240 * share:.1f}px;height:10px;background:#4477aa"></div>'
    cells = (escape(name), bar, escape(said))
    return '<tr>' + ''.join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + '</tr>'
