"""`gs.python_io`: TFRecord files, read and written by the program itself."""

from globalstep.lazy import namespace

__all__ = namespace(__name__)
