"""What programs of blocks do that is wrong: deeds that are caught at once, and such that end a block."""

from __future__ import annotations

from dataclasses import dataclass

#: Refused wherever they stand in a strict capture; the block goes on. ``# before``: an event {n} was recorded before.
CAUGHT = (
    'float({a}.sum())', 'bool({a}[0] > 0)', '{a}.get()', 'cp.asnumpy({a})', 'cp.nonzero({a})', '{a}[{a} > 1.0]',
    '{cur}.synchronize()', '{cap}.stream.synchronize()', 'cp.cuda.Device().synchronize()', '{cur}.done',
    '{cur}.record().synchronize()', 'cp.cuda.runtime.deviceSynchronize()', '{cap}.join({free})',
    'with cp.cuda.Stream.null: {n} = {i}[0] * 2.0', 'with {free}: {n} = {i}[0] * 2.0', 'with {free}: {i}[3] *= 2.0',
    'with {free}: {n} = {i}[0] @ M', 'cp.linalg.svd(M)', 'cp.linalg.solve(M, cp.cumsum({a})).tolist()',
    '{cap}.graph.launch()', '{cur}.add_callback(lambda *_: None, None)', '{cur}.wait_event({n}) # before',
    "{n} = cp.ones((), bool)\nwith {cap}.while_({n}):\n    cp.tanh({a})",
)  # fmt: skip


@dataclass(frozen=True)
class Deed:
    """A wrong deed: what is before the block, and the statements in both sources.

    {a} is an array that can be read; {v} one of the block's own; {n} a new name; {i}[0] is compared. ``moves``: the
    program itself leaves another stream current.
    """

    name: str
    lines: tuple[tuple[str, str], ...]
    before: tuple[str, ...] = ()
    moves: bool = False


def _leaving(name: str, place: str, begin: str = '') -> tuple[Deed, ...]:
    """A place that holds an array of the body afterwards."""
    first = ((begin, begin),) if begin else ()
    used = ('{i}[0][...] = ' + place + ' + 1.0',) * 2
    again = f'    {place} = {place} * 0.5 + 2.0'
    count = "left{n} = cp.full((), 3, 'i4')"
    minus = '    cp.subtract(left{n}, 1, out=left{n})'
    return (
        Deed(f'{name} leaves if_', (*first, (
            'with {cap}.if_({a}.sum() > 0.0):\n' + again, 'if bool({a}.sum() > 0.0):\n' + again), used)),
        Deed(f'{name} leaves while_', (*first, (count, count), (
            'with {cap}.while_(left{n}):\n' + again + '\n' + minus,
            'while bool(left{n}):\n' + again + '\n' + minus), used)),
        Deed(f'{name} leaves if_, unused', (*first, (
            'with {cap}.if_({a}.sum() > 0.0):\n' + again, 'if bool({a}.sum() > 0.0):\n' + again))),
    )  # fmt: skip


_BRANCHES = 'with {cap}.if_else({a}.sum() > 0.0) as (then{n}, else{n}):\n'
_WORK = '{v} = {a} * 3.0\n{i}[0][...] = {v}'

