"""The functions that CuPy 14 exports, by name, and their signatures: :mod:`functions` makes them from NumPy's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

#: Called as NumPy's function of the same name (or ``SAME_AS``), as one launch.
PLAIN = """
    all allclose alltrue amax amin angle any append argmax argmin argpartition argsort around array_equal array_equiv
    average bartlett blackman choose clip column_stack concat concatenate convolve corrcoef correlate count_nonzero cov
    cross cumprod cumproduct cumsum cumulative_prod cumulative_sum diag_indices diagflat diff digitize dot dstack
    ediff1d einsum eye gradient hamming hanning hstack identity indices inner interp isclose iscomplex isin isneginf
    isposinf isreal kaiser kron lexsort linspace logspace max mean median min nan_to_num nancumprod nancumsum nanmax
    nanmean nanmedian nanmin nanprod nanstd nansum nanvar outer packbits pad partition percentile piecewise polyfit
    polyval prod product ptp quantile ravel_multi_index repeat resize roll roots round round_ row_stack searchsorted
    select sometrue sort sort_complex stack std sum take_along_axis tensordot tile trace trapezoid trapz tri tril
    tril_indices triu triu_indices unpackbits unravel_index unwrap vander var vdot vstack
""".split()

#: Methods of ``ndarray`` that are one launch of NumPy's function of the same name.
METHODS = """
    all any argmax argmin argpartition argsort cumprod cumsum max mean min prod ptp round searchsorted std sum trace var
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

#: Sets: the host reads how many elements there are.
SETS = 'intersect1d setdiff1d setxor1d union1d unique'.split()

#: NumPy's, of arrays that are read to the host.
READ_WHOLE = 'array2string array_repr array_str save savetxt savez savez_compressed'.split()

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
LACKING = frozenset('where initial like device subok stable mean correction hermitian upper sparse sorted'.split())

