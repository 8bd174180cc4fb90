"""``python -m tests.mutation MODULE``: try the mutants of a module, list those that no test notices."""

from __future__ import annotations

import argparse
import datetime
import platform
import random
import time
from pathlib import Path

from capturekit.model.progress import each
from tests.mutation import report
from tests.mutation.mutants import CELLS, Mutant, mutants
from tests.mutation.subjects import SUBJECTS, Subject
from tests.mutation.trial import MISSED, NOTICED, TIMED_OUT, Trials


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m tests.mutation', description=__doc__)
    parser.add_argument('module', nargs='?', help='a file of the checkout that is the current directory')
    parser.add_argument('--only', type=int, metavar='N', help='try a sample of N mutants')
    parser.add_argument('--cells', type=int, metavar='N', help='try a sample of N of the cells and rows of tables')
    parser.add_argument('--seed', type=int, default=0, help='of the samples')
    parser.add_argument(
        '--tests', nargs='+', metavar='FILE', help='tests to run instead of those listed for the module'
    )
    parser.add_argument('--again', action='store_true', help="try the last run's survivors again")
    parser.add_argument('--save', action='store_true', help='keep the results for the page')
    parser.add_argument('--page', action='store_true', help='print the page about the last runs')
    return parser.parse_args()


def _sampled(made: list[Mutant], args: argparse.Namespace) -> tuple[list[Mutant], str]:
    """The mutants to try, in the order of the file, and what was left out in words."""
    chosen, said = made, []
    dice = random.Random(args.seed)
    if args.cells is not None:
        cells = [m for m in made if m.kind in CELLS]
        kept = set(dice.sample(cells, min(args.cells, len(cells))))
        chosen = [m for m in made if m.kind not in CELLS or m in kept]
        said.append(f'of {len(cells)} cells and rows of tables {len(kept)}, of all else everything')
    if args.only is not None and args.only < len(chosen):
        kept = set(dice.sample(chosen, args.only))
        chosen = [m for m in chosen if m in kept]
        said.append(f'{args.only} at random')
    return chosen, '; '.join(said)


def _entry(mutant: Mutant, source: str) -> report.Entry:
    before, after = mutant.lines(source)
    return {'kind': mutant.kind, 'where': mutant.where, 'line': mutant.line, 'before': before, 'after': after}


def _try_all(trials: Trials, chosen: list[Mutant], source: str) -> dict[str, list[report.Entry]]:
    outcomes: dict[str, list[report.Entry]] = {NOTICED: [], MISSED: [], TIMED_OUT: []}
    begun = time.monotonic()
    for i, mutant in enumerate(each('mutants', chosen), 1):
        entry = _entry(mutant, source)
        outcome = trials.attempt(mutant.applied(source))
        outcomes[outcome].append(entry)
        if outcome != NOTICED:
            print(
                f'{outcome}: line {mutant.line} ({mutant.kind})\n  - {entry["before"]}\n  + {entry["after"]}',
                flush=True,
            )
        if i % 25 == 0:
            print(f'{i} of {len(chosen)} after {time.monotonic() - begun:.0f} s', flush=True)
    return outcomes


def _result(
    made: int, tried: int, said: str, seed: int, tests: tuple[str, ...], outcomes: dict[str, list[report.Entry]]
) -> report.Entry:
    return {
        'date': datetime.date.today().isoformat(),
        'python': platform.python_version(),
        'tests': list(tests),
        'made': made,
        'tried': tried,
        'seed': seed,
        'sampled': said,
        'killed': len(outcomes[NOTICED]) + len(outcomes[TIMED_OUT]),
        'timed_out': len(outcomes[TIMED_OUT]),
        'survived': outcomes[MISSED],
    }


def _again(
    last: report.Entry, tests: tuple[str, ...], tried: int, outcomes: dict[str, list[report.Entry]]
) -> report.Entry:
    """The last run's result, where its survivors have been tried anew; some may not be made any more."""
    gone = len(last['survived']) - tried
    return {
        **last,
        'date': datetime.date.today().isoformat(),
        'tests': list(dict.fromkeys([*last['tests'], *tests])),
        'made': last['made'] - gone,
        'tried': last['tried'] - gone,
        'killed': last['killed'] + tried - len(outcomes[MISSED]),
        'timed_out': last['timed_out'] + len(outcomes[TIMED_OUT]),
        'survived': outcomes[MISSED],
    }


def main() -> int:
    args = _arguments()
    if args.page:
        print(report.page(), end='')
        return 0
    root = Path.cwd()
    source = (root / args.module).read_text()
    subject = SUBJECTS.get(args.module, Subject(()))
    tests = tuple(args.tests or subject.tests)
    made = mutants(source, subject.prose)
    results = report.read(report.RESULTS)
    last = results.get(args.module, {})
    chosen, said = _sampled(made, args)
    if args.again:
        chosen = [m for m in made if any(report.same(_entry(m, source), e) for e in last['survived'])]
    with Trials(root, args.module, tests) as trials:
        print(f'{args.module}: {len(chosen)} of {len(made)} mutants; its tests take {trials.prove():.1f} s', flush=True)
        outcomes = _try_all(trials, chosen, source)
    if args.save:
        if args.again:
            result = _again(last, tests, len(chosen), outcomes)
        else:
            result = _result(len(made), len(chosen), said, args.seed, tests, outcomes)
        report.write(report.RESULTS, results | {args.module: result})
    listed = report.read(report.EQUIVALENT).get(args.module, [])
    left = [e for e in outcomes[MISSED] if report.reason(e, listed) is None]
    print(
        f'{len(chosen)} tried: {len(outcomes[NOTICED])} killed, {len(outcomes[TIMED_OUT])} timed out, '
        f'{len(outcomes[MISSED]) - len(left)} without a change in meaning, {len(left)} survived'
    )
    return bool(left)


if __name__ == '__main__':
    raise SystemExit(main())
