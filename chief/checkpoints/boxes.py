"""Boxes: the rectangular parts that a saved tensor is made of.

Layer: chief. Threads: functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Box", "overlap"]

#: Where a part begins on each axis, and its shape.
Box = tuple[tuple[int, ...], tuple[int, ...]]


def overlap(boxes: Sequence[Box]) -> bool:
    """Say whether two of some boxes have an element in common.

    Args:
        boxes: All of one number of axes.

    >>> overlap([((0, 0), (2, 3)), ((2, 0), (1, 3))])
    False
    >>> overlap([((0, 0), (2, 3)), ((1, 2), (1, 3))])
    True
    """
    # In the order of where they begin on the first axis, so that a box is compared only with those that reach it
    # there: parts of rows, the usual ones, with none or one.
    reaching: list[Box] = []
    for box in sorted((box for box in boxes if 0 not in box[1]), key=lambda box: box[0]):
        offset, shape = box
        reaching = [other for other in reaching if not offset or other[0][0] + other[1][0] > offset[0]]
        for other_offset, other_shape in reaching:
            if all(
                at < other_at + other_size and other_at < at + size
                for at, size, other_at, other_size in zip(offset, shape, other_offset, other_shape, strict=True)
            ):
                return True
        reaching.append(box)
    return False
