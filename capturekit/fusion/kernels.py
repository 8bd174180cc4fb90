"""The description of a fused kernel, made from a run of nodes and from what of it has to be written."""

from __future__ import annotations

from collections.abc import Mapping

from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep
from capturekit.fusion.iteration_space import common, split
from capturekit.fusion.runs import Key, Run


def harmless(run: Run) -> list[Key]:
    """What a run may write although nobody needs it."""
    return [key for key, use in run.used.items() if use.writes and use.gone < 0 and not use.across]


def kernel_of(run: Run, stores: Mapping[Key, bool]) -> FusedKernel:
    """One kernel for the members of a run. ``stores`` says which elements it writes."""
    written = dict(stores)
    if not any(written.values()):  # a kernel that writes nothing can not be described; one write does no harm
        written[harmless(run)[-1]] = True
    in_memory = [key for key, use in run.used.items() if not key.part and (use.reads or written[key])]
    wholes = [piece.whole for key in run.joins for piece in key.pieces]
    shape = common([*(key.shape for key in in_memory), *wholes]) or (1,)
    places: list[FusedPlace] = []
    number_of: dict[Key, int] = {}
    for key, use in run.used.items():
        if key.part:
            continue
        number_of[key] = len(places)
        if key in in_memory:
            strides = split(key.shape, key.strides, shape)
            places.append(FusedPlace(key.dtype, key.address, shape, strides, use.reads, written[key]))
        else:
            places.append(FusedPlace(key.dtype, 0, (), (), False, False))
    for key in run.joins:
        number_of[key] = len(places)
        places.append(FusedPlace(key.dtype, 0, (), (), True, False, key.pieces))
    numbers: list[tuple[str, bytes]] = []
    steps: list[FusedStep] = []
    for does, keys in zip(run.does, run.operands):
        operands = []
        for operand, used in zip(does.operands, keys):
            if used is None:
                numbers.append((operand.dtype, operand.number))
                operands.append(-len(numbers))
            else:
                operands.append(number_of[used])
        steps.append(FusedStep(does.operation, tuple(operands)))
    return FusedKernel(shape, tuple(places), tuple(numbers), tuple(steps))
