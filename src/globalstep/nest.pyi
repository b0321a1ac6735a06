# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.graph.nest import assert_same_structure as assert_same_structure
from globalstep.tf1.graph.nest import flatten as flatten
from globalstep.tf1.graph.nest import is_sequence as is_nested
from globalstep.tf1.graph.nest import map_structure as map_structure
from globalstep.tf1.graph.nest import pack_sequence_as as pack_sequence_as
