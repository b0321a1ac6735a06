# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.exporting.frozen_graphs import convert_variables_to_constants as convert_variables_to_constants
from globalstep.tf1.exporting.frozen_graphs import extract_sub_graph as extract_sub_graph
from globalstep.tf1.exporting.frozen_graphs import remove_training_nodes as remove_training_nodes
from globalstep.tf1.exporting.graph_files import import_graph_def as import_graph_def
