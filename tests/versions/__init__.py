"""``python -m tests.versions`` makes docs/versions.md: what holds for which versions of Python, CuPy and cuda-bindings.

:mod:`probe` looks at the environment that it runs in, :mod:`matrix` makes environments and runs it there, :mod:`table`
writes what was found as a page.
"""
