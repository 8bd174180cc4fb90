"""Mutation testing: is there a line that could be wrong without any test noticing?

``python -m tests.mutation capturekit/model/ledger.py`` changes one thing at a time in a temporary copy of the checkout,
runs the tests that concern the module, and lists what they did not notice. It takes minutes to hours and is no part
of CI; ``python -m tests.mutation --page > docs/evidence/mutants.md`` writes the page about its last runs.

Ready-made tools were looked at: mutmut 3 changes the bodies of functions only, and half of what matters here is
tables; cosmic-ray does not swap members of enums or cells of a table.
"""
