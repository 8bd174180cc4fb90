"""Where streams, events and modes lie among the parameters: compared with NVIDIA's header, where there is one."""

from __future__ import annotations

import glob
import re

import pytest

from capturekit.driver.cupti_calls import ParameterLayout, layout
from capturekit.model.cuda_functions import EXCHANGE, OPERATIONS, function
from capturekit.model.rules import Operation

HEADERS = sorted(glob.glob('/usr/local/cuda*/include/generated_cuda_meta.h'))
#: Types of one word of four bytes; the others that occur here have eight.
SMALL = ('int', 'unsigned int', 'CUstreamCaptureMode', 'unsigned char', 'unsigned short', 'CUdevice', 'float')
_O = Operation
#: Operations that name a stream or an event.
NAMING = (
    _O.BEGIN_CAPTURE, _O.END_CAPTURE, _O.STREAM_SYNCHRONIZE, _O.STREAM_QUERY, _O.STREAM_GET_FLAGS, _O.WAIT_EVENT,
    _O.STREAM_ADD_CALLBACK, _O.EVENT_RECORD, _O.EVENT_QUERY, _O.EVENT_SYNCHRONIZE, _O.EVENT_ELAPSED_TIME,
    _O.EVENT_DESTROY, _O.LAUNCH_HOST_FUNC, _O.GRAPH_LAUNCH, _O.GRAPH_UPLOAD, _O.PEER_COPY, _O.PREFETCH,
    _O.MALLOC_ASYNC, _O.FREE_ASYNC, _O.WORK,
)  # fmt: skip


def structures() -> dict[str, dict[str, int]]:
    """The offsets of streams, events, modes and flags by the function's name, from the header."""
    with open(HEADERS[-1]) as header:
        text = header.read()
    found = {}
    for name, body in re.findall(r'typedef struct (cu\w+)_params_st \{(.*?)\}', text, re.DOTALL):
        offset, fields = 0, {}
        for declared in filter(None, (line.strip() for line in body.split(';'))):
            kind, field = re.fullmatch(r'(.*?)\s*(\w+)', declared).groups()  # type: ignore[union-attr]
            size = 4 if kind in SMALL else 8
            offset += -offset % size
            role = {'CUstream': 'stream', 'CUevent': 'event', 'CUstreamCaptureMode': 'mode'}.get(kind)
            role = 'flags' if field.lower() == 'flags' else role
            fields[f'{role}2' if role in fields else str(role)] = offset
            offset += size
        found[name] = fields
    return found


@pytest.mark.skipif(not HEADERS, reason='the CUDA toolkit with its headers is not installed')
def test_the_offsets_are_those_of_the_header() -> None:
    checked = 0
    for name, fields in structures().items():
        known = function(name)
        if known is None or known.operation not in NAMING:
            continue
        here = layout(name)
        if here.config:
            assert fields.keys() == {'None'}
            continue
        assert (here.stream, here.event, here.event2) == (
            fields.get('stream'), fields.get('event'), fields.get('event2')
        ), name  # fmt: skip
        assert here.mode == fields.get('mode'), name
        assert here.flags in (None, fields.get('flags')), name
        checked += 1
    assert checked > 60


def test_a_version_of_its_own_has_its_own_layout() -> None:
    assert layout('cuMemPrefetchAsync').stream == 24 and layout('cuMemPrefetchAsync_v2_ptsz').stream == 32
    assert layout('cuStreamBeginCapture').mode is None and layout('cuStreamBeginCapture_v2_ptsz').mode == 8


def test_modes_and_configured_launches_are_pointed_to() -> None:
    assert layout(f'cu{EXCHANGE}') == ParameterLayout(exchanged=True)
    assert layout('cuLaunchKernelEx_ptsz') == ParameterLayout(config=True)


def test_what_names_nothing_has_no_layout() -> None:
    assert layout('cuMemAlloc_v2') == ParameterLayout()
    assert OPERATIONS['MemAlloc'] is _O.UNSAFE
