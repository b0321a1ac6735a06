"""Recurrent cells and what runs them over sequences; see program_cases."""

import functools

import numpy as np
from program_cases import Program, array

TIME, BATCH, SIZE = 5, 3, 4
LENGTHS = np.array([5, 2, 3], np.int32)


def flat(state):
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in flat(part)]
    return [state]


def weighed(tf, outputs):
    """Give a loss to which every output counts in another way."""
    total = 0.0
    for number, output in enumerate(outputs):
        total += tf.reduce_sum(output * (0.3 + number)) + 0.5 * tf.reduce_sum(tf.square(output))
    return total


def program(tf, x, outputs, *others):
    return Program([(x, array("x", BATCH, TIME, SIZE)), *others], outputs, weighed(tf, outputs), [x])


def own_cell(tf, cells):
    class Leaky(cells.RNNCell):
        """A cell as programs write them."""

        @property
        def state_size(self):
            return 3

        @property
        def output_size(self):
            return 2

        def call(self, inputs, state):
            kernel = tf.get_variable("kernel", [SIZE + 3, 3])
            out = tf.get_variable("out", [3, 2])
            new = 0.9 * state + 0.1 * tf.tanh(tf.matmul(tf.concat([inputs, state], 1), kernel))
            return tf.matmul(new, out), new

    return Leaky()


def old_cell(tf, cells):
    class Old(cells.RNNCell):
        """The same in the style of 2016: __call__ with a scope."""

        state_size = 3
        output_size = 3

        def __call__(self, inputs, state, scope=None):
            with tf.variable_scope(scope or "old"):
                new = tf.nn.relu(tf.matmul(inputs, tf.get_variable("w", [SIZE, 3])) + 0.5 * state)
            return new, new

    return Old()


CELLS = {
    "basic_rnn": lambda tf, cells: cells.BasicRNNCell(3),
    "relu_rnn": lambda tf, cells: cells.BasicRNNCell(3, activation=tf.nn.relu),
    "gru": lambda tf, cells: cells.GRUCell(3),
    "gru_sigmoid": lambda tf, cells: cells.GRUCell(3, activation=tf.sigmoid),
    "basic_lstm": lambda tf, cells: cells.BasicLSTMCell(3),
    "basic_lstm_named": lambda tf, cells: cells.BasicLSTMCell(3, forget_bias=0.0, name="mine"),
    "basic_lstm_one_array": lambda tf, cells: cells.BasicLSTMCell(3, state_is_tuple=False),
    "lstm": lambda tf, cells: cells.LSTMCell(3),
    "lstm_peepholes": lambda tf, cells: cells.LSTMCell(3, use_peepholes=True),
    "lstm_all": lambda tf, cells: cells.LSTMCell(
        3, use_peepholes=True, cell_clip=0.3, num_proj=2, proj_clip=0.15, forget_bias=0.5
    ),
    "lstm_relu": lambda tf, cells: cells.LSTMCell(3, num_proj=2, activation=tf.nn.relu),
    "multi": lambda tf, cells: cells.MultiRNNCell([cells.BasicLSTMCell(3), cells.GRUCell(2)]),
    "multi_one_array": lambda tf, cells: cells.MultiRNNCell([cells.GRUCell(3), cells.GRUCell(2)], state_is_tuple=False),
    "residual": lambda tf, cells: cells.ResidualWrapper(cells.GRUCell(SIZE)),
    "no_dropout": lambda tf, cells: cells.DropoutWrapper(cells.BasicLSTMCell(3), 1.0, 1.0),
    "own": own_cell,
    "old": old_cell,
}


def dynamic(name, lengths, tf, cells):
    x = tf.placeholder(tf.float32, [None, None, SIZE])
    others = []
    options = {}
    if lengths:
        fed = tf.placeholder(tf.int32, [None])
        options["sequence_length"] = fed
        others.append((fed, LENGTHS))
    outputs, state = tf.nn.dynamic_rnn(CELLS[name](tf, cells), x, dtype=tf.float32, **options)
    return program(tf, x, [outputs, *flat(state)], *others)