#: The parameters of CuPy's functions that are not NumPy's without those, by the names of functions.
PARAMETERS = {
    'ndarray.argmax ndarray.argmin': 'a, axis=None, out=None, dtype=None, keepdims=False',
    'argmax argmin': 'a, axis=None, dtype=None, out=None, keepdims=False',
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
    'array2string': 'a, *args, **kwargs',
    'array_repr array_str': 'arr, max_line_width=None, precision=None, suppress_small=None',
    'save': 'file, arr, allow_pickle=None',
    'savetxt': 'fname, X, *args, **kwargs',
    'savez savez_compressed': 'file, *args, **kwds',
    'intersect1d': 'arr1, arr2, assume_unique=False, return_indices=False',
    'union1d': 'arr1, arr2',
    'ravel_multi_index': "multi_index, dims, mode='wrap', order='C'",
    'take_along_axis': 'a, indices, axis',
    'unravel_index': "indices, dims, order='C'",
    'flip': 'a, axis=None',
    'fliplr flipud': 'a',
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
    DataSource Inf Infinity NAN NINF NZERO NaN PINF PZERO apply_over_axes asarray_chkfinite asfarray broadcast
    byte_bounds cfloat complex_ disp find_common_type flatiter float_ format_parser fromDlpack get_array_wrap
    histogram2d histogramdd in1d infty issctype issubclass_ issubsctype lib make_aligned_dtype mask_indices msort
    nanargmax nanargmin obj2sctype place poly poly1d polyadd polymul polynomial polysub put_along_axis real_if_close
    require safe_eval sctype2char set_string_function show_config singlecomplex trim_zeros typing unique_all
    unique_counts unique_inverse unique_values who
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

#: What ``cupyx.scipy`` has of SciPy's functions; what takes Python functions or classes of systems is left out. Each of
#: these is one launch, and for each of the others CuPy's host reads arrays.
_LAUNCHED = {
    'fft': """
        dct dctn dst dstn fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn idct idctn idst idstn ifft ifft2 ifftn
        ifftshift ihfft ihfft2 ihfftn irfft irfft2 irfftn next_fast_len rfft rfft2 rfftfreq rfftn
    """,
    'linalg': """
        block_diag circulant companion convolution_matrix dft fiedler fiedler_companion hadamard hankel helmert hilbert
        khatri_rao leslie solve_triangular toeplitz
    """,
    'ndimage': """
        affine_transform black_tophat center_of_mass convolve convolve1d correlate correlate1d distance_transform_edt
        fourier_ellipsoid fourier_gaussian fourier_shift fourier_uniform gaussian_filter gaussian_filter1d
        gaussian_gradient_magnitude gaussian_laplace grey_closing grey_dilation grey_erosion grey_opening laplace
        map_coordinates maximum maximum_filter maximum_filter1d mean median median_filter minimum minimum_filter
        minimum_filter1d morphological_gradient morphological_laplace percentile_filter prewitt rank_filter shift sobel
        spline_filter spline_filter1d standard_deviation sum sum_labels uniform_filter uniform_filter1d variance
        white_tophat zoom
    """,
    'signal': """
        chirp coherence convolve convolve2d correlate correlate2d correlation_lags csd cspline1d cspline1d_eval
        cspline2d deconvolve fftconvolve filtfilt freqs freqs_zpk freqz freqz_sos freqz_zpk gauss_spline gausspulse
        get_window hilbert hilbert2 lfilter lfilter_zi lfiltic lombscargle lp2bp lp2bs lp2hp lp2lp medfilt medfilt2d
        oaconvolve order_filter periodogram qspline1d qspline1d_eval qspline2d resample savgol_coeffs sawtooth sepfir2d
        sosfilt spectrogram spline_filter square stft sweep_poly unit_impulse upfirdn welch wiener
    """,
    'special': """
        bdtr bdtrc bdtri beta betainc betaincinv betaln binom boxcox boxcox1p cbrt chdtr chdtrc chdtri cosdg cosm1
        cotdg digamma ellipeinc ellipj ellipk ellipkinc ellipkm1 entr erf erfc erfcinv erfcx erfinv exp1 exp10 exp2
        expi expit expm1 expn exprel fdtr fdtrc fdtri gamma gammainc gammaincc gammainccinv gammaincinv gammaln
        gammasgn gdtr gdtrc huber i0 i0e i1 i1e inv_boxcox inv_boxcox1p j0 j1 k0 k0e k1 k1e kl_div lambertw log1p
        log_expit log_ndtr log_softmax loggamma logit logsumexp lpmv nbdtr nbdtrc nbdtri ndtr ndtri pdtr pdtrc pdtri
        poch polygamma pseudo_huber psi radian rel_entr rgamma round shichi sici sinc sindg softmax sph_harm_y
        spherical_yn tandg wright_bessel xlog1py xlogy y0 y1 yn zeta zetac
    """,
    'stats': 'boxcox_llf entropy trim_mean zmap zscore',
}
_READING = {
    'fft': 'fht ifht',
    'linalg': 'bandwidth expm lu lu_factor lu_solve',
    'ndimage': """
        binary_closing binary_dilation binary_erosion binary_fill_holes binary_hit_or_miss binary_opening
        binary_propagation extrema find_objects generate_binary_structure histogram iterate_structure label
        maximum_position minimum_position rotate value_indices
    """,
    'signal': """
        argrelextrema argrelmax argrelmin band_stop_obj bilinear bilinear_zpk buttap butter buttord cheb1ap cheb1ord
        cheb2ap cheb2ord cheby1 cheby2 check_COLA check_NOLA choose_conv_method decimate detrend ellip ellipap ellipord
        find_peaks findfreqs firls firwin firwin2 gammatone group_delay iircomb iirdesign iirfilter iirnotch iirpeak
        invres invresz istft kaiser_atten kaiser_beta kaiserord lp2bp_zpk lp2bs_zpk lp2hp_zpk lp2lp_zpk max_len_seq
        minimum_phase normalize peak_prominences peak_widths resample_poly residue residuez savgol_filter sos2tf
        sos2zpk sosfilt_zi sosfiltfilt ss2tf ss2zpk symiirorder1 symiirorder2 tf2sos tf2ss tf2zpk unique_roots
        vectorstrength zpk2sos zpk2ss zpk2tf
    """,
    'special': 'multigammaln',
}
READING = {module: frozenset(names.split()) for module, names in _READING.items()}
SCIPY = {module: ' '.join(sorted([*names.split(), *READING.get(module, ())])) for module, names in _LAUNCHED.items()}
#: Those for which it does if they are given this argument.
READING_AN_ARGUMENT = {
    **dict.fromkeys(
        """
        grey_closing grey_dilation grey_erosion grey_opening maximum_filter median_filter minimum_filter
        morphological_gradient morphological_laplace percentile_filter rank_filter black_tophat white_tophat
        """.split(),
        'footprint',
    ),
    'logsumexp': 'b',
}


Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_NAMES = {
    'float': float, 'int': int, 'complex': complex, 'inf': np.inf, 'nan': np.nan, 'float64': np.float64,
    'int64': np.int64,
}  # fmt: skip


@functools.cache
def signature(parameters: str) -> inspect.Signature:
    """Return the signature of what stands between the parentheses."""
    # Defaults are literals or one of a few names; a lambda is Python's own parser for signatures.
    return inspect.signature(eval(f'lambda {parameters}: None', dict(_NAMES)))


_OF_NAMES = {name: text for names, text in PARAMETERS.items() for name in names.split()}


@functools.cache
def signature_like(name: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of CuPy's function or method of a name, which is like that of a function of NumPy's."""
    text = _OF_NAMES.get(name, _OF_NAMES.get(name.removeprefix('ndarray.')))
    whole = inspect.signature(function) if text is None else signature(text)
    lacking = LACKING | {'out'} if name in FFT else LACKING
    kept = [one for key, one in whole.parameters.items() if text is not None or key not in lacking]
    if name.startswith('ndarray.'):
        kept[0] = kept[0].replace(name='self')
    return inspect.Signature(kept)


def declared(name: str, signature: inspect.Signature, call: Call, module: str = 'cupy') -> Callable[..., Any]:
    """Return a function of this name and signature; ``call`` gets required arguments and given optional ones."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*_spread(signature, signature.bind(*args, **kwargs)))

    function.__doc__ = f'See :func:`numpy.{name}`.'
    return named(function, name, signature, module)


def named(
    function: Any, name: str, signature: inspect.Signature | None = None, module: str = 'cupy'
) -> Callable[..., Any]:
    """Return the function with a name, and a signature if its own is another."""
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name)  # what looks for CuPy's function in the stack finds it
    function.__module__ = module
    if signature is not None:
        function.__signature__ = signature
    found: Callable[..., Any] = function
    return found


def _spread(signature: inspect.Signature, bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update(value)
        elif parameter.default is parameter.empty:
            positional.append(value)
        else:
            named[name] = value
    return tuple(positional), named
