"""The commands beside ``run``, one to a file.

Each has ``add(commands)``, which adds its parser to argparse's subparsers and sets ``go``: a function that takes the
parsed arguments and returns the exit status.
"""
