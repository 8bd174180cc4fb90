"""``python -m tests.versions`` makes docs/evidence/versions.md: what holds for which Python, CuPy and cuda-bindings.

:mod:`probe` looks at the environment that it runs in, :mod:`matrix` makes environments and runs it there, :mod:`table`
writes what was found as a page.
"""
