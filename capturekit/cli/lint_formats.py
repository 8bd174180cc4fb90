"""A lint report for people, for programs, and for the pages of a code review: each takes it and gives text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from capturekit.cli.terminal import paint
from capturekit.lab.lint import Finding, Report


def concise(report: Report, sentence: str, whole: bool) -> str:
    """A line for each finding, the remedy once for each rule, and a sentence that says what was looked at."""
    also = f' ({report.ignored} ignored)' if report.ignored else ''
    if not report.findings:
        return f'nothing found{also}: {sentence}' if whole else sentence + also
    lines = [_coloured(finding) for finding in report.findings]
    refused = sum(finding.refused for finding in report.findings)
    still = sum(finding.refused_adapting for finding in report.findings)
    count = f'{len(lines)} found: a strict capture refuses {refused}, one with strict=False {still}{also}'
    return '\n'.join([*lines, '', *report.rules(), '', count, sentence])


def as_json(report: Report, sentence: str, whole: bool) -> str:
    """One object: the findings, whether all was looked at, and the sentence."""
    return json.dumps({**report.to_json(), 'complete': whole, 'summary': sentence}, indent=1)


def github(report: Report, sentence: str, whole: bool) -> str:
    """Workflow commands: GitHub shows each finding at its line."""
    lines = []
    for finding in report.findings:
        where = ''
        if finding.at is not None:
            where = f'file={_property(_path(finding.at.file))},line={finding.at.line},'
        level = 'error' if finding.refused_adapting else 'warning' if finding.refused else 'notice'
        text = f'{finding.call}. {finding.says} {finding.remedy}'
        lines.append(f'::{level} {where}title=capturekit {finding.rule}::{_data(text)}')
    level = 'notice' if whole else 'warning'
    return '\n'.join([*lines, f'::{level} title=capturekit lint::{_data(sentence)}'])


def _coloured(finding: Finding) -> str:
    where, rule = _where(finding), f'[{finding.rule}]'
    what = 'error' if finding.refused else 'warning'
    line = finding.in_line(paint(where, 'place', sys.stdout))
    return line.replace(rule, paint(rule, what, sys.stdout), 1)


def _where(finding: Finding) -> str:
    """The finding's line with the file's path, as an editor or terminal can open it."""
    at = finding.at
    if at is None:
        return 'an unknown line'
    return f'{_path(at.file)}:{at.line}' + ('' if at.function == '<module>' else f' in {at.function}')


def _path(file: str) -> str:
    near = os.path.relpath(file) if os.path.isabs(file) else file
    return file if near.startswith(os.pardir) else near


def _data(text: str) -> str:
    return text.replace('%', '%25').replace('\r', '%0D').replace('\n', '%0A')


def _property(text: str) -> str:
    return _data(text).replace(':', '%3A').replace(',', '%2C')


FORMATS: dict[str, Callable[[Report, str, bool], str]] = {'concise': concise, 'json': as_json, 'github': github}
