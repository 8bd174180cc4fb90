"""A chain of signal processing: filtered by FFT, cut into windowed frames, and the mean power by frequency."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.workloads.way import InTorch, Results, Way, Workload, cupys, torchs


def workloads(cp: Any, small: bool) -> Iterator[Workload]:
    yield Chain(cp, *((2, 64, 16) if small else (16, 1 << 15, 1024)))


def power(real: Any, imaginary: Any) -> Any:
    return real * real + imaginary * imaginary


def chain_by(cp: Any, power: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def chain(x: Any, response: Any, window: Any) -> Any:
        spectrum = cp.fft.rfft(x)
        spectrum *= response
        y = cp.fft.irfft(spectrum, x.shape[1])
        # Half of each frame lies in the next one: frames are a view.
        hop, (by_channel, by_sample) = window.size // 2, y.strides
        shape = (x.shape[0], x.shape[1] // hop - 1, window.size)
        frames = cp.ndarray(shape, y.dtype, y.data, (by_channel, hop * by_sample, by_sample))
        spectra = cp.fft.rfft(frames * window)
        return power(spectra.real, spectra.imag).mean(axis=1)

    return chain


class Chain(Workload):
    tolerance = 1e-5

    def __init__(self, cp: Any, channels: int, samples: int, frame: int) -> None:
        self.cp = cp
        self.title = f'filter, window and power, {channels} x {samples:,} samples'
        at = np.arange(samples)
        noise = np.random.default_rng(0).standard_normal((channels, samples))
        self.x = (noise + np.sin(at * 0.3) + np.sin(at * 2.1)).astype('f4')
        frequencies = np.fft.rfftfreq(samples)
        self.response = (np.exp(-2j * np.pi * frequencies * 5) / (1 + (frequencies / 0.2) ** 8)).astype('c8')
        self.window = np.hanning(frame).astype('f4')

    def reference(self) -> Results:
        x, window = self.x.astype('f8'), self.window.astype('f8')
        y = np.fft.irfft(np.fft.rfft(x) * self.response.astype('c16'), x.shape[1])
        frames = np.lib.stride_tricks.sliding_window_view(y, window.size, axis=1)[:, :: window.size // 2]
        return {'power': (np.abs(np.fft.rfft(frames * window)) ** 2).mean(axis=1)}

    def ways(self) -> dict[str, Callable[[], Way]]:
        cp = self.cp
        return {
            **cupys(
                chain_by(cp, power),
                chain_by(cp, cp.fuse()(power)),
                lambda: (cp.asarray(self.x), cp.asarray(self.response), cp.asarray(self.window)),
                lambda _args, found: {'power': found},
            ),
            **torchs(self.torch),
        }

    def torch(self, torch: Any) -> InTorch:
        x, response, window = (torch.from_numpy(array).cuda() for array in (self.x, self.response, self.window))

        def chain() -> Any:
            spectrum = torch.fft.rfft(x)
            spectrum *= response
            y = torch.fft.irfft(spectrum, x.shape[1])
            frames = y.unfold(1, window.numel(), window.numel() // 2)
            spectra = torch.fft.rfft(frames * window)
            return power(spectra.real, spectra.imag).mean(dim=1)

        return InTorch(chain, lambda found: {'power': found})
