"""Captures followed by what CUDA's functions are told and answer: against the simulated device, which knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given

from capturekit.model.cuda_functions import OPERATIONS, ApiCall, function
from capturekit.model.followed_captures import FollowedCapture, Follower
from capturekit.model.rules import ROWS, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place
from capturekit.simulated import SimulatedDevice
from tests.model.followed_programs import KINDS, STEPS, Step, agree

_O = Operation
HERE = Place('program.py', 7, 'step')


@dataclass
class Process:
    """Answers what the follower asks; ``states`` are the streams' statuses."""

    states: dict[int, CaptureStatus] = field(default_factory=dict)
    at: Place | None = HERE
    ours: bool = False
    flags: dict[int, bool] = field(default_factory=dict)

    def status(self, stream: int) -> CaptureStatus | None:
        return self.states.get(stream)

    def blocking(self, stream: int) -> bool:
        return self.flags.get(stream, False)

    def device(self) -> int | None:
        return 0

    def place(self, thread: int) -> Place | None:
        return self.at

    def libraries(self) -> tuple[str, ...]:
        return ('libtorch_cuda.so', 'libtorch_python.so')

    def maker(self) -> str:
        return 'torch'

    def own(self) -> bool:
        return self.ours


def call(operation: Operation | None, stream: int | None = None, thread: int = 1, **more: Any) -> ApiCall:
    return ApiCall('cuda', operation, thread, stream, **more)


class Told:
    """A follower, and the captures that have ended."""

    def __init__(self) -> None:
        self.process = Process()
        self.ended: list[FollowedCapture] = []
        self.follower = Follower(self.process, ended=self.ended.append)

    def __call__(self, operation: Operation | None, stream: int | None = None, code: int = 0, **more: Any) -> None:
        made = call(operation, stream, **more)
        if operation is _O.END_CAPTURE:
            self.process.states[made.stream or 0] = CaptureStatus.NONE
        self.follower.before(made)
        self.follower.after(made, code)

    def begin(self, stream: int, mode: Mode = Mode.GLOBAL, thread: int = 1) -> FollowedCapture:
        self(_O.BEGIN_CAPTURE, stream, mode=mode, thread=thread)
        self.process.states[stream] = CaptureStatus.ACTIVE
        return list(self.follower.captures.values())[-1]

    def lose(self, stream: int) -> None:
        self.process.states[stream] = CaptureStatus.INVALIDATED


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_first_call_that_loses_a_capture_is_the_finding(told: Told) -> None:
    one = told.begin(16)
    told(_O.WORK, 16)
    told.lose(16)
    told(_O.STREAM_SYNCHRONIZE, 16, code=900)
    told(_O.WORK, 16, code=901)
    told(_O.END_CAPTURE, 16, code=901)
    assert told.ended == [one] and told.follower.idle
    (finding,) = one.findings
    assert (finding.kind, finding.code, finding.at) == ('lost', 900, HERE)
    assert finding.rule is not None and finding.rule.name == 'sync-captured'
    assert finding.libraries[0] == 'libtorch_cuda.so' and finding.subject.startswith('lane 0, the origin')
    assert not finding.elsewhere and one.maker == 'torch'


@pytest.mark.parametrize(('line', 'rule'), [(7, 'host-read'), (8, 'sync-captured')])
def test_a_copy_and_a_wait_at_its_line_are_a_host_read(told: Told, line: int, rule: str) -> None:
    one = told.begin(16)
    told(_O.WORK, 16, reads=True)
    told.process.at = Place('program.py', line, 'step')
    told.lose(16)
    told(_O.STREAM_SYNCHRONIZE, 16, code=900)
    assert one.loss is not None and one.loss.rule is not None and one.loss.rule.name == rule


def test_an_error_that_loses_nothing_is_no_finding(told: Told) -> None:
    one = told.begin(16)
    told(_O.FREE_ASYNC, 16, code=1)
    told(_O.EVENT_QUERY, event=5, code=600)
    told(_O.END_CAPTURE, 16)
    assert one.findings == [] and told.ended == [one]


def test_where_the_driver_can_not_be_asked_the_table_decides(told: Told) -> None:
    one, other = told.begin(16, Mode.RELAXED), told.begin(17, Mode.RELAXED)
    told.process.states.clear()
    told(_O.STREAM_SYNCHRONIZE, 17, code=900)
    assert one.loss is None and other.loss is not None


def test_another_thread_s_call_is_said_to_be_that(told: Told) -> None:
    one = told.begin(16)
    told.lose(16)
    told(_O.UNSAFE, code=900, thread=2)
    assert one.loss is not None and one.loss.elsewhere
    assert one.loss.rule is not None and one.loss.rule.name == 'unsafe-in-mode'


