"""Recurrent networks: cells, the functions that run them over sequences, and sequence losses and decoders.

Layer: shared.
"""

__all__ = ["CELLS"]

#: Where the names of `gs.nn.rnn_cell` are, which are among those of `gs.contrib.rnn`.
CELLS = {
    "globalstep.recurrence.cells": "BasicRNNCell GRUCell LSTMStateTuple RNNCell",
    "globalstep.recurrence.lstm_cells": "BasicLSTMCell LSTMCell",
    "globalstep.recurrence.wrappers": "DeviceWrapper DropoutWrapper MultiRNNCell ResidualWrapper",
}
