"""Recurrent networks: cells, the functions that run them over sequences, and sequence losses and decoders."""

#: Where the names of `gs.nn.rnn_cell` are, which are among those of `gs.contrib.rnn`.
CELLS = {
    "globalstep.tf1.rnn.cells": "BasicRNNCell GRUCell LSTMStateTuple RNNCell",
    "globalstep.tf1.rnn.lstm_cells": "BasicLSTMCell LSTMCell",
    "globalstep.tf1.rnn.wrappers": "DeviceWrapper DropoutWrapper MultiRNNCell ResidualWrapper",
}
