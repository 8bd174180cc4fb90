"""A watch on a GPU is attached and detached at any time: beside threads, at the end of Python, after an interrupt."""

from __future__ import annotations

import textwrap

import pytest

from tests.command import python
from tests.gpu.world import in_process

pytestmark = pytest.mark.gpu

BEGIN = """
import threading, time
import cupy as cp
import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
x = cp.zeros(64)
x + 1
watch, told = GUARD.state.call_watch, []
hear = told.append
"""


def process(code: str) -> str:
    return in_process(BEGIN + textwrap.dedent(code))


def test_it_is_detached_when_python_ends() -> None:
    said = process("""
        watch.open(current(), hear)
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            x += 1
            stream.end_capture()
            stream.begin_capture()  # which stays open
        print(len(told), told[0].findings, told[0].maker)
    """)
    assert said.split() == ['1', '[]', 'cupy']


def test_threads_launch_while_it_comes_and_goes() -> None:
    said = process("""
        over = False
        def busy():
            stream, mine = cp.cuda.Stream(non_blocking=True), cp.zeros(64)
            with stream:
                while not over:
                    mine += 1
                    stream.record()
                    stream.synchronize()
        threads = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            with ck.capture(watch=True) as cap:
                x += 1
            assert cap.recording.notes == []
            cap.graph.launch()
            cap.graph.close()
        over = True
        for thread in threads:
            thread.join()
        print(float(x[0]), watch.failure, watch.watching)
    """)
    assert said.split() == ['20.0', 'None', 'False']


def test_graphs_made_under_a_watch_run_and_are_measured_after_it() -> None:
    said = process("""
        with ck.capture(watch=True) as cap:
            x += 1
        cap.graph.launch()
        times = cap.graph.measure()
        watch.open(current(), hear)
        meanwhile = cap.graph.measure()
        watch.close(hear)
        print(times.by, meanwhile.by)
    """)
    assert said.split() == ['profiler', 'events']


def test_threads_may_call_after_watches_and_measurements() -> None:
    said = process("""
        def work():
            with cp.cuda.Stream(non_blocking=True):
                y = cp.zeros(64)
                y += 1
                return float(y.sum())

        notes = []
        for _ in range(2):
            with ck.capture(watch=True) as cap:
                x += 1
            cap.graph.launch()
            notes.append(cap.graph.measure(by='profiler').note)
            answers = []
            for _ in range(20):
                thread = threading.Thread(target=lambda: answers.append(work()))
                thread.start()
                thread.join()
            assert answers == [64.0] * 20, answers
        print(*{'stays attached' in note for note in notes})
    """)
    assert said.split() == ['True']


def test_where_another_tool_has_cupti_nothing_is_run() -> None:
    code = """
        import ctypes
        from capturekit.driver.cupti import Untraceable, profiler
        kinds = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
        nothing = ctypes.CFUNCTYPE(None, *kinds)(lambda *_: None)
        taken = ctypes.c_void_p()
        assert profiler().library.cuptiSubscribe(ctypes.byref(taken), nothing, None) == 0
        try:
            with ck.capture(watch=True):
                print('entered')
        except Untraceable as error:
            print(error)
        profiler().library.cuptiUnsubscribe(taken)
        with ck.capture(watch=True):
            x += 1
        print('then it goes')
    """
    said = process(code).splitlines()
    assert said[0].startswith('CUPTI can not be attached (error ') and said[1] == 'then it goes'


def test_an_interrupt_while_recording_arrives() -> None:
    code = BEGIN + textwrap.dedent("""
        import os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without one
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            with ck.capture(watch=True, lines=False):
                while True:
                    cp.add(x, 1, x)
        except KeyboardInterrupt:
            print('interrupted', watch.watching)
        time.sleep(0.1)
        with ck.capture(watch=True) as cap:
            x += 1
        cap.graph.launch()
        print('good')
    """)
    ran = python('-c', code, timeout=60)
    assert ran.stdout.split() == ['interrupted', 'False', 'good'], ran.stderr
    assert 'Exception ignored' not in ran.stderr


def test_nothing_is_collected_in_a_capture_of_others() -> None:
    pytest.importorskip('torch')
    said = process("""
        import gc, torch
        t = torch.zeros(64, device='cuda')
        t += 1
        torch.cuda.synchronize()
        watch.open(current(), hear)
        gc.set_threshold(1, 1, 1)
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                t += 1
            knot = [graph]
            knot.append(knot)  # garbage, whose destructor loses a capture
            del graph, knot
        watch.close(hear)
        print(len(told), sum(map(bool, (one.findings for one in told))), gc.isenabled())
    """)
    assert said.split() == ['20', '0', 'True']


def test_a_thread_without_python_has_the_line_that_waits_for_it() -> None:
    said = process("""
        import ctypes
        from cuda import pathfinder
        runtime = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib('cudart').abs_path)
        libc = ctypes.CDLL(None)
        function = ctypes.cast(runtime.cudaDeviceSynchronize, ctypes.c_void_p)
        try:
            with ck.capture(watch=True):
                x += 1
                thread = ctypes.c_uint64()
                libc.pthread_create(ctypes.byref(thread), None, function, None)
                libc.pthread_join(thread, None)  # <-- here
        except ck.InvalidatedError as error:
            print(error.function, error.location.function, 'Another thread' in str(error))
    """)
    assert said.split() == ['cudaDeviceSynchronize', '<module>', 'True']
