"""Arrays rearranged, reduced and packed by einops."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program


@calls(program('einops'), lambda draw: (draw.normal(3, 16, 24, 2),))
def rearrange(cp: Any, einops: Any, images: Any) -> Any:
    """Images are cut into patches, and put together again."""
    patches = einops.rearrange(images, 'b (h p) (w q) c -> b (h w) (p q c)', p=4, q=4)
    centred = patches - patches.mean(axis=-1, keepdims=True)
    return einops.rearrange(centred, 'b (h w) (p q c) -> b (h p) (w q) c', h=4, p=4, q=4)


@calls(program('einops'), lambda draw: (draw.normal(3, 16, 24, dtype='f4'),))
def reduce(cp: Any, einops: Any, images: Any) -> Any:
    """Images are pooled by the largest and by the mean."""
    largest = einops.reduce(images, 'b (h p) (w q) -> b h w', 'max', p=2, q=2)
    return largest, einops.reduce(images, 'b h w -> b 1 w', 'mean'), einops.reduce(images, 'b h w ->', 'sum')


@calls(program('einops'), lambda draw: (draw.normal(8, 9),))
def repeat(cp: Any, einops: Any, image: Any) -> Any:
    """A small image is repeated into a larger one."""
    return einops.repeat(image, 'h w -> n (h p) (w q)', n=2, p=3, q=2)


@program('einops')
def attention(cp: Any, draw: Draw, einops: Any) -> Case:
    """Attention with several heads is written with einsum and rearrange."""
    weights = draw.normal(24, 72, dtype='f4')

    def step(x: Any) -> Any:
        q, k, v = einops.rearrange(x @ weights, 'b t (three h d) -> three b h t d', three=3, h=4)
        scores = einops.einsum(q, k, 'b h i d, b h j d -> b h i j') / 2.5
        scores = cp.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = einops.einsum(scores / scores.sum(axis=-1, keepdims=True), v, 'b h i j, b h j d -> b h i d')
        return einops.rearrange(mixed, 'b h t d -> b t (h d)')

    return Case(step, lambda draw: (draw.normal(2, 10, 24, dtype='f4'),))


@calls(program('einops'), lambda draw: (draw.normal(4, 5), draw.normal(4, 3, 2)))
def pack_and_unpack(cp: Any, einops: Any, a: Any, b: Any) -> Any:
    """Arrays of different shapes are packed into one, changed, and unpacked."""
    packed, shapes = einops.pack([a, b], 'b *')
    return einops.unpack(cp.tanh(packed) * 2, shapes, 'b *')


@calls(program('einops'), lambda draw: (draw.normal(3, 4, 5),))
def shapes_from_a_pattern(cp: Any, einops: Any, x: Any) -> Any:
    """Lengths are parsed out of a shape and used in arithmetic."""
    lengths = einops.parse_shape(x, 'batch _ width')
    return einops.rearrange(x, 'b h w -> (b w) h') / (lengths['batch'] * lengths['width'])


@calls(program('einops'), lambda draw: ([draw.normal(6, 5) for _ in 'abc'],))
def list_of_arrays(cp: Any, einops: Any, frames: Any) -> Any:
    """A list of arrays is stacked by a pattern."""
    return einops.rearrange(frames, 't h w -> h (t w)')
