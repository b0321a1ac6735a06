"""`gs.gfile`: files by TensorFlow's names.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    {
        "globalstep.tf1.gfile": (
            "Copy DeleteRecursively Exists FastGFile GFile Glob IsDirectory ListDirectory MakeDirs "
            "MkDir Open Remove Rename Stat Walk "
        )
    },
)
