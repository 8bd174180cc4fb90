"""Tensor networks of quimb whose tensors hold CuPy arrays."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program


def arrays_of(network: Any) -> Any:
    """The arrays of a network or of a tensor."""
    return [*network.arrays] if hasattr(network, 'arrays') else network.data


def chain(qtn: Any, draw: Draw, sites: int = 6, bond: int = 4) -> Any:
    """A matrix product state with random arrays of the device."""
    ends, middle = (bond, 2), (bond, bond, 2)
    shapes = [ends, *[middle] * (sites - 2), ends]
    return qtn.MatrixProductState([draw.complexes(*shape) / 3 for shape in shapes])


@calls(program('quimb', 'quimb.tensor'), lambda draw: (draw.normal(9, 8), draw.normal(8, 7), draw.normal(7, 9)))
def contracted_tensors(cp: Any, qtn: Any, a: Any, b: Any, c: Any) -> Any:
    """Three tensors are joined by the names of their indices and contracted."""
    network = qtn.Tensor(a, inds='ij') & qtn.Tensor(b, inds='jk') & qtn.Tensor(c, inds='ki')
    return network.contract(all, optimize='auto-hq')


@calls(program('quimb', 'quimb.tensor'), lambda draw: (draw.complexes(3, 4, 5), draw.complexes(5, 6)), tell=arrays_of)
def product_of_tensors(cp: Any, qtn: Any, a: Any, b: Any) -> Any:
    """Two tensors are multiplied, transposed and fused."""
    product = qtn.Tensor(a, inds='abc') @ qtn.Tensor(b, inds='cd')
    return product.fuse({'x': ('a', 'd')}).transpose('x', 'b')


@calls(program('quimb', 'quimb.tensor'), lambda draw: (draw.normal(3, 4, 3, 4),))
def split_tensor(cp: Any, qtn: Any, data: Any) -> Any:
    """A tensor is split in two by singular values with a limit on the bond."""
    parts = qtn.Tensor(data, inds='abcd').split(['a', 'b'], max_bond=5, cutoff=0.0, bond_ind='x')
    return parts.contract(all, output_inds='abcd').data


@program('quimb', 'quimb.tensor')
def overlap(cp: Any, draw: Draw, qtn: Any) -> Case:
    """The overlap of a matrix product state with itself is contracted, which is scaled by an argument."""
    state = chain(qtn, draw)

    def step(factor: Any) -> Any:
        scaled = state.copy()
        scaled[0].modify(data=scaled[0].data * factor)
        return (scaled.H & state).contract(all)

    return Case(step, lambda draw: (draw.uniform(1),))


@calls(program('quimb', 'quimb.tensor'), lambda draw: ([draw.normal(3, 2), draw.normal(3, 3, 2), draw.normal(3, 2)],))
def state_of_arguments(cp: Any, qtn: Any, arrays: Any) -> Any:
    """A matrix product state is made of the arrays that are given, and its norm is found."""
    state = qtn.MatrixProductState(arrays)
    return state.H @ state


@program('quimb', 'quimb.tensor')
def gate(cp: Any, draw: Draw, qtn: Any) -> Case:
    """A gate is applied to two sites of a state and contracted with them."""
    state = chain(qtn, draw)

    def step(matrix: Any) -> Any:
        return state.gate(matrix, (2, 3), contract=True)

    return Case(step, lambda draw: (draw.complexes(4, 4),), tell=arrays_of)


@program('quimb', 'quimb.tensor')
def canonical_form(cp: Any, draw: Draw, qtn: Any) -> Case:
    """A state is brought into its canonical form by QR decompositions."""
    state = chain(qtn, draw)

    def step(factor: Any) -> Any:
        changed = state.copy()
        changed[0].modify(data=changed[0].data * factor)
        changed.left_canonicalize(bra=None)
        return abs(changed[-1].data)

    return Case(step, lambda draw: (draw.uniform(1, low=0.5),))


@program('quimb', 'quimb.tensor')
def state_that_evolves(cp: Any, draw: Draw, qtn: Any) -> Case:
    """A gate changes the tensor of a state in place, again at each call."""
    state = chain(qtn, draw)

    def step(matrix: Any) -> Any:
        state.gate_(matrix, 1, contract=True)
        return state.to_dense()

    return Case(step, lambda draw: (draw.complexes(2, 2),), lambda: list(state.arrays))


@calls(program('quimb', 'quimb.tensor'), lambda draw: ([draw.normal(3, 3, 2, 2) for _ in range(3)],))
def dense_operators(cp: Any, qtn: Any, arrays: Any) -> Any:
    """A network of a ring is contracted to a dense matrix, and its trace is taken."""
    ring = qtn.MatrixProductOperator(arrays)
    return ring.to_dense(), ring.trace()


@program('quimb', 'quimb.tensor')
def circuit_amplitude(cp: Any, draw: Draw, qtn: Any) -> Case:
    """The amplitude of a circuit, whose arrays lie on the device, is contracted after one rotation changes."""
    circuit = qtn.Circuit(4, to_backend=cp.asarray)
    for site in range(4):
        circuit.h(site)
    for site in range(3):
        circuit.cz(site, site + 1)
    network = circuit.psi

    def step(rotation: Any) -> Any:
        return network.gate(rotation, 2, contract=True).to_dense()

    return Case(step, lambda draw: (draw.complexes(2, 2),))
