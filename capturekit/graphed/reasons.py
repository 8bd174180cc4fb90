"""Why calls run eagerly: reasons, which are sentences that know of which kind they are."""

from __future__ import annotations

import enum

_STORE = 'Return the new value, and let the caller store it'
_OUTSIDE = 'Do that outside of the function.'


class Why(enum.Enum):
    """The kinds of reasons: what they say, and what would change that."""

    OTHER = 'anything else', 'Move that line out of the function.'
    TOLD = 'a call was refused, or the arguments are new, and what would change that is told there', OTHER[1]
    SETS = 'a setting or a log is changed', _OUTSIDE
    CHANGES = 'a value is changed or rebound', f'{_STORE}.'
    CREATES = 'a name is created', f'{_STORE}; or create it before the first call.'
    DELETES = 'a name is deleted', 'Let the caller delete it.'
    DRAWS = 'the host draws random numbers', 'Draw with cupy.random, or pass what was drawn.'
    CLOCK = 'a clock is read', 'Read the clock outside of the function.'
    FILE = 'a file is read or written', _OUTSIDE
    CAPTURE = 'a capture is opened', 'Leave that capture out: the decorator records the function.'
    LAZY = 'the function runs after the call', 'Decorate a plain function, which returns its results.'
    WARNS = 'a warning is shown', 'Repair what the warning says, or filter it before the call.'
    RESULT = 'the result', 'Return arrays, numbers and texts, or lists, tuples and dicts of such.'
    TOO_MUCH = 'too much is read', 'Graph a smaller part of the function.'
    LIES_ON = 'an argument shares memory', 'Pass another array, or a copy.'
    IS_PART = 'an argument is a part of an array', 'Pass the whole array, or a copy of the part.'
    HOST_READ = 'a value that the host reads', 'Return the array, and read it outside; or decide with cp.where.'
    THREADS = 'another thread was there', 'Let one thread call it first, until it is recorded.'
    LOCKS = 'locks or a log are used', 'Do that outside of the function.'
    LATER = 'changes while checks are late', f"Leave checks='later' out; or {_STORE[0].lower()}{_STORE[1:]}."
    READS = 'what is read', 'Pass what changes as an array; or write into the array that is there, in place.'

    @property
    def remedy(self) -> str:
        """What would change that."""
        return self.value[1]


#: The changes of Python state that launches may repeat.
CHANGES = frozenset({Why.SETS, Why.CHANGES, Why.CREATES})


class Reason(str):
    """A sentence that says why a call runs eagerly, or why a recording of a run may not stand for later calls.

    ``about``: what it counts for, if that is known: the id of a value, or the name of an attribute.
    """

    __slots__ = ('about', 'why')
    why: Why
    about: int | str

    def __new__(cls, sentence: str | None = None, why: Why = Why.OTHER, about: int | str = '') -> Reason:
        made = super().__new__(cls, sentence or '')
        made.why, made.about = why, about
        return made


#: Why nothing fits call after call.
DIFFERENT = 'what it reads besides its arguments is another one at nearly each call'
#: Nothing stands against a launch.
NONE = Reason()
