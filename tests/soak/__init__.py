"""Long runs that look for what short tests miss: ``python -m tests.soak [part ...]``.

``agreement``  random programs told to the driver and to both models of it (on a GPU)
``captures``   thousands of captures, half of them failing: does anything grow?
``exits``      every call that entering, recording and leaving make of the device, made to fail in its turn
``sanitizer``  compute-sanitizer's memcheck over the core of the tests (on a GPU)

Each prints one line of JSON with what was done. On a machine without a GPU all but ``agreement`` and ``sanitizer``
run on the simulated device, which is said.
"""
