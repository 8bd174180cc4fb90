"""``python -m tests.packages`` runs programs on public packages that take CuPy arrays, eagerly and graphed.

:mod:`registry` says what a program is, the modules ``programs_*`` have them, :mod:`judge` runs one in both ways,
:mod:`child` runs those of one package in a process, and the command starts the processes. ``results.csv`` is what
``--csv`` has written on a GPU.
"""
