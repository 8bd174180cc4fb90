"""Programs on the GPU, each in a process of its own: the zoo, samples, arguments of wrong types, jax beside CuPy.

A lost capture can poison a library, and what CUDA takes for a handle would end a process.
"""

from __future__ import annotations

import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.command import python
from tests.gpu.world import in_process
from tests.wrong_types import CALLS
from tests.zoo.cases import Case, all_cases

pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize('case', [pytest.param(case, id=str(case)) for case in all_cases()])
def test_a_case_of_the_zoo_from_end_to_end(case: Case) -> None:
    if case.module and importlib.util.find_spec(case.module) is None:
        pytest.skip(f'{case.module} is not installed')
    assert in_process(f'from tests.zoo.trial import whole\nprint(whole({case.name!r}))').splitlines()[-1] == 'whole'


@pytest.mark.parametrize(
    'command', ['kmeans.py', 'conjugate_gradient.py', 'kalman.py', 'fdtd.py', 'mlp.py', 'mlp.py --generator']
)
def test_graphed_equals_eager_at_real_sizes(command: str) -> None:
    """The program of samples/wild itself ends with an error where its results differ."""
    name, *args = command.split()
    ran = python(f'samples/wild/{name}', *args, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 'simulated' not in ran.stdout
    assert re.search(r'eager ([\d.]+) us, graphed ([\d.]+) us', ran.stdout), ran.stdout
    print(ran.stdout, ran.stderr, sep='')


@pytest.mark.serial
@pytest.mark.parametrize('name', ['inference_branches', 'copy_compute_pipeline', 'many_small_solves'])
def test_samples_of_experiments(name: str, tmp_path: Path) -> None:
    picture = tmp_path / 'picture.svg'
    ran = python('-m', 'capturekit', 'run', f'samples/{name}.py', '--out', str(picture), timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 'on the GPU' in ran.stderr
    assert 'all the same' in ran.stdout
    assert 'no times' not in picture.read_text()


def test_wrong_types_are_refused_and_the_process_goes_on() -> None:
    def made(name: str) -> str:
        done = python('-m', 'tests.wrong_types', name, timeout=300)
        return '' if done.returncode == 0 else f'{name}: status {done.returncode}: {done.stdout} {done.stderr}'

    with ThreadPoolExecutor(6) as pool:
        assert [one for one in pool.map(made, CALLS) if one] == []


#: What a function makes of a number that it reads, where jax has functions of the same names.
BESIDE_JAX = {
    'both are called': 'x * HOLDER.xp.sqrt(x) * float(OF_JAX.xp.sqrt(abs(v)))',
    'an error is caught': 'x * HOLDER.xp.sqrt(x) * caught(OF_JAX, v)',
    'one or the other': 'x * float((HOLDER if v > 20 else OF_JAX).xp.sqrt(abs(v)))',
}


@pytest.mark.skipif(importlib.util.find_spec('jax') is None, reason='this needs jax')
@pytest.mark.parametrize('how', BESIDE_JAX)
def test_functions_of_the_same_name_are_right(how: str) -> None:
    # jax takes most of the device's memory and works on streams of its own: it computes on the host here
    in_process(f"""
        import os
        os.environ['JAX_PLATFORMS'] = 'cpu'
        import cupy, jax.numpy
        from types import SimpleNamespace
        import capturekit as ck
        HOLDER, OF_JAX = SimpleNamespace(xp=cupy), SimpleNamespace(xp=jax.numpy)
        def caught(of, v):
            try:
                return float(of.xp.sqrt(abs(v)))
            except TypeError:
                return 5.0
        def work(x):
            v = x.sum().item()
            return {BESIDE_JAX[how]}
        fn = ck.graphed(work)
        for total in (72.5, 35.25, 3.0, 88.0, 19.5, 21.0, 0.5, 44.0, 61.75, 12.0):
            assert fn(cupy.full(3, total)).tolist() == work(cupy.full(3, total)).tolist(), total
    """)
