# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.flags import DEFINE_bool as DEFINE_bool
from globalstep.tf1.flags import DEFINE_boolean as DEFINE_boolean
from globalstep.tf1.flags import DEFINE_enum as DEFINE_enum
from globalstep.tf1.flags import DEFINE_float as DEFINE_float
from globalstep.tf1.flags import DEFINE_integer as DEFINE_integer
from globalstep.tf1.flags import DEFINE_list as DEFINE_list
from globalstep.tf1.flags import DEFINE_string as DEFINE_string
from globalstep.tf1.flags import DuplicateFlagError as DuplicateFlagError
from globalstep.tf1.flags import FLAGS as FLAGS
from globalstep.tf1.flags import FlagValues as FlagValues
from globalstep.tf1.flags import mark_flag_as_required as mark_flag_as_required
