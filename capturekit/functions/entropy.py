"""Entropy of the system that libraries draw: each run draws other values, and nobody can compare them.

NumPy's generators draw it by ``secrets.randbits``, a function of Python's. ``RandomState(seed)`` does so, too: it makes
a generator without a seed first, and then gives it the state of the seed, and forgets what it has drawn.
"""

from __future__ import annotations

import functools
import random
import sys
from types import CodeType
from typing import Any

#: The function by which entropy is drawn.
DRAWING: CodeType = random.SystemRandom.getrandbits.__code__
#: The name of the class whose calls have to be told of.
SEEDED = 'RandomState'
_NO_ARGUMENT: Any = getattr(getattr(sys, 'monitoring', None), 'MISSING', None)


def overwrites_entropy(function: Any, first: Any) -> bool:
    """Whether a call makes a generator with a seed, whose state no entropy is in. ``first``: its first argument."""
    made: Any = getattr(sys.modules.get('numpy.random'), SEEDED, None)
    return made is not None and function is made and first is not None and first is not _NO_ARGUMENT and _forgets(made)


@functools.cache
def _forgets(made: Any) -> bool:
    """Whether nothing is left in a generator of the entropy with which it was made; older versions of NumPy keep it."""
    bits = made(0)._bit_generator
    return getattr(bits, '_seed_seq', bits) is None
