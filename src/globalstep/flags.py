"""`gs.flags`: flags of the command line, as TensorFlow's programs define them.

Layer: namespace.
"""

from globalstep.lazy import namespace

__all__ = namespace(
    __name__,
    {
        "globalstep.tf1.flags": (
            "DEFINE_bool DEFINE_boolean DEFINE_enum DEFINE_float DEFINE_integer DEFINE_list "
            "DEFINE_string DuplicateFlagError FLAGS FlagValues mark_flag_as_required "
        )
    },
)
