"""The yardstick for 'existing CuPy code, captured unchanged': one-line CuPy expressions, and the names they use.

``GIVEN`` and ``MORE`` map a label to an expression. ``namespace(expression)`` builds what that expression names and
nothing else, so that in a cold process nothing of the case has run before its capture: arrays are uploaded from NumPy
and kernels are only defined. ``RANDOM`` labels draw numbers, whose values can't be compared. ``FRESH`` labels draw
from a generator that lives outside of the expression: two launches must differ.

Imports neither CuPy nor NumPy until ``namespace`` is called.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

#: What the short names of modules stand for.
MODULES = {
    'cp': 'cupy',
    'cupyx': 'cupyx',
    'itp': 'cupyx.scipy.interpolate',
    'nd': 'cupyx.scipy.ndimage',
    'np': 'numpy',
    'sf': 'cupyx.scipy.fft',
    'sl': 'cupyx.scipy.linalg',
    'sp': 'cupyx.scipy.sparse',
    'spatial': 'cupyx.scipy.spatial',
    'spc': 'cupyx.scipy.special',
    'spl': 'cupyx.scipy.sparse.linalg',
    'ss': 'cupyx.scipy.signal',
    'st': 'cupyx.scipy.stats',
    'win': 'cupyx.scipy.signal.windows',
    'xs': 'cupyx.signal',
}

GIVEN = {
    'matmul f8': 'A@B',
    'matmul f4': 'Af@Af',
    'dot mv': 'A.dot(v)',
    'vdot': 'cp.vdot(v,v)',
    'einsum': "cp.einsum('ij,jk->ik',A,B)",
    'tensordot': 'cp.tensordot(A,B)',
    'batched': 'cp.matmul(cp.stack([A,B]),cp.stack([B,A]))',
    'svd': 'cp.linalg.svd(S)',
    'eigh': 'cp.linalg.eigh(S)',
    'solve': 'cp.linalg.solve(S,v)',
    'inv': 'cp.linalg.inv(S)',
    'cholesky': 'cp.linalg.cholesky(S)',
    'qr': 'cp.linalg.qr(S)',
    'lstsq': 'cp.linalg.lstsq(S,v,rcond=None)[0]',
    'det': 'cp.linalg.det(S/256)',
    'norm': 'cp.linalg.norm(A)',
    'pinv': 'cp.linalg.pinv(S)',
    'matrix_power': 'cp.linalg.matrix_power(A/256,3)',
    'lu_factor': 'sl.lu_factor(S)[0]',
    'expm': 'sl.expm(S/1000)',
    'solve_triangular': 'sl.solve_triangular(S,v)',
    'fft': 'cp.fft.fft(A)',
    'rfft2': 'cp.fft.rfft2(A)',
    'fftconvolve': 'ss.fftconvolve(A,B,mode="same")',
    'random legacy': 'cp.random.random(100)',
    'random gen': 'cp.random.default_rng(0).random(100)',
    'randn': 'cp.random.randn(10)',
    'choice': 'cp.random.choice(10,5)',
    'permutation': 'cp.random.permutation(10)',
    'csr@dense': 'csr@B',
    'csr@vec': 'csr@v',
    'csr.T@v': 'csr.T@v',
    'csr+csr': 'csr+csr',
    'csr@csr': 'csr@csr',
    'sum': 'A.sum()',
    'sum axis': 'A.sum(axis=0)',
    'argmax': 'A.argmax()',
    'sort': 'cp.sort(A,axis=1)',
    'argsort': 'cp.argsort(v)',
    'cumsum': 'cp.cumsum(v)',
    'std': 'A.std(axis=0)',
    'take list': 'A[[1,2,3]]',
    'take arr': 'A[idx]',
    'scatter': 'cpx_scatter(A,idx)',
    'array H2D': 'cp.array([1.,2.,3.])*2',
    'asarray np': 'cp.asarray(hostv)*v',
    'nonzero': 'cp.nonzero(A>0.5)',
    'boolmask': 'A[A>0.5]',
    'mask set': 'setmask(A)',
    'where3': 'cp.where(A>0.5,A,0)',
    'convolve': 'cp.convolve(v, v[:16])',
    'gaussian': 'nd.gaussian_filter(A, 2)',
    'sobel': 'nd.sobel(A)',
    'label': 'nd.label(A>0.9)[0]',
    'map_coords': 'nd.map_coordinates(A, cp.stack([v*100,v*100]))',
    'zoom': 'nd.zoom(A,2)',
    'median': 'cp.median(v)',
    'percentile': 'cp.percentile(v,[10,20])',
    'interp': 'cp.interp(v, cp.linspace(0,1,10), cp.linspace(0,2,10))',
    'histogram': 'cp.histogram(v, bins=10)[0]',
    'unique': 'cp.unique(v)',
    'bincount': 'cp.bincount((v*10).astype(int))',
    'creation': '(cp.arange(10)*2, cp.linspace(0,1,7), cp.zeros(5))',
    'eye': 'cp.eye(5)*2',
    'lfilter': 'ss.lfilter(cp.asarray([1.,.5]),cp.asarray([1.,-.3]), v)',
    'concat': 'cp.concatenate([v,v])',
    'roll': 'cp.roll(A,1,axis=0)',
    'gradient': 'cp.gradient(A)[0]',
    'cross': 'cp.cross(A[:,:3],B[:,:3])',
    'kron': 'cp.kron(A[:4,:4],B[:4,:4])',
    'polyfit': 'cp.polyfit(v,v,2)',
    'clip': 'A.clip(0.2,0.5)',
    'float()': 'float(v.sum())',
    'print': 'str(v)',
    'item': 'v[0].item()',
    'if': '(v*2 if v.sum()>0 else v)',
    'get': 'v.get()',
    'asnumpy': 'cp.asnumpy(v)',
    'rawkernel': 'rk(v)',
    'elementwise': 'ek(v)',
    'fuse': 'fz(v)',
    'jit': 'jk(v)',
    'astype': 'v.astype("f4")',
    'copy': 'A.copy()',
    'transpose copy': 'cp.ascontiguousarray(A.T)',
    'fancy2': 'A[cp.asarray([0,1]),cp.asarray([1,2])]',
    'maximum.at': 'mxat(v)',
    'allclose': 'bool(cp.allclose(A,A))',
    'array_equal': 'cp.array_equal(A,A)',
    'tile': 'cp.tile(v,3)',
    'meshgrid': 'cp.meshgrid(v,v)[0]',
    'searchsorted': 'cp.searchsorted(cp.sort(v),v)',
    'trapz': 'cp.trapezoid(v)',
    'diff': 'cp.diff(v)',
    'corrcoef': 'cp.corrcoef(A)',
    'cov': 'cp.cov(A)',
    'erf': 'spc.erf(A)',
    'logsumexp': 'spc.logsumexp(A,axis=1)',
    'cdist': 'cdist(A[:64],B[:64])',
    'cg': 'spl.cg(csrS,v,maxiter=3)[0]',
    'resample': 'ss.resample(v,128)',
    'sosfilt': 'ss.sosfilt(sos,v)',
    'medfilt': 'ss.medfilt(v,5)',
    'dct': 'sf.dct(v)',
    'RegularGrid': 'rgi(cp.stack([v,v],1))',
    'spline': 'cs(v)',
}

SECTIONS = {
    'ufuncs': """
        cos f4: cp.cos(Af)
        hypot: cp.hypot(A, B)
        exp f2: cp.exp(half)
        log1p: cp.log1p(Af)
        sqrt complex: cp.sqrt(C)
        power: A ** B
        remainder: cp.remainder(ints, 7)
        divmod: cp.divmod(ints, 7)
        modf: cp.modf(A * 5)
        angle: cp.angle(C)
        real imag: (C.real, C.imag)
        gcd: cp.gcd(ints, 12)
        bitwise_count: cp.bitwise_count(ints)
        compare: (A < B) | (A > 0.9)
        maximum: cp.maximum(A, B)
        nan_to_num: cp.nan_to_num(gaps)
        unwrap: cp.unwrap(v * 20)
        real_if_close: cp.real_if_close(C)
        ufunc out: cp.add(v, w, out=cp.empty_like(v))
        multiply into: cp.multiply(v, w, out=cp.zeros_like(v))
        add.reduce: cp.add.reduce(A, axis=1)
        multiply.accumulate: cp.cumprod(v + 0.5)
        add.reduceat: cp.add.reduceat(v, idx)
        np ufunc: np.sin(v)
        np function: np.concatenate([v, w])
        host scalar: A * np.float32(1.5) + True
        chain: cp.tanh(A * 2 + 1) / (1 + cp.exp(-B))
        rsqrt: cupyx.rsqrt(A + 1)
    """,
    'reductions': """
        mean: A.mean()
        mean keepdims: A - A.mean(axis=1, keepdims=True)
        var ddof: A.var(axis=1, ddof=1)
        nanargmax: cp.nanargmax(gaps)
        count_nonzero: cp.count_nonzero(A > 0.5)
        count_nonzero axis: cp.count_nonzero(A > 0.5, axis=0)
        nansum: cp.nansum(gaps)
        nanmedian: cp.nanmedian(gaps)
        cumulative_sum: cp.cumulative_sum(v, include_initial=True)
        average weights: cp.average(v, weights=w)
        median axis: cp.median(A, axis=1)
        quantile list: cp.quantile(v, [0.1, 0.5, 0.9])
        sum complex: C.sum(axis=0)
        sum tuple: cube.sum(axis=(0, 2))
        sum noncontiguous: A[::2, ::3].sum(axis=1)
        apply_along_axis: cp.apply_along_axis(lambda row: row.sum(), 1, A[:8])
        norm axis: cp.linalg.norm(A, axis=1)
    """,
    'sorting and searching': """
        sort method: sort_in_place(v)
        sort int: cp.sort(keys)
        lexsort: cp.lexsort(cp.stack([v, keys.astype('f8')]))
        partition: cp.partition(v, 10)
        top k: cp.sort(v)[::-1][:5]
        searchsorted list: cp.searchsorted(ramp, cp.array([0.1, 0.5]))
        digitize: cp.digitize(v, ramp)
        flatnonzero: cp.flatnonzero(v > 0.5)
        extract: cp.extract(v > 0.5, v)
        compress: cp.compress(flags, v)
        histogram edges: cp.histogram(v, bins=ramp)
        histogram range: cp.histogram(v, bins=16, range=(0, 1))
        histogram2d: cp.histogram2d(v, w, bins=8)[0]
        histogramdd: cp.histogramdd(cp.stack([v, w], axis=1), bins=4)[0]
        bincount weights: cp.bincount(keys, weights=v)
    """,
    'sets': """
        unique inverse: cp.unique(keys, return_inverse=True)
        unique counts: cp.unique(keys, return_counts=True)
        isin: cp.isin(keys, idx)
        isin inverted: cp.isin(keys, cp.asarray([1, 2, 3]), invert=True)
        intersect1d: cp.intersect1d(keys, idx)
        setxor1d: cp.setxor1d(keys, idx)
    """,
    'indexing': """
        element: A[3, 4]
        two lists: A[[0, 1, 2], [3, 4, 5]]
        list and slice: cube[[0, 2], 1:3]
        device index 2d: A[idx[:, None], idx]
        mask row: A[flags]
        mask product: v[(v > 0.2) & (v < 0.4)].sum()
        mask write array: mask_write(v, w)
        mask write row: mask_write_rows(A)
        mask inplace add: mask_add(v)
        where write: where_write(v)
        slice write: slice_write(A)
        row swap: row_swap(A)
        scalar write: scalar_write(v)
        host write: host_write(v, hostv)
        take two rows: A.take(cp.array([1, 30]), axis=0)
        take_along_axis: cp.take_along_axis(A, cp.argsort(A, axis=1), axis=1)
        put: put(v, idx)
        put_along_axis: put_along(A)
        place: place(v)
        putmask: put_mask(v)
        choose: cp.choose(keys % 2, cp.stack([v, w]))
        select: cp.select([v < 0.3, v < 0.6], [v, w], 0)
        piecewise: cp.piecewise(v, [v < 0.5, v >= 0.5], [1.0, 2.0])
        ix_: A[cp.ix_(idx, idx)]
        diag_indices: A[cp.diag_indices(256)]
        fill_diagonal: fill_diag(A)
        unravel_index: cp.unravel_index(keys, (8, 8))
        ravel_multi_index: cp.ravel_multi_index((keys % 8, keys // 8), (8, 8))
        unravel of argmax: cp.unravel_index(A.argmax(), A.shape)
        flat: flat_write(A)
        scatter_add: scatter_add(keys, v)
        add.at: add_at(keys, v)
        iterate: [float(x) for x in v[:3]]
    """,
    'manipulation': """
        stack: cp.stack([v, w], axis=1)
        concatenate axis: cp.concatenate([A, B], axis=1)
        append list: cp.append(v, [1.0, 2.0])
        block of r_: cp.r_[v, w]
        array_split: cp.array_split(v, [10, 100])
        repeat: cp.repeat(v, 3)
        repeat list: cp.repeat(v[:3], [1, 2, 3])
        delete list: cp.delete(v, [1, 2, 5])
        roll 2d: cp.roll(A, (1, 2), axis=(0, 1))
        trim_zeros: cp.trim_zeros(cp.concatenate([cp.zeros(3), v, cp.zeros(2)]))
        packbits: cp.packbits(flags)
        pad constant: cp.pad(A, 3)
        pad reflect: cp.pad(v, 5, mode='reflect')
        ediff1d: cp.ediff1d(v)
        diff n: cp.diff(A, n=2, axis=0)
        gradient of coordinates: cp.gradient(v, ramp)
        astype int: (v * 10).astype('i4')
        tolist: v.tolist()
        repr: repr(v)
    """,
    'creation': """
        full from device: cp.full(5, v.sum())
        arange step: cp.arange(0, 1, 0.1)
        arange of sum: cp.arange(int(keys.max()))
        linspace device: cp.linspace(v[0], w[0], 5)
        tril: cp.tril(A)
        vander: cp.vander(v[:16], 4)
        mgrid: cp.mgrid[0:4, 0:5]
        array nested list: cp.array([[1, 2], [3, 4]])
        array of arrays: cp.array([v, w])
        array of scalars: cp.array([v[0], w[0]])
        asarray big: cp.asarray(np.arange(65536.0))
        empty then fill: filled(5)
        from_dlpack: cp.from_dlpack(v) * 2
        kaiser: cp.kaiser(64, 8.0)
    """,
    'polynomials and interpolation of numpy': """
        polyval: cp.polyval(v[:4], w)
        polyval array: cp.polyval(cp.array([1.0, 2.0, 3.0]), w)
        polymul: cp.polymul(v[:4], w[:6])
        poly1d: cp.poly1d([1.0, -2.0, 3.0])(v)
        poly1d product: (cp.poly1d([1.0, 2.0]) * cp.poly1d([1.0, 3.0])).coeffs
        interp edges: cp.interp(v * 3 - 1, ramp, w, left=-1.0, right=2.0)
        interp period: cp.interp(v, ramp, w, period=0.5)
        convolve full: cp.convolve(v, w, mode='full')
        corrcoef two: cp.corrcoef(v, w)
    """,
    'linear algebra': """
        matmul c16: C @ C
        matmul c8: Cf @ Cf
        matmul int: ints @ ints
        matmul strided: A[::2, ::2] @ B[::2, ::2]
        matmul batch f4: cubef @ cubef
        matmul out: cp.matmul(A, B, out=cp.empty_like(A))
        dot vv: v.dot(w)
        tensordot axes: cp.tensordot(cube, cube, axes=([1, 2], [1, 2]))
        einsum batch: cp.einsum('bij,bjk->bik', cube, cube)
        einsum three: cp.einsum('ij,jk,kl->il', A[:8, :8], B[:8, :8], A[:8, :8])
        solve matrix: cp.linalg.solve(S, B)
        solve batch: cp.linalg.solve(pds, cube)
        solve complex: cp.linalg.solve(hermitian, C)
        inv batch: cp.linalg.inv(pds)
        cholesky batch: cp.linalg.cholesky(pds)
        qr batch: cp.linalg.qr(pds)
        svd values: cp.linalg.svd(S, compute_uv=False)
        svd tall: abs(cp.linalg.svd(A[:, :8], full_matrices=False)[0])
        eigvalsh: cp.linalg.eigvalsh(S)
        eigh complex: cp.linalg.eigvalsh(hermitian)
        eigvals: cp.sort(cp.linalg.eigvals(S).real)
        slogdet: cp.linalg.slogdet(S)
        det batch: cp.linalg.det(pds)
        cond: cp.linalg.cond(S)
        matrix_rank: cp.linalg.matrix_rank(S)
        norm nuc: cp.linalg.norm(S, 'nuc')
        pinv tall: cp.linalg.pinv(A[:, :8])
        tensorinv: cp.linalg.tensorinv(S.reshape(16, 16, 16, 16), ind=2)
        matrix_power negative: cp.linalg.matrix_power(S / 256, -2)
        polyfit cov: cp.polyfit(ramp, v, 1, cov=True)
        cupyx invh: cupyx.linalg.invh(S)
        lu: sl.lu(S)
        lu_solve: sl.lu_solve(sl.lu_factor(S), v)
        solve_triangular lower: sl.solve_triangular(cp.tril(S), B, lower=True)
        toeplitz: sl.toeplitz(v[:16])
        convolution_matrix: sl.convolution_matrix(v[:8], 16)
        bandwidth: sl.bandwidth(S)
    """,
    'fft': """
        ifft: cp.fft.ifft(C)
        fft f4: cp.fft.fft(vf)
        fft n: cp.fft.fft(v, n=300)
        fft2: cp.fft.fft2(A)
        irfft: cp.fft.irfft(z)
        rfftn axes: cp.fft.rfftn(cube, axes=(0, 1))
        hfft: cp.fft.hfft(z)
        fftshift: cp.fft.fftshift(cp.fft.fft2(A))
        spectrum filter: cp.fft.irfft(cp.fft.rfft(v) * (cp.fft.rfftfreq(256) < 0.1))
        scipy hfftn: sf.hfftn(C)
        scipy fft overwrite: sf.fft(C.copy(), overwrite_x=True)
        fft plan: with_plan(C)
        dct 2d: sf.dctn(A)
        dst: sf.dst(v)
        fht: sf.fht(v, 0.1, 0.5)
    """,
    'random': """
        randint: cp.random.randint(0, 1000, 64)
        uniform: cp.random.uniform(-1, 1, 64)
        normal: cp.random.normal(1.0, 2.0, 64)
        standard_normal f4: cp.random.standard_normal(64, dtype='f4')
        gamma: cp.random.gamma(2.0, 1.0, 64)
        binomial: cp.random.binomial(1000, 0.4, 64)
        poisson: cp.random.poisson(100.0, 64)
        dirichlet: cp.random.dirichlet(cp.array([1.0, 2.0, 3.0]), 16)
        multivariate_normal: cp.random.multivariate_normal(cp.zeros(3), cp.eye(3), 16)
        shuffle: shuffled(v)
        permutation of array: cp.random.permutation(v)
        choice no replacement: cp.random.choice(1000, 50, replace=False)
        choice p: cp.random.choice(3, 64, p=cp.array([0.2, 0.3, 0.5]))
        RandomState: state.random_sample(64)
        seeded legacy: (cp.random.seed(3), cp.random.rand(64))[1]
        seeded RandomState: cp.random.RandomState(5).random_sample(64)
        Generator random: gen.random(64)
        Generator integers: gen.integers(0, 1000, 64)
        Generator normal: gen.standard_normal(64)
        Generator gamma: gen.gamma(2.0, 1.0, 64)
        Generator beta: gen.beta(2.0, 3.0, 64)
        Generator poisson: gen.poisson(100.0, 64)
        Generator binomial: gen.binomial(1000, 0.4, 64)
        Generator hypergeometric: gen.hypergeometric(500, 500, 100, 64)
        Generator dirichlet: gen.dirichlet(cp.array([1.0, 2.0, 3.0]), 16)
        Generator out: gen.random(out=cp.empty(64))
        Generator Philox: philox.random(64)
        Generator MRG: mrg.standard_normal(64)
        seeded Generator: cp.random.default_rng(5).standard_normal(64)
        monte carlo: float((cp.random.rand(4096) ** 2 + cp.random.rand(4096) ** 2 < 1).mean()) * 4
        dropout: v * (cp.random.rand(256) > 0.5) * 2
        noise: A + gen.standard_normal(A.shape) * 0.1
    """,
    'host reads, branches and loops': """
        int(): int(keys.sum())
        bool(): bool((v > 0.5).any())
        float in formula: v / float(v.max())
        if any: (v[v > 0.5] if (v > 0.5).any() else v)
        and: bool(v.sum() > 0 and w.sum() > 0)
        allclose branch: (A if cp.allclose(A, B) else B) * 2
        shape from data: cp.zeros(int(keys.max()) + 1)
        slice from data: v[: int((v > 0.5).sum())] * 2
        loop by data: looped(v, int(keys[0]) % 5 + 1)
        newton: newton(v)
        power iteration: power_iteration(S)
        jacobi until: jacobi(S, v)
        bisect: bisect(v)
        k-means: k_means(points)
        gradient descent: descend(S, v)
        standardise: standardise(A)
        while count: halve(v)
        format: f'{float(v.mean()):.6f}'
        try: tried(v)
        assert finite: finite(v)
        pinned copy: pinned_copy(v)
        set from host: set_from(hostv)
        host round trip: cp.asarray(cp.asnumpy(v)[::-1].copy())
        upload in loop: upload_loop(v)
        len nonzero: len(cp.nonzero(v > 0.5)[0])
        running sum: running(A)
    """,
    'kernels': """
        RawKernel shared: raw_shared(v)
        RawModule: raw_module(v)
        RawKernel struct: raw_scalars(v)
        ElementwiseKernel raw: raw_elementwise(v)
        ElementwiseKernel two out: two_out(v)
        ElementwiseKernel size: sized(10)
        ReductionKernel: l2(v)
        fuse two: fused_two(v, w)
        fuse reduction: fused_sum(A)
        jit grid: jit_saxpy(v, w)
        jit shared: jit_shared(v)
        jit atomic: jit_atomic(keys)
        vectorize: vectorized(v)
        GeneralizedUFunc: gufunc(A, B)
        create_ufunc: cp._core.create_ufunc('halved', ('d->d',), 'out0 = in0 / 2')(v)
    """,
    'streams': """
        fork join: fork_join(v, w, side)
        event chain: event_chain(v, side)
        diamond: diamond(v, side, side2)
        two sides: two_sides(v, w, side, side2)
        side synchronised: side_synchronised(v, side)
        event synchronised: event_synchronised(v, side)
        device synchronised: device_synchronised(v)
        side without events: side_without_events(v, side)
        null stream: on_null(v)
        timed: timed(v)
        event done: polled(v)
        copy async: copied_async(v)
        memcpyAsync: memcpy_async(v)
        memcpy sync: memcpy_sync(v)
        own pool: own_pool(v)
        free blocks: freed(v)
        launch_host_func: host_func(v)
    """,
    'sparse': """
        csr from dense: sp.csr_matrix(sparse_dense)
        csr from triples: sp.csr_matrix((v, (keys, keys[::-1])), shape=(64, 64))
        coo from triples: sp.coo_matrix((v, (keys, keys[::-1])), shape=(64, 64))
        toarray: csr.toarray()
        tocsc: csr.tocsc()
        coo tocsr: coo.tocsr()
        transpose: csr.T.tocsr()
        csr scaled: csr * 2.5
        csr abs: abs(csr)
        csr multiply dense: csr.multiply(B)
        csr multiply csr: csr.multiply(csr)
        csr maximum: csr.maximum(csr * 0.5)
        csr compare: (csr > 0.95).toarray()
        csr complex @ vec: csrc @ z
        csr @ csc: csr @ csc
        csc @ vec: csc @ v
        coo @ vec: coo @ v
        dense @ csr: A @ csr
        csr sum: csr.sum()
        csr sum axis: csr.sum(axis=0)
        csr max: csr.max(axis=0)
        csr diagonal: csr.diagonal()
        csr setdiag: set_diag(csr)
        csr row: csr[3]
        csr element: csr[3, 4]
        csr rows slice: csr[10:20]
        csr block: csr[10:20, 30:40]
        csr points: csr[idx, idx]
        csr mask: csr[flags]
        csr eliminate_zeros: without_zeros(csr)
        sum_duplicates: no_duplicates(keys, v)
        tril sparse: sp.tril(csr)
        find: sp.find(csr)
        sparse eye: sp.eye(16)
        diags: sp.diags([v, v[:-1]], [0, 1])
        spdiags: sp.spdiags(cp.stack([v, w]), cp.array([0, 1]), 256, 256)
        sparse kron: sp.kron(sp.eye(4), csr[:4, :4])
        sparse vstack: sp.vstack([csr, csr])
        bmat: sp.bmat([[csr, None], [None, csr]])
        sparse random: sp.random(32, 32, density=0.1, format='csr')
        csr_array: sp.csr_array(sparse_dense) @ v
        laplacian matvec: laplacian @ v
    """,
    'sparse solvers': """
        cg tol: spl.cg(csrS, v)[0]
        gmres: spl.gmres(csrS, v, restart=10, maxiter=20)[0]
        minres: spl.minres(csrS, v, maxiter=5)[0]
        cg preconditioned: spl.cg(csrS, v, M=sp.diags(1 / csrS.diagonal()), maxiter=5)[0]
        cg of operator: spl.cg(spl.LinearOperator((256, 256), matvec=lambda x: S @ x), v, maxiter=5)[0]
        spsolve: spl.spsolve(csrS, v)
        spsolve_triangular: spl.spsolve_triangular(lower, v)
        eigsh: spl.eigsh(csrS, k=3, return_eigenvectors=False)
        svds: cp.sort(spl.svds(csrS, k=3, return_singular_vectors=False))
        lobpcg: spl.lobpcg(csrS, A[:, :3], maxiter=5)[0]
        sparse norm: spl.norm(csr)
    """,
    'images': """
        uniform_filter: nd.uniform_filter(image, 5)
        median_filter: nd.median_filter(image, 3)
        median footprint: nd.median_filter(image, footprint=cp.ones((3, 3), '?'))
        percentile_filter: nd.percentile_filter(image, 20, 3)
        maximum_filter: nd.maximum_filter(image, 5)
        nd convolve: nd.convolve(image, cp.ones((3, 3)) / 9)
        nd convolve list: nd.convolve(image, cp.array([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]))
        generic_laplace: nd.generic_laplace(image, nd.sobel)
        generic_filter: nd.generic_filter(image, l2, 3)
        binary_erosion: nd.binary_erosion(black)
        binary_opening: nd.binary_opening(black)
        binary_fill_holes: nd.binary_fill_holes(black)
        binary_propagation: nd.binary_propagation(black & (image > 0.9), mask=black)
        grey_erosion: nd.grey_erosion(image, 3)
        white_tophat: nd.white_tophat(image, 3)
        distance_transform_edt: nd.distance_transform_edt(black)
        label count: nd.label(black)[1]
        find_objects: nd.find_objects(labels)
        nd sum: nd.sum(image, labels, cp.arange(1, 5))
        nd standard_deviation: nd.standard_deviation(image)
        extrema: nd.extrema(image, labels, cp.arange(1, 5))
        center_of_mass labels: nd.center_of_mass(image, labels, cp.arange(1, 5))
        nd histogram: nd.histogram(image, 0, 1, 8)
        value_indices: nd.value_indices(labels)
        rotate: nd.rotate(image, 30)
        shift: nd.shift(image, (1.5, -2.5))
        affine: nd.affine_transform(image, cp.array([[1.0, 0.1], [0.0, 1.0]]))
        map_coordinates order 1: nd.map_coordinates(image, cp.stack([v * 60, w * 60]), order=1, mode='reflect')
        spline_filter: nd.spline_filter(image)
        fourier_gaussian: nd.fourier_gaussian(C, 2.0)
        segment: nd.label(nd.binary_opening(nd.gaussian_filter(image, 1) > 0.5))
    """,
    'signals': """
        ss convolve: ss.convolve(v, w[:32])
        ss convolve2d: ss.convolve2d(image, cp.ones((3, 3)), mode='same', boundary='symm')
        ss correlate2d: ss.correlate2d(image, cp.ones((3, 3)))
        oaconvolve: ss.oaconvolve(v, w[:16])
        lfilter fir: ss.lfilter(w[:8], cp.array([1.0]), v)
        lfilter 2d: ss.lfilter(taps, cp.array([1.0, -0.3]), A, axis=1)
        lfilter zi: ss.lfilter(taps, cp.array([1.0, -0.3]), v, zi=cp.array([0.1, 0.2]))
        sosfiltfilt: ss.sosfiltfilt(sos, v)
        firwin and filter: ss.lfilter(ss.firwin(15, 0.3), cp.array([1.0]), v)
        savgol: ss.savgol_filter(v, 7, 2)
        wiener: ss.wiener(image, 5)
        detrend: ss.detrend(v)
        hilbert: ss.hilbert(v)
        decimate iir: ss.decimate(v, 4)
        resample_poly: ss.resample_poly(v, 3, 2)
        upfirdn: ss.upfirdn(w[:8], v, 2, 3)
        welch: ss.welch(v, nperseg=64)
        periodogram: ss.periodogram(v)
        coherence: ss.coherence(v, w, nperseg=64)
        stft: ss.stft(v, nperseg=64)
        istft: ss.istft(ss.stft(v, nperseg=64)[2], nperseg=64)
        lombscargle: ss.lombscargle(ramp * 10, v, cp.linspace(0.1, 3.0, 32))
        find_peaks: ss.find_peaks(v, height=0.5)[0]
        argrelmax: ss.argrelmax(v)
        peak_prominences: ss.peak_prominences(v, ss.find_peaks(v)[0])[0]
        czt: ss.czt(v, 64)
        deconvolve: ss.deconvolve(cp.convolve(v[:16], w[:4] + 1), w[:4] + 1)[0]
        cspline1d: ss.cspline1d(v)
        symiirorder1: ss.symiirorder1(v, 0.5, 0.3)
        chirp: ss.chirp(ramp, 1.0, 1.0, 10.0)
        max_len_seq: ss.max_len_seq(5)
        chebwin: win.chebwin(64, 100)
        get_window: ss.get_window(('kaiser', 8.0), 64)
        windowed spectrum: abs(cp.fft.rfft(v * win.hann(256))) ** 2
        freq_shift: xs.freq_shift(v, 0.1, 1.0)
        convolve1d3o: xs.convolve1d3o(v[:32], cp.ones((4, 4, 4)))
        pulse_compression: xs.pulse_compression(C, z[:16])
        mvdr: xs.mvdr(C[:4], z[:4])
    """,
    'special functions': """
        erfinv: spc.erfinv(A)
        gamma function: spc.gamma(A + 1)
        loggamma: spc.loggamma(C + 1)
        digamma: spc.digamma(A + 1)
        polygamma: spc.polygamma(cp.ones_like(A), A + 1)
        gammainc: spc.gammainc(A + 1, B)
        betainc: spc.betainc(v + 1, w + 1, 0.3)
        zeta: spc.zeta(A + 2, 1)
        expit: spc.expit(A)
        softmax: spc.softmax(A, axis=1)
        logsumexp weights: spc.logsumexp(A, axis=0, b=B)
        logsumexp sign: spc.logsumexp(A, axis=1, return_sign=True)
        rel_entr: spc.rel_entr(A, B)
        xlogy: spc.xlogy(A, B)
        chdtr: spc.chdtr(3, A)
        ellipk: spc.ellipk(A)
        ellipj: spc.ellipj(v, 0.5)
        expn: spc.expn(2, A)
        sici: spc.sici(v)
        lambertw: spc.lambertw(v)
        sph_harm_y: spc.sph_harm_y(2, 1, v, w)
        wright_bessel: spc.wright_bessel(1.0, 2.0, v)
    """,
    'statistics, interpolation and space': """
        zscore: st.zscore(A)
        trim_mean: st.trim_mean(v, 0.1)
        entropy: st.entropy(v)
        CubicSpline: itp.CubicSpline(ramp, v)(w)
        CubicSpline derivative: cs(w, 1)
        PchipInterpolator: itp.PchipInterpolator(ramp, v)(w)
        make_interp_spline: itp.make_interp_spline(ramp, v, k=3)(w)
        make_lsq_spline: itp.make_lsq_spline(ramp, v, knots, k=3)(w)
        BSpline: itp.BSpline(knots, v[: knots.size - 4], 3)(w)
        PPoly: itp.PPoly(A[:4, :255], ramp)(w)
        barycentric: itp.barycentric_interpolate(ramp[::32], v[::32], w)
        interp1d: itp.interp1d(ramp, v)(w)
        interpn: itp.interpn((ramp, ramp), A, cp.stack([v, w], axis=1) * 0.9)
        RegularGrid nearest: rgi(cp.stack([v, w], axis=1), method='nearest')
        RBFInterpolator: itp.RBFInterpolator(points, v)(points[:16] * 0.9)
        NearestNDInterpolator: itp.NearestNDInterpolator(points, v)(points[:16] * 0.9)
        KDTree: spatial.KDTree(points).query(points[:16] * 0.9, k=3)
        Delaunay: spatial.Delaunay(points).find_simplex(points[:16] * 0.9)
        distance by hand: cp.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    """,
}


def _parsed(sections: dict[str, str]) -> dict[str, str]:
    cases: dict[str, str] = {}
    for text in sections.values():
        for line in text.strip().splitlines():
            label, _, expression = line.strip().partition(': ')
            if label in cases or label in GIVEN:
                raise ValueError(f'two cases are called {label!r}')
            cases[label] = expression
    return cases


MORE = _parsed(SECTIONS)

_DRAWS = set(_parsed({'random': SECTIONS['random']})) - {'seeded legacy', 'seeded RandomState', 'seeded Generator'}
RANDOM = frozenset(_DRAWS | {'random legacy', 'randn', 'choice', 'permutation', 'sparse random'})
#: One number out of 4097 may well be drawn twice.
FRESH = RANDOM - {'monte carlo'}


def names_of(code: CodeType) -> set[str]:
    """The global names that a compiled expression uses, those of its lambdas and comprehensions included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= names_of(constant)
    return found


def namespace(expression: str) -> dict[str, Any]:
    """Build the arrays and helpers that an expression names; needs CuPy and a GPU."""
    import cupyx

    from tests.gpu.coverage import names

    cupyx.seterr(linalg='ignore')
    return {
        name: names.get(name) for name in sorted(names_of(compile(expression, '<case>', 'eval'))) if names.has(name)
    }
