"""Programs for graphed functions, as users of CuPy write them: a call, a change between calls, and what is expected.

They stand in texts. ``guide.txt`` has three for each sentence of the guide, and the launch ledger reports them; each
other text has those of one topic. A line that begins with ``===`` is a rule. One that begins with ``---`` is a program,
and its module follows: the name, the call, the change and what is expected, parted by `` | ``. Call and change may be
left out: ``name | change | expected`` calls ``f(x + n)``. A change that names ``n``, the number of the call, is made
before each call, another one once, between the fifth and the sixth call of ten.

What is expected: ``launched``, ``in parts``, or ``eager: words of its reason``, of the last call and of the last one
before the change; ``one > other`` has both. ``kept``: launched, and no call is watched again after the change.
``seen: words``: launched, and the first call after the change is watched for a reason with these words. ``right``: it
may be either. ``launched since 3.12``: in older Pythons it may be either. Results are compared with those of plain
calls in any case.

``f`` is graphed where no ``ck.graphed`` stands in the module. Lines that begin with ``$`` make several programs of one:
`` || `` parts what is put in the places of ``$1``, ``$2`` ..., and `` ;; `` begins a new line of a function there.
Those that begin with ``alone,`` need a process of one thread. ``numbered(f, n)`` calls ``f`` twice, with odd
numbers, too.
"""
