"""The picture of an error: the recording so far, with the finding among its marks."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from capturekit.model.errors import CaptureError
from capturekit.model.recording import Recording, Step
from capturekit.render.html import to_frame
from capturekit.render.svg import to_svg


def marked(error: CaptureError) -> Recording:
    """The recording of an error, with the error as a finding at its line; the recording itself stays as it is."""
    recording: Recording = error.recording
    text = f'{type(error).__name__}: {error}'
    if any(step.kind == 'finding' and step.text == text for step in recording.steps):
        return recording
    at = None if error.location is None else error.location.to_json()
    return replace(recording, steps=[*recording.steps, Step('finding', error.lane, text, at)])


def error_to_html(error: CaptureError) -> str:
    """The message, and below it the page of its recording in a frame."""
    text = escape(f'{type(error).__name__}: {error}')
    return f'<pre style="white-space:pre-wrap">{text}</pre>{to_frame(marked(error))}'


def error_to_svg(error: CaptureError) -> str:
    """The recording of an error as SVG."""
    return to_svg(marked(error))
