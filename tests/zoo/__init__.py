"""A zoo of broken programs, each taken from trouble that people report, with its repair beside it.

``cases`` says what a case is, ``trial`` puts one to the test, on the simulated device or on a GPU; the other files hold
the programs, one file for each family.
"""