WRONG: tuple[Deed, ...] = (
    *_leaving('a name', '{v}'),
    *_leaving('an attribute', '{n}.a', '{n} = types.SimpleNamespace(a={v})'),
    *_leaving('an item', '{n}[0]', '{n} = [{v}]'),
    *_leaving('an item of a dict', "{n}['k']", "{n} = dict(k={v})"),
    Deed('a name of both branches', (
        (_BRANCHES + '    with then{n}:\n        {n} = {a} * 10.0\n    with else{n}:\n        {n} = -{a}',
         'if bool({a}.sum() > 0.0):\n    {n} = {a} * 10.0\nelse:\n    {n} = -{a}'),
        ('{i}[0][...] = {n}',) * 2)),
    Deed('a temporary of both branches', (
        (_BRANCHES + '    with then{n}:\n        {n} = {a} * 10.0\n        {v} += {n}\n'
         '    with else{n}:\n        {n} = -{a}\n        {v} += {n}',
         'if bool({a}.sum() > 0.0):\n    {v} += {a} * 10.0\nelse:\n    {v} += -{a}'),
        ('{i}[0][...] = {v}',) * 2)),
    Deed('a temporary that is used later', (
        ('with {cap}.if_(cp.ones((), bool)):\n    {n} = {a} * 10.0', '{n} = {a} * 10.0'),
        ('{v} = cp.tanh({a})',) * 2, ('{i}[0][...] = {n}',) * 2)),
    Deed('a condition that cannot change', (
        ('with {cap}.while_({v}.sum() < 50.0, limit=5):\n    {v} += 6.0',
         'for _ in range(5):\n    if bool({v}.sum() < 50.0): {v} += 6.0'), ('{i}[0][...] = {v}',) * 2)),
    Deed('a condition that is never written', (
        ('{n} = cp.ones((), bool)\nwith {cap}.while_({n}):\n    {i}[0] += 1.0', ''),)),
    Deed('if_ without with', (
        ('{cap}.if_({a}.sum() > 1e9)\n{i}[0] += 1.0', 'if bool({a}.sum() > 1e9): {i}[0] += 1.0'),)),
    Deed('work outside of both branches', (
        (_BRANCHES + '    with then{n}: {v} += 1.0\n    {v} += 100.0\n    with else{n}: {v} += 2.0',
         '{v} += 1.0 if bool({a}.sum() > 0.0) else 2.0'), ('{i}[0][...] = {v}',) * 2)),
    Deed('a body that fails', (
        ("try:\n    with {cap}.if_({a}.sum() > 0.0):\n        {i}[0] += 1.0\n        raise KeyError('in')\n"
         'except KeyError: pass', ''),)),
    Deed('a bound use', (('{n}()', ''), (_WORK, _WORK)), ('{n} = {free}.use',), True),
    Deed('an ExitStack', (('{n}.close()', ''), (_WORK, _WORK)), (
        '{n} = contextlib.ExitStack()', '{n}.enter_context({free})'), True),
    Deed('a suspended generator', (('{n}.close()', ''), (_WORK, _WORK)), ('{n} = held({free})', 'next({n})'), True),
    Deed('a race', (
        ('{free}.wait_event({cap}.stream.record())', ''), ('with {free}: {v}[...] = {a} * 3.0', '{v}[...] = {a} * 3.0'),
        ('{i}[0][...] = {v}\n{cap}.join({free})', '{i}[0][...] = {v}'))),
    Deed('a lane that is not joined', (
        ('{free}.wait_event({cap}.stream.record())\nwith {free}: {i}[0] *= 0.5', '{i}[0] *= 0.5'),)),
    Deed('an event that is too early', (
        ('{free}.wait_event({cap}.stream.record())\n{n} = {free}.record()', ''),
        ('with {free}: {i}[0] *= 0.5', '{i}[0] *= 0.5'),
        ('{cap}.stream.wait_event({n})', ''))),
    Deed('an event of before', (('{cap}.stream.wait_event({n})', ''),), ('{n} = {free}.record()',)),
    Deed('a stream that is not forked', (('with {free}: {i}[0] *= 0.5', '{i}[0] *= 0.5'),)),
    Deed('cuBLAS that is not forked', (('with {free}: {i}[0][...] = {a} @ M', '{i}[0][...] = {a} @ M'),)),
    Deed('the legacy stream', (('with cp.cuda.Stream.null: {i}[0] *= 0.5', '{i}[0] *= 0.5'),)),
    Deed('a number that is read', (('{i}[0] *= float({a}.sum()) * 0.01',) * 2,)),
    Deed('a call that no capture holds', (('{i}[0][...] = cp.linalg.svd(M + cp.diag({a}), compute_uv=False)',) * 2,)),
    Deed('the outer one is ended first', ((
        '{n} = ck.capture({free})\n{n}.__enter__()\ntry:\n    {cap}.__exit__(None, None, None)\n    Y[0] *= 0.5\n'
        'finally:\n    {n}.__exit__(None, None, None)', ''),)),
)  # fmt: skip
