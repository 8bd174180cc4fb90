"""All numbers by which it is decided what is tried: when runs are followed, recorded and launched, and when no more.

None of them decides what a call gives, only how long it takes. Tests set them.
"""

from __future__ import annotations

#: After so many calls in a row that no launch could answer, more than variants are kept, a kind of call stays eager.
PATIENCE = 8
#: After so many runs in a row that could not be recorded for the same reason, a kind of call stays eager.
HOPE = 3
#: After so many new kinds of calls in a row, more than are kept, calls of new kinds are not watched any more.
NEW_KINDS = 8

# -- following runs

#: How many seconds following one run may take in all.
LONGEST = 1.0
#: So many seconds are measured by the clock, which also counts what other processes take; the rest are the processor's.
ROUGHLY = 0.2

# -- recording

#: Up to so many host reads, the device checks them. With more, the host does: many conditional nodes cost more.
CHAIN = 16
#: Up to so many calls of the host between graphs, recording in pieces is likely to be worth it.
FEW_SEAMS = 4
#: Smaller arrays are always copied: that takes the device less time than the host needs to change one node.
AIMED_BYTES = 1 << 20
#: So many launches with numbers in memory are compared with eager runs, in case the analysis misread a use.
COMPARED = 2

# -- launches or eager runs, by their times

#: A kind of call is compared from its first launch on, or after so many calls without one.
ANYWAY = 4
#: Which of the calls that are compared run eagerly. They become faster: Python prepares code anew that was followed.
TURNS = (False, True, True, False, True, False, False, True)
#: Where launches take less than half as long, or so many times as long, this is sure after so many calls of each.
HALF, CLEAR, SURE = 0.5, 1.4, 3
#: Launches have to take so much less: what is measured is not exact, and eager calls are what the user wrote.
BETTER = 0.97
#: After so many calls that ran eagerly because that is faster, launches are tried again; then after twice as many, and
#: so on; in the end after so many.
AGAIN, SELDOM = 64, 4096
#: What such a try has taken more than eager calls would is at most this part of what calls take until the next one.
TRIES = 1 / 16
#: After so many calls that were recorded or watched since launches were found to be faster, both are compared again;
#: then after twice as many, and so on.
RETRIED = 2
#: So many calls in a row, in the end, are taken for calls of the same kind without a look.
UNSEEN = 31

# -- telling the user

#: After so many calls that ran eagerly since the last launch, each of them of a kind that was there before, the user is
#: told. None: never.
TOLD: int | None = 6
