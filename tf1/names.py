"""TensorFlow 1's names in `globalstep` itself, for programs that say `import globalstep as tf`.

`globalstep` looks here for a name that is none of its own.
"""

from __future__ import annotations

from globalstep.lazy import stub_names
from globalstep.runtime.log_format import write_to_stderr
from globalstep.tf1.absent import ABSENT

__all__ = ["ABSENT", "NAMES"]

#: Its stub says where each is.
NAMES = stub_names(__name__)

# Programs for TensorFlow 1.x look for lines of the log on stderr, whether or not they have set up logging.
write_to_stderr()
