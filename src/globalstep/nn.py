"""`gs.nn`: what neural networks are built of."""

from globalstep.lazy import namespace, nested_namespace
from globalstep.tf1.absent import ABSENT_IN_NN
from globalstep.tf1.rnn import CELLS

__all__ = namespace(__name__, absent=ABSENT_IN_NN)

#: The cells of recurrent networks.
rnn_cell = nested_namespace(f"{__name__}.rnn_cell", CELLS)