def static(name, lengths, tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    options = {"sequence_length": tf.constant(LENGTHS)} if lengths else {}
    outputs, state = tf.nn.static_rnn(CELLS[name](tf, cells), tf.unstack(x, axis=1), dtype=tf.float32, **options)
    return program(tf, x, [*outputs, *flat(state)])


def time_major(tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    first = tf.placeholder(tf.float32, [BATCH, 3])
    turned = tf.transpose(x, [1, 0, 2])
    with tf.variable_scope("model"):
        outputs, state = tf.nn.dynamic_rnn(
            cells.GRUCell(3), turned, initial_state=first, sequence_length=LENGTHS + 1, time_major=True, scope="there"
        )
    found = program(tf, x, [outputs, state], (first, array("first", BATCH, 3)))
    return Program(found.fed, found.outputs, found.loss, [x, first])


def initial_state(tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    cell = cells.MultiRNNCell([cells.BasicLSTMCell(3) for _ in range(2)])
    first = cell.zero_state(BATCH, tf.float32)
    outputs, state = tf.nn.dynamic_rnn(cell, x, initial_state=first)
    again, last = tf.nn.dynamic_rnn(cell, outputs[:, :, :1] + x, initial_state=state)
    return program(tf, x, [outputs, again, *flat(last)])


def bidirectional(tf, cells):
    x, lengths = tf.placeholder(tf.float32, [None, None, SIZE]), tf.placeholder(tf.int64, [None])
    outputs, states = tf.nn.bidirectional_dynamic_rnn(
        cells.BasicLSTMCell(3), cells.GRUCell(2), x, sequence_length=lengths, dtype=tf.float32
    )
    return program(tf, x, [*outputs, *flat(states)], (lengths, LENGTHS.astype(np.int64)))


def bidirectional_whole(tf, cells):
    x = tf.placeholder(tf.float32, [None, None, SIZE])
    outputs, states = tf.nn.bidirectional_dynamic_rnn(cells.LSTMCell(2), cells.LSTMCell(2), x, dtype=tf.float32)
    return program(tf, x, [tf.concat(outputs, 2), *flat(states)])


def static_bidirectional(lengths, tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    options = {"sequence_length": tf.constant(LENGTHS)} if lengths else {}
    outputs, one, other = tf.nn.static_bidirectional_rnn(
        cells.BasicLSTMCell(2), cells.BasicLSTMCell(3), tf.unstack(x, axis=1), dtype=tf.float32, **options
    )
    return program(tf, x, [*outputs, *flat(one), *flat(other)])


def by_hand(tf, cells):
    """A cell called step by step, as the PTB program does."""
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    cell = cells.MultiRNNCell([cells.BasicLSTMCell(3), cells.BasicLSTMCell(3)])
    state = cell.zero_state(BATCH, tf.float32)
    outputs = []
    with tf.variable_scope("RNN", initializer=tf.random_uniform_initializer(-0.1, 0.1)):
        for step in range(TIME):
            if step > 0:
                tf.get_variable_scope().reuse_variables()
            output, state = cell(x[:, step, :], state)
            outputs.append(output)
    return program(tf, x, [*outputs, *flat(state)])


def two_in_one_scope(tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    one, two = cells.GRUCell(2), cells.GRUCell(2)
    first, _ = one(x[:, 0], one.zero_state(BATCH, tf.float32))
    second, _ = two(x[:, 1], first)
    third, _ = one(x[:, 2], second)
    return program(tf, x, [first, second, third])


def shared_scope(tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    outputs = []
    for reuse in (None, True):
        with tf.variable_scope("net", reuse=reuse):
            found, _ = tf.nn.dynamic_rnn(cells.BasicLSTMCell(3), x, dtype=tf.float32)
            outputs.append(found * (2.0 if reuse else 1.0))
    return program(tf, x, outputs)


def language_model(tf, cells):
    ids, targets = tf.placeholder(tf.int32, [BATCH, TIME]), tf.placeholder(tf.int32, [BATCH, TIME])
    table = tf.get_variable("embedding", [7, SIZE])
    outputs, _ = tf.nn.dynamic_rnn(cells.BasicLSTMCell(6), tf.nn.embedding_lookup(table, ids), dtype=tf.float32)
    weights, bias = tf.get_variable("softmax_w", [6, 7]), tf.get_variable("softmax_b", [7])
    logits = tf.reshape(tf.matmul(tf.reshape(outputs, [-1, 6]), weights) + bias, [BATCH, TIME, 7])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    text = np.arange(BATCH * (TIME + 1)).reshape(BATCH, TIME + 1) * 5 % 7
    return Program([(ids, text[:, :-1]), (targets, text[:, 1:])], [logits], tf.reduce_mean(losses))


def reversed_within(tf, cells):
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    return program(
        tf, x, [
            tf.reverse_sequence(x, LENGTHS, seq_axis=1, batch_axis=0),
            tf.reverse_sequence(tf.transpose(x, [1, 2, 0]), LENGTHS - 1, seq_dim=0, batch_dim=2),
        ],
    )  # fmt: skip


def raw(tf, cells):
    """dynamic_rnn written with raw_rnn, as TensorFlow's documentation does."""
    x, lengths = tf.placeholder(tf.float32, [None, None, SIZE]), tf.placeholder(tf.int32, [None])
    given = tf.TensorArray(tf.float32, tf.shape(x)[1]).unstack(tf.transpose(x, [1, 0, 2]))
    cell, batch = cells.LSTMCell(3, num_proj=2), tf.shape(x)[0]

    def step(time, output, state, loop_state):
        ended = time >= lengths
        following = tf.cond(tf.reduce_all(ended), lambda: tf.zeros([batch, SIZE]), lambda: given.read(time))
        following.set_shape([None, SIZE])
        return ended, following, cell.zero_state(batch, tf.float32) if output is None else state, output, None

    emitted, state, loop_state = tf.nn.raw_rnn(cell, step)
    assert loop_state is None
    return program(tf, x, [emitted.stack(), *flat(state)], (lengths, LENGTHS))


def raw_decoder(tf, cells):
    """Outputs go back in, two things of other shapes are emitted, and a TensorArray and a count are the loop state."""
    x = tf.placeholder(tf.float32, [BATCH, TIME, SIZE])
    cell = cells.MultiRNNCell([cells.GRUCell(3), cells.BasicLSTMCell(SIZE)])

    def step(time, output, state, loop_state):
        if output is None:
            kept = (tf.TensorArray(tf.float32, 0, dynamic_size=True), tf.constant(0))
            zero = (tf.zeros([2]), {"twice": tf.zeros([SIZE])})
            return tf.zeros([BATCH], tf.bool), x[:, 0], cell.zero_state(BATCH, tf.float32), zero, kept
        array, count = loop_state
        kept = (array.write(count, tf.reduce_sum(output)), count + 1)
        return time >= LENGTHS - 1, tf.tanh(output), state, (output[:, :2], {"twice": output * 2.0}), kept

    (part, twice), state, (array, count) = tf.nn.raw_rnn(cell, step, scope="decoder")
    outputs = [part.stack(), twice["twice"].stack(), array.stack(), *flat(state)]
    found = program(tf, x, outputs)
    return Program(found.fed, [*outputs, count], found.loss, [x])


CASES = {
    **{f"dynamic-{name}": functools.partial(dynamic, name, False) for name in CELLS},
    **{f"dynamic-lengths-{name}": functools.partial(dynamic, name, True) for name in CELLS},
    **{f"static-{name}": functools.partial(static, name, False) for name in ("basic_lstm", "own", "old", "multi")},
    **{f"static-lengths-{name}": functools.partial(static, name, True) for name in ("gru", "own", "lstm_all")},
    "time_major": time_major,
    "initial_state": initial_state,
    "bidirectional": bidirectional,
    "bidirectional_whole": bidirectional_whole,
    "static_bidirectional": functools.partial(static_bidirectional, False),
    "static_bidirectional_lengths": functools.partial(static_bidirectional, True),
    "by_hand": by_hand,
    "two_in_one_scope": two_in_one_scope,
    "shared_scope": shared_scope,
    "language_model": language_model,
    "reversed_within": reversed_within,
    "raw": raw,
    "raw_decoder": raw_decoder,
}
