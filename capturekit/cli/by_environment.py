"""``CAPTUREKIT_SIMULATE=1``: the simulated device for a whole process, from ``import capturekit`` on."""

from __future__ import annotations

import os
import sys

NAME = 'CAPTUREKIT_SIMULATE'
_OFF = ('', '0')


def wanted() -> bool:
    """Whether the environment asks for the simulated device. Raises ImportError if the variable's value is unknown."""
    given = os.environ.get(NAME, '')
    if given not in (*_OFF, '1'):
        raise ImportError(f'{NAME} must be 1 (simulate) or 0 (do not), and it is {given!r}')
    return given == '1'


def install_if_wanted() -> None:
    """Install the stand-in if the environment asks for it, and say so on standard error.

    The commands (``python -m capturekit``) ask for themselves: ``run`` has a seed, and says which device it was.

    Raises:
        ImportError: CuPy was imported before capturekit, so that the program has the real one already.
    """
    if not wanted() or _is_a_command():
        return
    cupy = sys.modules.get('cupy')
    if hasattr(cupy, '__capturekit_simulated__'):
        return
    if cupy is not None:
        raise ImportError(
            f'{NAME}=1 asks for the simulated device, and the real CuPy was imported before capturekit. Put '
            '`import capturekit` before `import cupy`, or use `python -m capturekit run --simulate script.py`.'
        )
    from capturekit.simulated.cupy.assembly import install

    install()
    print(f'capturekit: on the simulated device, seed 0 ({NAME} is set)', file=sys.stderr, flush=True)


def _is_a_command() -> bool:
    """Whether this is ``python -m capturekit``, which Python is about to find, or the script ``capturekit``."""
    name = sys.argv[0] if sys.argv else ''
    if name == '-m':
        given = sys.orig_argv
        return given[given.index('-m') + 1 :][:1] == ['capturekit'] if '-m' in given else False
    return os.path.basename(name) == 'capturekit' or name.endswith(os.path.join('capturekit', '__main__.py'))
