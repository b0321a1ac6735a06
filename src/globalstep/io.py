"""`gs.io`: files and what is in them, as TensorFlow 1.15 groups the functions."""

from globalstep.lazy import namespace, nested_namespace

__all__ = ["gfile", *namespace(__name__)]

gfile = nested_namespace(
    f"{__name__}.gfile",
    {
        "globalstep.tf1.gfile": (
            "GFile copy=Copy exists=Exists glob=Glob isdir=IsDirectory listdir=ListDirectory makedirs=MakeDirs "
            "mkdir=MkDir remove=Remove rename=Rename rmtree=DeleteRecursively stat=Stat walk=Walk"
        ),
    },
)
