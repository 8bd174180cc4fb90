"""What a watch has found, as exceptions: their texts have the shape of refusals, and ``explain`` knows their names."""

from __future__ import annotations

from capturekit.guard.watch_remedies import remedy
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError, EscapedWorkError, InvalidatedError, UnjoinedError
from capturekit.model.followed_captures import CaptureFinding
from capturekit.model.rules import Code
from capturekit.model.source_line import Place

_UNKNOWN = 'The table of rules has no row for this call'
_ESCAPED = 'This stream is not in the capture: its work ran at once and is missing from the graph'
_NEVER_SEEN = 'The call that lost it is none that is followed, and the capture was never ended'
_UNSEEN = 'A call that is not followed has lost the capture before: see the line of this one, and what runs above it'


def error_of(finding: CaptureFinding, begun: Place | None, maker: str) -> CaptureError:
    """Return a finding as the exception of its rule. ``begun`` is the line that began the capture."""
    rule = finding.rule
    unseen = finding.kind == 'lost' and finding.code == Code.cudaErrorStreamCaptureInvalidated
    says = _says(finding, unseen)
    instead = '' if rule is None or unseen else remedy(rule, maker, finding.elsewhere)
    error = _kind(finding)(
        _operation(finding),
        stream=finding.call.stream,
        subject='' if finding.kind == 'unjoined' else finding.subject,
        location=finding.at,
        rule=f'{says}{_answer(finding, begun)}.',
        remedy=instead,
        cuda_error='' if finding.kind == 'escaped' else code_name(finding.code),
    )
    if isinstance(error, UnjoinedError):
        error.lanes = [{'text': text} for text in finding.lanes]
    return error


def invalidated(finding: CaptureFinding, stream: int, begun: Place | None, maker: str) -> InvalidatedError:
    """Return the exception of a capture that a watched call has lost."""
    told = error_of(finding, begun, maker)
    error = InvalidatedError(
        f'The capture was lost by {told.operation}',
        stream=stream,
        lane=0,
        subject=told.subject,
        location=finding.at,
        rule=told.rule,
        remedy=told.remedy,
        cuda_error=Code.cudaErrorStreamCaptureInvalidated.name,
    )
    error.lost_at = finding.at
    error.function, error.libraries, error.answer = finding.call.function, finding.libraries, code_name(finding.code)
    return error


def code_name(code: int) -> str:
    """Return CUDA's name of an error code."""
    return Code(code).name if code in tuple(Code) else f'error {code}'


def _kind(finding: CaptureFinding) -> type[CaptureError]:
    if finding.kind == 'escaped' and (finding.rule is None or finding.rule.name == 'escaped-work'):
        return EscapedWorkError
    if finding.kind == 'unjoined':
        return UnjoinedError
    return InvalidatedError if finding.rule is None else finding.rule.error


def _says(finding: CaptureFinding, unseen: bool) -> str:
    if finding.rule is None:
        return _UNKNOWN
    if finding.kind == 'escaped' and finding.rule.name == 'escaped-work':
        return _ESCAPED
    if not finding.call.function:
        return _NEVER_SEEN
    return _UNSEEN if unseen else finding.rule.says


def _operation(finding: CaptureFinding) -> str:
    made = f'{finding.call.function}()' if finding.call.function else 'A call that was not seen'
    by = f', called by {finding.libraries[0]}' if finding.libraries else ''
    pause = ',' if by else ''
    if finding.kind != 'unjoined':
        return f'{made}{by}{pause if finding.subject else ""}'
    lanes = f': {"; ".join(finding.lanes)}' if finding.lanes else ''
    return f'{counted(len(finding.lanes) or 1, "lane")} left unjoined{lanes}; {made}{by}{pause} ended the capture'


def _answer(finding: CaptureFinding, begun: Place | None) -> str:
    if finding.kind == 'escaped':
        return ''
    whose = '' if begun is None else f' begun at {begun}'
    other = '. Another thread than that of the capture made the call' if finding.elsewhere else ''
    return f' (CUDA answered {code_name(finding.code)}, and the capture{whose} was lost){other}'
