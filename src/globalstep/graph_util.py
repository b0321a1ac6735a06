"""`gs.graph_util`: frozen graphs, and parts of graphs.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.exporting.frozen_graphs": "convert_variables_to_constants extract_sub_graph remove_training_nodes",
    "globalstep.tf1.exporting.graph_files": "import_graph_def",
}

__all__ = namespace(__name__, _NAMES)
