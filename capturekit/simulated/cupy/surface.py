"""The functions that CuPy 14 exports, by name: plain data, from which :mod:`functions` makes them from NumPy's."""

from __future__ import annotations

#: Called as NumPy's function of the same name (or ``SAME_AS``), as one launch.
PLAIN = """
    all allclose alltrue amax amin angle any append argmax argmin argpartition argsort around array_equal array_equiv
    average bartlett blackman choose clip column_stack concat concatenate convolve corrcoef correlate count_nonzero cov
    cross cumprod cumproduct cumsum cumulative_prod cumulative_sum diag_indices diagflat diff digitize dot dstack
    ediff1d einsum eye gradient hamming hanning hstack identity indices inner interp isclose iscomplex isin isneginf
    isposinf isreal kaiser kron lexsort linspace logspace max mean median min nan_to_num nanargmax nanargmin nancumprod
    nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar outer packbits pad partition percentile
    piecewise poly polyadd polyfit polymul polysub polyval prod product ptp quantile ravel_multi_index real_if_close
    repeat resize roll roots round round_ row_stack searchsorted select sometrue sort sort_complex stack std sum
    take_along_axis tensordot tile trace trapezoid trapz tri tril tril_indices triu triu_indices unpackbits
    unravel_index unwrap vander var vdot vstack
""".split()

#: Methods of ``ndarray`` that are one launch of NumPy's function of the same name.
METHODS = """
    all any argmax argmin cumprod cumsum max mean min prod ptp round searchsorted std sum var
""".split()

#: Return views of their first argument where NumPy's function does.
VIEWS = """
    array_split atleast_1d atleast_2d atleast_3d broadcast_to diag diagonal dsplit expand_dims flip fliplr flipud hsplit
    matrix_transpose moveaxis permute_dims ravel rollaxis rot90 split squeeze swapaxes transpose vsplit
""".split()

#: Answered from shapes and dtypes, with no launch.
HOST = """
    base_repr binary_repr broadcast_shapes can_cast common_type format_float_positional format_float_scientific
    iscomplexobj isdtype isfortran isrealobj isscalar issubdtype iterable may_share_memory mintypecode ndim result_type
    shape shares_memory typename
""".split()

#: ``cupy.linalg``.
LINALG = """
    cholesky cond cross det eig eigh eigvals eigvalsh inv lstsq matrix_power matrix_rank matrix_transpose norm pinv qr
    slogdet solve svd tensorinv tensorsolve
""".split()

#: ``cupy.fft``.
FFT = """
    fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn
""".split()

#: Parameters of NumPy's functions that CuPy's have not; those of ``fft`` have no ``out``, either.
LACKING = frozenset('where initial like device subok stable mean correction hermitian upper sparse'.split())

#: The parameters of CuPy's functions that are not NumPy's without those, by the names of functions.
PARAMETERS = {
    'ndarray.argmax ndarray.argmin': 'self, axis=None, out=None, dtype=None, keepdims=False',
    'argmax argmin nanargmax nanargmin': 'a, axis=None, dtype=None, out=None, keepdims=False',
    'argpartition partition': 'a, kth, axis=-1',
    'argsort sort': 'a, axis=-1, kind=None',
    'concat concatenate stack': "tup, axis=0, out=None, *, dtype=None, casting='same_kind'",
    'clip': 'a, a_min, a_max, out=None',
    'corrcoef': 'a, y=None, rowvar=True, bias=None, ddof=None, *, dtype=None',
    'count_nonzero': 'a, axis=None',
    'cov': 'a, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None',
    'cumulative_prod cumulative_sum': 'x, /, *, axis=None, dtype=None, out=None, include_initial=False',
    'dot': 'a, b, out=None',
    'ediff1d': 'arr, to_end=None, to_begin=None',
    'einsum': '*operands, **kwargs',
    'inner vdot': 'a, b',
    'isin': 'element, test_elements, assume_unique=False, invert=False',
    'lexsort': 'keys',
    'packbits unpackbits': "a, axis=None, bitorder='big'",
    'percentile quantile': (
        "a, q, axis=None, out=None, overwrite_input=False, method='linear', keepdims=False, *, interpolation=None"
    ),
    'piecewise': 'x, condlist, funclist',
    'ravel_multi_index': "multi_index, dims, mode='wrap', order='C'",
    'take_along_axis': 'a, indices, axis',
    'unravel_index': "indices, dims, order='C'",
    'flip': 'a, axis=None',
    'fliplr flipud matrix_transpose': 'a',
    'rot90': 'a, k=1, axes=(0, 1)',
    'can_cast': "from_, to, casting='safe'",
    'format_float_positional format_float_scientific': 'x, *args, **kwargs',
    'may_share_memory shares_memory': 'a, b, max_work=None',
    'result_type': '*arrays_and_dtypes',
    'matrix_power': 'M, n',
    'matrix_rank': 'M, tol=None',
    'pinv': 'a, rcond=1e-15',
}  # fmt: skip

#: CuPy's name for a function -> NumPy's, where it is another (or was another once).
SAME_AS = {
    'alltrue': 'all', 'concat': 'concatenate', 'cumproduct': 'cumprod', 'product': 'prod', 'round_': 'round',
    'row_stack': 'vstack', 'sometrue': 'any', 'trapz': 'trapezoid',
}  # fmt: skip

#: What real CuPy has and the simulated one has not.
ABSENT = frozenset(
    """
    DataSource broadcast disp find_common_type flatiter format_parser get_array_wrap issctype issubclass_ issubsctype
    lib make_aligned_dtype mask_indices obj2sctype poly1d polynomial safe_eval sctype2char set_string_function
    show_config typing who
""".split()
)

#: Functions that use cuBLAS for floating-point operands, which CuPy refuses in a capture.
CUBLAS = frozenset('dot vdot inner matmul tensordot einsum cov corrcoef matrix_power'.split())

#: Functions that use cuSOLVER, which CuPy refuses in a capture.
CUSOLVER = frozenset(
    """
    cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_rank pinv polyfit qr roots slogdet solve svd tensorinv
    tensorsolve
    """.split()
)

#: Those of them that wait for the stream inside: even where the library is let record, they lose the capture.
WAITING = frozenset('cond eig eigh eigvals eigvalsh lstsq matrix_rank pinv polyfit roots svd'.split())

#: Those that look at cuSOLVER's ``info``, under ``cupyx.errstate(linalg='raise')``.
LOOKING_AT_INFO = (CUSOLVER | {'matrix_power'}) - {'det', 'slogdet'}
