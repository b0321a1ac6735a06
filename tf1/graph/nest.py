"""Nests: lists, tuples, named tuples and dicts of values, flattened and put together again as in tf.contrib's nest.

Layer: tf1. Imports nothing of globalstep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def is_sequence(value: Any) -> bool:
    """Whether `value` is a list, tuple, named tuple or dict."""
    return isinstance(value, (list, tuple, Mapping))


def flatten(structure: Any) -> list[Any]:
    """Give the leaves of a structure in order; those of a dict by sorted key. A leaf gives a list of itself.

    >>> flatten([1, (2, {"b": 4, "a": 3})])
    [1, 2, 3, 4]
    """
    if not is_sequence(structure):
        return [structure]
    return [leaf for part in _parts(structure) for leaf in flatten(part)]


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """Give a structure like `structure` with the leaves of `flat_sequence`.

    Args:
        structure: The structure to copy.
        flat_sequence: As many leaves as it has, in the order of `flatten`.

    Returns:
        The new structure.

    Raises:
        ValueError: If there are more leaves, or fewer.

    >>> pack_sequence_as((0, [0, 0]), [1, 2, 3])
    (1, [2, 3])
    """
    leaves = list(flat_sequence)
    count = len(flatten(structure))
    if count != len(leaves):
        raise ValueError(
            f"Could not pack sequence. Structure had {count} elements, but flat_sequence had {len(leaves)} elements. "
            f"Structure: {structure!r}, flat_sequence: {leaves!r}."
        )
    return _packed(structure, iter(leaves))


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """Give a structure of what `func` gives for the leaves of all `structure` at each place.

    Args:
        func: Takes one leaf of each structure.
        *structure: Structures of one form.

    Returns:
        A structure like the first one.

    Raises:
        ValueError: If they differ in form.
    """
    if not structure:
        raise ValueError("Must provide at least one structure")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, check_types=False)
    return pack_sequence_as(
        structure[0], [func(*leaves) for leaves in zip(*map(flatten, structure), strict=True)]
    )  # fmt: skip


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Refuse two structures that differ in form.

    Args:
        nest1: One of them.
        nest2: The other.
        check_types: Whether a list differs from a tuple.

    Raises:
        ValueError: If they differ in their numbers of parts.
        TypeError: If they differ in types, and these are checked.
    """
    problem = _difference(nest1, nest2, check_types)
    if problem is not None:
        kind, text = problem
        raise kind(
            f"The two structures don't have the same nested structure.\n\nFirst structure: {nest1!r}\n\n"
            f"Second structure: {nest2!r}\n\nMore specifically: {text}"
        )


def _difference(one: Any, two: Any, check_types: bool) -> tuple[type[Exception], str] | None:
    if is_sequence(one) is not is_sequence(two):
        return ValueError, f"{one!r} and {two!r}: only one of them is a sequence."
    if not is_sequence(one):
        return None
    if isinstance(one, Mapping) is not isinstance(two, Mapping) or (check_types and type(one) is not type(two)):
        return TypeError, f"{type(one).__name__} and {type(two).__name__} are not the same sequence type."
    if len(one) != len(two):
        return ValueError, f"The two structures don't have the same number of elements: {len(one)} and {len(two)}."
    if isinstance(one, Mapping) and set(one) != set(two):
        return ValueError, f"The two dictionaries don't have the same set of keys: {sorted(one)} and {sorted(two)}."
    for a, b in zip(_parts(one), _parts(two), strict=True):
        difference = _difference(a, b, check_types)
        if difference is not None:
            return difference
    return None


def _parts(structure: Any) -> list[Any]:
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    return list(structure)


def _packed(structure: Any, leaves: Iterator[Any]) -> Any:
    if not is_sequence(structure):
        return next(leaves)
    if isinstance(structure, Mapping):
        packed = {key: _packed(structure[key], leaves) for key in sorted(structure)}
        ordered = [(key, packed[key]) for key in structure]
        kind: Any = type(structure)
        return kind(ordered)
    parts = [_packed(part, leaves) for part in structure]
    kind = type(structure)
    return kind(*parts) if hasattr(structure, "_fields") else kind(parts)
