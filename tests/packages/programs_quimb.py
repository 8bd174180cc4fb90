"""Tensor networks of quimb whose tensors hold CuPy arrays."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, module, program


def arrays_of(network: Any) -> Any:
    """The arrays of a network or of a tensor."""
    return [*network.arrays] if hasattr(network, 'arrays') else network.data


def chain(draw: Draw, sites: int = 6, bond: int = 4) -> Any:
    """A matrix product state with random arrays of the device."""
    ends, middle = (bond, 2), (bond, bond, 2)
    shapes = [ends, *[middle] * (sites - 2), ends]
    return module('quimb.tensor').MatrixProductState([draw.complexes(*shape) / 3 for shape in shapes])


@program('quimb')
def contracted_tensors(cp: Any, draw: Draw) -> Case:
    """Three tensors are joined by the names of their indices and contracted."""
    tensor = module('quimb.tensor').Tensor

    def step(a: Any, b: Any, c: Any) -> Any:
        network = tensor(a, inds='ij') & tensor(b, inds='jk') & tensor(c, inds='ki')
        return network.contract(all, optimize='auto-hq')

    return Case(step, lambda draw: (draw.normal(9, 8), draw.normal(8, 7), draw.normal(7, 9)))


@program('quimb')
def product_of_tensors(cp: Any, draw: Draw) -> Case:
    """Two tensors are multiplied, transposed and fused."""
    tensor = module('quimb.tensor').Tensor

    def step(a: Any, b: Any) -> Any:
        product = tensor(a, inds='abc') @ tensor(b, inds='cd')
        return product.fuse({'x': ('a', 'd')}).transpose('x', 'b')

    return Case(step, lambda draw: (draw.complexes(3, 4, 5), draw.complexes(5, 6)), tell=arrays_of)


@program('quimb')
def split_tensor(cp: Any, draw: Draw) -> Case:
    """A tensor is split in two by singular values with a limit on the bond."""
    tensor = module('quimb.tensor').Tensor

    def step(data: Any) -> Any:
        parts = tensor(data, inds='abcd').split(['a', 'b'], max_bond=5, cutoff=0.0, bond_ind='x')
        return parts.contract(all, output_inds='abcd').data

    return Case(step, lambda draw: (draw.normal(3, 4, 3, 4),))


@program('quimb')
def overlap(cp: Any, draw: Draw) -> Case:
    """The overlap of a matrix product state with itself is contracted, which is scaled by an argument."""
    state = chain(draw)

    def step(factor: Any) -> Any:
        scaled = state.copy()
        scaled[0].modify(data=scaled[0].data * factor)
        return (scaled.H & state).contract(all)

    return Case(step, lambda draw: (draw.uniform(1),))


@program('quimb')
def state_of_arguments(cp: Any, draw: Draw) -> Case:
    """A matrix product state is made of the arrays that are given, and its norm is found."""
    product_state = module('quimb.tensor').MatrixProductState

    def step(arrays: Any) -> Any:
        state = product_state(arrays)
        return state.H @ state

    return Case(step, lambda draw: ([draw.normal(3, 2), draw.normal(3, 3, 2), draw.normal(3, 2)],))


@program('quimb')
def gate(cp: Any, draw: Draw) -> Case:
    """A gate is applied to two sites of a state and contracted with them."""
    state = chain(draw)

    def step(matrix: Any) -> Any:
        return state.gate(matrix, (2, 3), contract=True)

    return Case(step, lambda draw: (draw.complexes(4, 4),), tell=arrays_of)


@program('quimb')
def canonical_form(cp: Any, draw: Draw) -> Case:
    """A state is brought into its canonical form by QR decompositions."""
    state = chain(draw)

    def step(factor: Any) -> Any:
        changed = state.copy()
        changed[0].modify(data=changed[0].data * factor)
        changed.left_canonicalize(bra=None)
        return abs(changed[-1].data)

    return Case(step, lambda draw: (draw.uniform(1, low=0.5),))


@program('quimb')
def state_that_evolves(cp: Any, draw: Draw) -> Case:
    """A gate changes the tensor of a state in place, again at each call."""
    state = chain(draw)

    def step(matrix: Any) -> Any:
        state.gate_(matrix, 1, contract=True)
        return state.to_dense()

    return Case(step, lambda draw: (draw.complexes(2, 2),), lambda: list(state.arrays))


@program('quimb')
def dense_operators(cp: Any, draw: Draw) -> Case:
    """A network of a ring is contracted to a dense matrix, and its trace is taken."""
    qtn = module('quimb.tensor')

    def step(arrays: Any) -> Any:
        ring = qtn.MatrixProductOperator(arrays)
        return ring.to_dense(), ring.trace()

    return Case(step, lambda draw: ([draw.normal(3, 3, 2, 2) for _ in range(3)],))


@program('quimb')
def circuit_amplitude(cp: Any, draw: Draw) -> Case:
    """The amplitude of a circuit, whose arrays lie on the device, is contracted after one rotation changes."""
    qtn = module('quimb.tensor')
    circuit = qtn.Circuit(4, to_backend=cp.asarray)
    for site in range(4):
        circuit.h(site)
    for site in range(3):
        circuit.cz(site, site + 1)
    network = circuit.psi

    def step(rotation: Any) -> Any:
        return network.gate(rotation, 2, contract=True).to_dense()

    return Case(step, lambda draw: (draw.complexes(2, 2),))
