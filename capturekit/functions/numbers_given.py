"""Numbers among the arguments of a call that change from call to call: the graph reads them, or the host reckons."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from capturekit.functions.kinds import Given
from capturekit.functions.number_arguments import Unfit
from capturekit.functions.options import Options
from capturekit.functions.outcomes import ArgumentNumber, GivenNumbers
from capturekit.functions.variant import Variant
from capturekit.model.counters import LOG


def given_numbers(fn: Any, given: Given) -> GivenNumbers | None:
    """The parameters of a function that get such numbers in a call."""
    if given.numbers is None or type(fn) is not FunctionType:
        return None
    return GivenNumbers(fn.__code__, tuple(given.numbers.names(fn)))


def fill(given: Given, variant: Variant, name: str) -> Exception | None:
    """Let the next launch of a variant have the numbers of a call. Returns why they do not fit the recording."""
    if given.numbers is None:
        return None
    for argument, value in zip(variant.arguments, given.numbers.values):
        argument.value = value
    try:
        if variant.slots is not None:
            variant.slots.fill(given.leaves[-1], given.numbers.values)
        return None
    except Unfit as error:
        LOG.info('%s: %s; this call runs eagerly', name, error)
        return error.with_traceback(None)


def reckon_with_arguments(fn: Any, given: Given, variant: Variant, options: Options) -> bool:
    """Let the host reckon with the numbers of a call, where the graph can't do that alone. False if it can't, either.

    The variant is recorded with those of its first run, as all else that it assumes is of that run.
    """
    numbers, environment = given.numbers, variant.environment
    if numbers is None or variant.arguments or environment is None or options.later:
        return False
    if not set(numbers.names(fn)) <= environment.reckoned.parameters:
        return False
    given.kind.reckons_with_arguments = True
    variant.arguments = [ArgumentNumber(value) for value in variant.numbers]
    return True
