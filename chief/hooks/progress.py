"""The line that tells how a run fares.

Layer: chief.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PROGRESS_PREFIX", "progress_line"]

#: Starts a line that the launcher shows as progress instead of as output.
PROGRESS_PREFIX = "\x1eprogress "


def progress_line(step: int, rate: float, last_step: int | None = None, loss: Any = None) -> str:
    """Put progress into words.

    Args:
        step: The global step.
        rate: Steps per second; 0 where not known.
        last_step: The step to stop at, or None.
        loss: The loss as a scalar or array (its mean is shown), or None.

    Returns:
        One line without an end.

    >>> progress_line(120, 350.1, 2000, 0.1234)
    'step 120/2000  350.1 steps/s  loss 0.123  eta 5s'
    """
    parts = [f"step {step}" if last_step is None else f"step {step}/{last_step}"]
    if rate > 0:
        parts.append(f"{rate:.1f} steps/s")
    if loss is not None:
        mean = float(np.mean(loss))
        parts.append(f"loss {mean:.3f}" if not 0 < abs(mean) < 0.01 else f"loss {mean:.3g}")
    if last_step is not None and rate > 0 and step < last_step:
        parts.append(f"eta {_duration((last_step - step) / rate)}")
    return "  ".join(parts)


def _duration(secs: float) -> str:
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"
