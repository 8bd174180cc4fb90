"""Numbers that launches reckon with go to CuPy's functions, also where jax has functions of the same names."""

from __future__ import annotations

import importlib.util

import pytest

from tests.gpu.world import in_process

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec('jax') is None, reason='this needs jax'),
]
#: What a function makes of a number that it reads.
TEXTS = {
    'both are called': 'x * HOLDER.xp.sqrt(x) * float(OF_JAX.xp.sqrt(abs(v)))',
    'an error is caught': 'x * HOLDER.xp.sqrt(x) * caught(OF_JAX, v)',
    'one or the other': 'x * float((HOLDER if v > 20 else OF_JAX).xp.sqrt(abs(v)))',
}


@pytest.mark.parametrize('how', TEXTS)
def test_functions_of_the_same_name_are_right(how: str) -> None:
    # jax takes most of the device's memory and works on streams of its own: it computes on the host here
    in_process(f"""
        import os
        os.environ['JAX_PLATFORMS'] = 'cpu'
        import cupy, jax.numpy
        from tests.functions.test_number_functions import written
        from tests.functions.test_numbers_to_cupy import MORE, Holder
        from tests.functions.test_reckoned_reads import alike, ordinary
        holders = dict(HOLDER=Holder(cupy), OF_JAX=Holder(jax.numpy))
        alike(cupy, written({TEXTS[how]!r}, more=MORE, **holders), ordinary(12))
    """)
