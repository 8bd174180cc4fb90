"""``cupyx.scipy`` of the simulated CuPy: SciPy's functions where it is installed, and what their table says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.simulated.cupy.surface import READING, SCIPY

IMAGE = np.random.RandomState(1).rand(12, 12)
SIGNAL = np.random.RandomState(2).rand(300)
#: Calls of functions that one launch makes: the module, the function, the arguments.
LAUNCHED: list[tuple[str, str, tuple[Any, ...]]] = [
    ('ndimage', 'gaussian_filter', (IMAGE, 2)), ('ndimage', 'median_filter', (IMAGE, 3)),
    ('ndimage', 'zoom', (IMAGE, 2)), ('signal', 'sosfilt', (np.array([[1.0, 0, 0, 1, -0.5, 0]]), SIGNAL)),
    ('ndimage', 'center_of_mass', (IMAGE,)), ('ndimage', 'convolve', (IMAGE, np.ones((3, 3)))),
    ('signal', 'fftconvolve', (SIGNAL, np.ones(3))), ('signal', 'welch', (SIGNAL,)),
    ('signal', 'lfilter', (np.ones(2), np.ones(1), SIGNAL)), ('special', 'erf', (SIGNAL,)),
    ('special', 'logsumexp', (SIGNAL,)), ('special', 'sici', (SIGNAL,)), ('fft', 'dct', (SIGNAL,)),
    ('fft', 'rfft', (SIGNAL,)), ('linalg', 'toeplitz', (SIGNAL[:4],)), ('stats', 'zscore', (SIGNAL,)),
]  # fmt: skip
#: Calls for which CuPy's host reads.
READ: list[tuple[str, str, tuple[Any, ...]]] = [
    ('ndimage', 'label', (IMAGE > 0.5,)), ('ndimage', 'minimum_position', (IMAGE,)),
    ('signal', 'find_peaks', (SIGNAL,)), ('linalg', 'lu', (IMAGE,)), ('signal', 'firwin', (15, 0.3)),
    ('ndimage', 'binary_dilation', (IMAGE > 0.8,)), ('ndimage', 'median_filter', (IMAGE, None, np.ones((3, 3)))),
    ('special', 'logsumexp', (SIGNAL, 0, SIGNAL)), ('fft', 'fht', (SIGNAL, 0.1, 0.5)),
]  # fmt: skip


def leaves(value: Any) -> list[Any]:
    value = list(value.values()) if isinstance(value, dict) else value
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value.get() if hasattr(value, 'get') else value]


def same(ours: Any, theirs: Any) -> None:
    found, wanted = leaves(ours), leaves(theirs)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other)


@pytest.mark.parametrize(
    ('module', 'name', 'args'), [*LAUNCHED, *READ], ids=[f'{module}.{name}' for module, name, _ in (*LAUNCHED, *READ)]
)
def test_functions_are_scipys(sim: Any, module: str, name: str, args: tuple[Any, ...]) -> None:
    """In a capture they are recorded, but for those for which CuPy's host reads."""
    wanted = getattr(pytest.importorskip(f'scipy.{module}'), name)(*args)
    function = getattr(importlib.import_module(f'cupyx.scipy.{module}'), name)
    given = [sim.asarray(one) if isinstance(one, np.ndarray) else one for one in args]
    same(function(*given), wanted)
    if any(args is one[2] for one in READ):
        with pytest.raises(ck.HostReadError, match=rf'{name}\(\)'), ck.capture():
            function(*given)
        return
    with ck.capture() as cap:
        found = function(*given)
    cap.graph.launch()
    same(found, wanted)


#: Calls with a matrix of 2 x 3 elements.
SPARSE = [
    'a.T', 'a.tocsc()', 'a.tocoo().T', 'a.sum(axis=0)', 'a.T.sum(axis=1)', 'a.tocoo().sum()', 'abs(-a)', 'a.diagonal()',
    'a + a', '2 * a', '-a / 2', 'a[0]', 'a.multiply(a)', 'a.T @ a', 'a.T @ a.toarray()', 'sparse.random(3, 3, 0)',
    'sparse.dia_matrix((np.ones((2, 3)), [0, 1]), shape=(2, 3)).T', 'sparse.kron(a, sparse.eye(2))',
    'sparse.dia_matrix((np.ones((2, 3)), [0, 1]), shape=(2, 3)).sum(axis=0)', 'sparse.diags([1.0, 2.0], 0)',
]  # fmt: skip


@pytest.mark.parametrize('call', SPARSE)
def test_sparse_matrices_calculate_as_scipys(sim: Any, call: str) -> None:
    theirs = pytest.importorskip('scipy.sparse')
    import cupyx.scipy.sparse as ours

    dense = np.array([[0.0, 1, 2], [3, 0, 0]])
    found = eval(call, {'np': np, 'sparse': ours, 'a': ours.csr_matrix(sim.asarray(dense))})
    wanted = eval(call, {'np': np, 'sparse': theirs, 'a': theirs.csr_matrix(dense)})
    assert ours.issparse(found) == theirs.issparse(wanted)
    found, wanted = (one.toarray() if hasattr(one, 'toarray') else one for one in (found, wanted))
    np.testing.assert_array_equal(found.get(), wanted)


def test_a_sparse_matrix_is_scaled_in_a_capture(sim: Any) -> None:
    """Without SciPy, too: what keeps the places of its elements needs nobody's help."""
    import cupyx.scipy.sparse as sparse

    a = sparse.csr_matrix(sim.eye(2))
    with ck.capture() as cap:
        twice = (a * 2).T
    cap.graph.launch()
    assert (twice.data.get().tolist(), twice.format) == ([2, 2], 'csc')


def test_a_function_writes_into_its_output(sim: Any) -> None:
    pytest.importorskip('scipy.ndimage')
    from cupyx.scipy import ndimage

    x, out = sim.arange(3.0), sim.zeros(3)
    with ck.capture() as cap:
        assert ndimage.laplace(x, output=out) is out
    assert out.get().tolist() == [0, 0, 0]
    cap.graph.launch()
    assert out.get().tolist() == [1, 0, -1]
    labels, count = ndimage.label(x)
    assert (labels.tolist(), count) == ([0, 1, 1], 1)
    assert isinstance(count, int)
    assert 'laplace' in dir(ndimage)
    with pytest.raises(AttributeError, match=r"the simulated CuPy has no 'nonsense' in .*ndimage'"):
        _ = ndimage.nonsense


def test_without_scipy_an_import_error_says_so(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupyx.scipy.special

    for name in ('scipy', 'scipy.special'):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match='Write: pip install scipy'):
        _ = cupyx.scipy.special.erf


@pytest.mark.parametrize('module', SCIPY)
def test_the_tables_names_are_cupys(module: str) -> None:
    spec = importlib.util.find_spec('cupy')
    if spec is None or spec.origin is None:
        pytest.skip('CuPy is not installed')
    text = (Path(spec.origin).parents[1] / 'cupyx' / 'scipy' / module / '__init__.py').read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    theirs = {alias.asname or alias.name for node in imports for alias in node.names}
    ours = SCIPY[module].split()
    assert ours == sorted(set(ours))
    assert set(ours) <= theirs
    assert READING.get(module, frozenset()) <= set(ours)