def test_a_thread_may_allow_itself_such_calls(told: Told) -> None:
    one = told.begin(16)
    told(None, mode=Mode.RELAXED)
    told(_O.UNSAFE)
    told(None, mode=Mode.GLOBAL)
    told(_O.END_CAPTURE, 16)
    assert one.findings == []


def test_work_that_goes_past_the_capture_is_counted_by_line(told: Told) -> None:
    one = told.begin(16)
    for _ in range(3):
        told(_O.WORK, 32)
    told(_O.WORK, 0)
    told(_O.WORK, 32, thread=2)
    told.process.ours = True
    told(_O.WORK, 48)
    assert [(found.kind, found.count, found.call.stream) for found in one.escaped] == [
        ('escaped', 3, 32),
        ('escaped', 1, 0),
    ]
    assert [found.rule.name for found in one.escaped if found.rule] == ['escaped-work', 'legacy-stream']
    assert one.escaped[1].subject == 'the legacy default stream'


def test_work_of_a_capture_that_is_not_followed_does_not_escape(told: Told) -> None:
    told.process.states[32] = CaptureStatus.ACTIVE  # it began before anybody watched
    one = told.begin(16)
    told(_O.WORK, 32)
    assert one.findings == []


def test_a_capture_whose_loss_nobody_saw_says_so(told: Told) -> None:
    one = told.begin(16)
    told.lose(16)
    told(_O.END_CAPTURE, 16, code=901)
    assert one.loss is not None and one.loss.code == Code.cudaErrorStreamCaptureInvalidated
    assert one.loss.rule is not None and one.loss.rule.name == 'invalidated'


def test_an_event_is_captured_although_its_capture_is_lost(told: Told) -> None:
    one = told.begin(16)
    told(_O.EVENT_RECORD, 16, event=5)
    told.lose(16)
    told(_O.EVENT_SYNCHRONIZE, event=5, code=907)
    assert one.loss is not None and one.loss.subject == 'an event of the capture (0x5)'
    assert one.loss.rule is not None and one.loss.rule.name == 'sync-captured-event'


def test_a_thread_without_python_has_the_line_of_the_capture(told: Told) -> None:
    one = told.begin(16)

    def place(thread: int) -> Place | None:
        return HERE if thread == 1 else None

    told.process.place = place  # type: ignore[method-assign]
    told.lose(16)
    told(_O.STREAM_SYNCHRONIZE, 16, code=900, thread=99)
    assert one.loss is not None and one.loss.at == HERE


# -- against the device -----------------------------------------------------------------------------------------------


@given(STEPS, KINDS)
def test_the_account_agrees_with_the_device(steps: list[Step], kinds: list[bool]) -> None:
    device = SimulatedDevice(0)
    agree(
        device, lambda s: device.submit(s, lambda: None, 'kernel'), lambda: device.unsafe_call('malloc'), steps, kinds
    )
    assert not [name for name in vars(device) if name in ('begin_capture', 'submit')]


# -- functions of CUDA by the names that CUPTI has for them -----------------------------------------------------------


@pytest.mark.parametrize(
    ('name', 'shown', 'operation', 'own'),
    [
        ('cudaStreamSynchronize_v3020', 'cudaStreamSynchronize', _O.STREAM_SYNCHRONIZE, False),
        ('cudaStreamSynchronize_ptsz_v7000', 'cudaStreamSynchronize', _O.STREAM_SYNCHRONIZE, True),
        ('cuStreamBeginCapture_v2_ptsz', 'cuStreamBeginCapture', _O.BEGIN_CAPTURE, True),
        ('cuMemcpyDtoH_v2_ptds', 'cuMemcpyDtoH', _O.LEGACY_WORK, True),
        ('cuMemsetD2D8_v2', 'cuMemsetD2D8', _O.LEGACY_WORK, False),
        ('cuCtxSynchronize_v2', 'cuCtxSynchronize', _O.DEVICE_SYNCHRONIZE, False),
        ('cudaMalloc_v3020', 'cudaMalloc', _O.UNSAFE, False),
        ('cuLaunchKernelEx', 'cuLaunchKernelEx', _O.WORK, False),
        ('cuThreadExchangeStreamCaptureMode', 'cuThreadExchangeStreamCaptureMode', None, False),
    ],
)
def test_a_name_is_taken_apart(name: str, shown: str, operation: Operation | None, own: bool) -> None:
    found = function(name)
    assert found is not None
    assert (found.shown, found.operation, found.own) == (shown, operation, own)


@pytest.mark.parametrize('name', ['cuCtxGetCurrent', 'cudaGetLastError_v3020', 'nvmlInit', '', 'cuda'])
def test_what_does_not_matter_is_not_followed(name: str) -> None:
    assert function(name) is None


def test_every_operation_is_one_that_was_measured() -> None:
    assert set(OPERATIONS.values()) <= {row[1] for row in ROWS}
