"""Shared objects made by the C compiler, for tests of what is inside loaded modules; skipped where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def compiled(path: Path, source: str, *flags: str) -> str:
    """Compile C into a shared object at ``path``, and return the path."""
    compiler = next((found for name in ('cc', 'gcc', 'clang') if (found := shutil.which(name))), None)
    if compiler is None or not sys.platform.startswith('linux'):
        pytest.skip('needs a C compiler on Linux')
    path.with_suffix('.c').write_text(source)
    source_file = str(path.with_suffix('.c'))
    command = [compiler, '-shared', '-fPIC', '-fplt', '-O1', '-o', str(path), source_file, *flags, '-lm']
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return str(path)
