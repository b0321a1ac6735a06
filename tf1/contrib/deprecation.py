"""Functions that are still there, and say that they will not be: `tf.contrib.framework.deprecated`.

Texts are those of TensorFlow 2.21, python/util/deprecation.py.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

from globalstep.tf1.graph.definition import describe_place, place_of_program

_log = logging.getLogger("globalstep")

_T = TypeVar("_T", bound=Callable[..., Any])


def deprecated(date: str | None, instructions: str, warn_once: bool = True) -> Callable[[_T], _T]:
    """Make the decorator that has a function, or a class, log that it is deprecated when it is called.

    Its docstring says so, too.

    Args:
        date: When it will be removed, "2027-01-31"; None for some day.
        instructions: What to do instead.
        warn_once: Whether only the first call says so; else each.

    Raises:
        ValueError: If the date is written otherwise, or there are no instructions.

    >>> @deprecated(None, "Add them.")
    ... def total(a, b):
    ...     "Give the sum."
    ...     return a + b
    >>> print(total.__doc__)
    Give the sum. (deprecated)
    <BLANKLINE>
    Deprecated: it will be removed in a future version. Instructions for updating: Add them.
    """
    if date is not None and not re.fullmatch(r"20\d\d-[01]\d-[0123]\d", date):
        raise ValueError(f"Date must be in format YYYY-MM-DD. Received: {date}")
    if not instructions:
        raise ValueError("Don't deprecate things without conversion instructions! Specify the `instructions` argument.")
    when = "in a future version" if date is None else f"after {date}"
    notice = f"Deprecated: it will be removed {when}. Instructions for updating: {instructions}"

    def noted(doc: str | None) -> str:
        first, _, rest = inspect.cleandoc(doc or "").partition("\n")
        return "\n\n".join(part for part in (f"{first} (deprecated)".strip(), notice, rest.strip()) if part)

    def decorate(item: Any) -> Any:
        is_class = isinstance(item, type)
        function = item.__init__ if is_class else item
        said = False

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal said
            if not (said and warn_once):
                said = True
                _log.warning(
                    "From %s: %s (from %s) is deprecated and will be removed %s.\nInstructions for updating:\n%s",
                    describe_place(place_of_program()),
                    function.__qualname__,
                    item.__module__,
                    when,
                    instructions,
                )
            return function(*args, **kwargs)

        if is_class:
            item.__init__ = call
            item.__doc__ = noted(item.__doc__)
            return item
        call.__doc__ = noted(function.__doc__)
        return call

    return decorate
