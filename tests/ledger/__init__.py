"""``python -m tests.ledger`` writes which calls of many programs ``@ck.graphed`` launches, and why it doesn't others.

:mod:`outcomes` notes what becomes of calls, :mod:`programs` runs the programs, :mod:`compare` tells two ledgers apart,
:mod:`corpus` has programs for the sentences of the guide, and :mod:`harness` runs those.
"""
