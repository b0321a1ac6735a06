"""What the golden programs do not show of cells: dropout, layer normalization, refusals, losses of sequences."""

import numpy as np
import pytest
from rounding import assert_equal_but_for_rounding

import globalstep as gs
from globalstep.tf1.graph import nest

cells = gs.nn.rnn_cell
TIME, BATCH, SIZE = 6, 4, 5


class Stepwise(cells.RNNCell):
    """A cell that hides from dynamic_rnn that whole sequences of it can be run."""

    def __init__(self, cell):
        super().__init__()
        self._cell = cell

    @property
    def state_size(self):
        return self._cell.state_size

    @property
    def output_size(self):
        return self._cell.output_size

    def __call__(self, inputs, state, scope=None):
        return self._cell(inputs, state)


KINDS = {
    "basic_rnn": lambda: cells.BasicRNNCell(3),
    "gru": lambda: cells.GRUCell(3),
    "basic_lstm": lambda: cells.BasicLSTMCell(3, forget_bias=0.5),
    "lstm": lambda: cells.LSTMCell(3, use_peepholes=True, cell_clip=0.3, num_proj=2, proj_clip=0.1),
    "multi": lambda: cells.MultiRNNCell([cells.GRUCell(SIZE), cells.ResidualWrapper(cells.LSTMCell(SIZE))]),
}


def outcome(session, cell, lengths, hide):
    """Outputs, last state, and the gradients of both by the inputs and by all Variables."""
    rng = np.random.default_rng(1)
    x = gs.placeholder(gs.float32, [None, None, SIZE])
    outputs, state = gs.nn.dynamic_rnn(Stepwise(cell) if hide else cell, x, lengths, dtype=gs.float32)
    loss = gs.reduce_sum(gs.square(outputs)) + sum(
        (number + 1) * gs.reduce_sum(part * part * part) for number, part in enumerate(nest.flatten(state))
    )
    variables = gs.trainable_variables()
    gradients = gs.gradients(loss, [x, *variables])
    for variable in variables:
        session.run(variable.assign(rng.standard_normal(variable.shape.as_list()).astype(np.float32)))
    values = rng.standard_normal((BATCH, TIME, SIZE)).astype(np.float32)
    return session.run([outputs, *nest.flatten(state), *gradients], {x: values})


@pytest.mark.parametrize("lengths", [None, [6, 0, 3, 9]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_sequence_gives_what_its_steps_give(kind, lengths):
    found = []
    for hide in (False, True):
        with gs.Graph().as_default(), gs.Session() as session:
            found.append(outcome(session, KINDS[kind](), lengths, hide))
    for one, other in zip(*found, strict=True):
        # A gradient is a sum over a batch's times, each through all later ones: some hundred additions.
        assert_equal_but_for_rounding(one, other, 1000)


@pytest.mark.parametrize("hide", [False, True])
def test_dropout_of_inputs_and_outputs(session, hide):
    cell = cells.DropoutWrapper(
        cells.GRUCell(50), input_keep_prob=0.5, output_keep_prob=gs.placeholder_with_default(0.5, [])
    )
    assert cell.runs_sequences
    x = gs.ones([8, 3, 10])
    outputs, _ = gs.nn.dynamic_rnn(Stepwise(cell) if hide else cell, x, dtype=gs.float32)
    session.run(gs.global_variables_initializer())
    first, second = session.run(outputs), session.run(outputs)
    assert 0.4 < np.mean(first == 0) < 0.6
    assert not np.array_equal(first == 0, second == 0)
    assert not np.array_equal(first[:, 0] == 0, first[:, 1] == 0)


def test_variational_dropout_drops_the_same_at_each_step(session):
    cell = cells.DropoutWrapper(
        cells.BasicRNNCell(100), output_keep_prob=0.5, variational_recurrent=True, dtype=gs.float32
    )  # fmt: skip
    outputs, _ = gs.nn.dynamic_rnn(cell, gs.ones([2, 4, 3]), dtype=gs.float32)
    session.run(gs.global_variables_initializer())
    zero = session.run(outputs) == 0
    assert 0.3 < zero.mean() < 0.7
    assert (zero == zero[:1, :1]).all()


def test_dropout_of_states_spares_c(session):
    cell = cells.DropoutWrapper(cells.BasicLSTMCell(200), state_keep_prob=0.5)
    assert not cell.runs_sequences
    _, (c, h) = cell(gs.ones([1, 3]), cell.zero_state(1, gs.float32))
    session.run(gs.global_variables_initializer())
    c, h = session.run([c, h])
    assert np.all(c != 0)
    assert 0.3 < np.mean(h == 0) < 0.7


def test_dropout_refuses():
    with pytest.raises(ValueError, match=r"input_keep_prob must be between 0 and 1: 1\.5"):
        cells.DropoutWrapper(cells.GRUCell(2), input_keep_prob=1.5)
    with pytest.raises(ValueError, match="dtype must be provided"):
        cells.DropoutWrapper(cells.GRUCell(2), 0.5, variational_recurrent=True)
    with pytest.raises(ValueError, match="input_size must be provided"):
        cells.DropoutWrapper(cells.GRUCell(2), 0.5, variational_recurrent=True, dtype=gs.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("layer_norm", [True, False])
def test_layer_norm_lstm(session, layer_norm):
    cell = gs.contrib.rnn.LayerNormBasicLSTMCell(3, layer_norm=layer_norm, norm_gain=0.9, norm_shift=0.1)
    rng = np.random.default_rng(2)
    x, c, h = (rng.standard_normal((2, size)) for size in (4, 3, 3))
    fed = [gs.constant(value.astype(np.float32)) for value in (x, c, h)]
    outputs, state = cell(fed[0], cells.LSTMStateTuple(fed[1], fed[2]))
    session.run(gs.global_variables_initializer())
    names = [v.name for v in gs.trainable_variables()]
    parts = ("input", "transform", "forget", "output", "state")
    scope = "layer_norm_basic_lstm_cell"
    if layer_norm:
        assert names == [f"{scope}/kernel:0", *(f"{scope}/{part}/{w}:0" for part in parts for w in ("gamma", "beta"))]
    else:
        assert names == [f"{scope}/kernel:0", f"{scope}/bias:0"]

    def normal(value):
        if not layer_norm:
            return value
        mean, variance = value.mean(1, keepdims=True), value.var(1, keepdims=True)
        return (value - mean) / np.sqrt(variance + 1e-12) * 0.9 + 0.1

    # A drawn kernel may give three nearly equal values, of which the normalization enlarges the roundings.
    kernel = rng.standard_normal((7, 12)).astype(np.float32)
    session.run(gs.trainable_variables()[0].assign(kernel))
    i, j, f, o = (normal(part) for part in np.split(np.concatenate([x, h], 1) @ kernel, 4, axis=1))
    new_c = normal(c * sigmoid(f + 1) + sigmoid(i) * np.tanh(j))
    assert_equal_but_for_rounding(session.run(state.c), new_c.astype(np.float32), 100)
    assert_equal_but_for_rounding(session.run(outputs), (np.tanh(new_c) * sigmoid(o)).astype(np.float32), 100)


def test_layer_norm_lstm_over_a_sequence_has_gradients(session):
    cell = gs.contrib.rnn.LayerNormBasicLSTMCell(3, dropout_keep_prob=0.5)
    outputs, _ = gs.nn.dynamic_rnn(cell, gs.ones([2, 4, 3]) * gs.constant([[[1.0, 2.0, 4.0]]]), dtype=gs.float32)
    gradients = gs.gradients(outputs, gs.trainable_variables())
    session.run(gs.global_variables_initializer())
    assert all(np.any(gradient != 0) for gradient in session.run(gradients))


def test_states():
    lstm = cells.LSTMCell(4, num_proj=2)
    assert lstm.state_size == cells.LSTMStateTuple(4, 2)
    assert (lstm.output_size, cells.BasicLSTMCell(4, state_is_tuple=False).state_size) == (2, 8)
    row = cells.MultiRNNCell([lstm, cells.GRUCell(3)])
    assert (row.state_size, row.output_size) == (((4, 2), 3), 3)
    zero = row.zero_state(gs.placeholder(gs.int32, []), gs.float32)
    assert [node.shape.as_list() for node in nest.flatten(zero)] == [[None, 4], [None, 2], [None, 3]]
    assert zero[0].dtype is gs.float32
    assert gs.contrib.rnn.BasicLSTMCell is cells.BasicLSTMCell


def test_the_argument_reuse():
    x, state = gs.placeholder(gs.float32, [2, 4]), gs.zeros([2, 3])
    cells.GRUCell(3, reuse=gs.AUTO_REUSE)(x, state)
    cells.GRUCell(3, reuse=gs.AUTO_REUSE)(x, state)
    cells.GRUCell(3, reuse=True)(x, state)
    assert [variable.name for variable in gs.trainable_variables()][:1] == ["gru_cell/gates/kernel:0"]
    assert len(gs.trainable_variables()) == 4
    with pytest.raises(ValueError, match="does not exist"):
        cells.BasicRNNCell(3, reuse=True)(x, state)


def test_a_block_cell_is_an_lstm_cell_with_its_names(session):
    with gs.variable_scope("one"):
        first, _ = gs.nn.dynamic_rnn(
            gs.contrib.rnn.LSTMBlockCell(3, use_peephole=True), gs.ones([1, 2, 3]), dtype=gs.float32
        )
    with gs.variable_scope("two"):
        second, _ = gs.nn.dynamic_rnn(cells.LSTMCell(3, use_peepholes=True), gs.ones([1, 2, 3]), dtype=gs.float32)
    one, two = (gs.trainable_variables(scope) for scope in ("one", "two"))
    assert [v.name[4:] for v in one] == [v.name[4:] for v in two]
    session.run(gs.global_variables_initializer())
    for variable, other in zip(one, two, strict=True):
        session.run(variable.assign(other))
    np.testing.assert_array_equal(*session.run([first, second]))


def test_layers_of_two_directions(session):
    stacked = gs.contrib.rnn.stack_bidirectional_dynamic_rnn
    x = gs.constant(np.random.default_rng(1).standard_normal((2, 4, 3)).astype("f"))
    rows = [[cells.GRUCell(2), cells.GRUCell(3)] for _ in range(2)]
    outputs, last_fw, last_bw = stacked(*rows, x, sequence_length=[4, 2], dtype=gs.float32)
    again = x
    for number in range(2):
        with gs.variable_scope(f"stack_bidirectional_rnn/cell_{number}", reuse=True):
            found, states = gs.nn.bidirectional_dynamic_rnn(
                rows[0][number], rows[1][number], again, sequence_length=[4, 2], dtype=gs.float32
            )
        again = gs.concat(found, 2)
    session.run(gs.global_variables_initializer())
    assert len(gs.trainable_variables()) == 16
    assert (
        gs.trainable_variables()[0].name
        == "stack_bidirectional_rnn/cell_0/bidirectional_rnn/fw/gru_cell/gates/kernel:0"
    )
    np.testing.assert_array_equal(*session.run([outputs, again]))
    for one, other in zip((last_fw[1], last_bw[1]), states, strict=True):
        np.testing.assert_array_equal(*session.run([one, other]))
    with pytest.raises(ValueError, match="same depth"):
        stacked(rows[0], rows[1][:1], x, dtype=gs.float32)


def test_two_cells_in_one_scope_are_refused():
    x = gs.placeholder(gs.float32, [2, 3, 4])
    gs.nn.dynamic_rnn(cells.BasicRNNCell(2), x, dtype=gs.float32)
    with pytest.raises(ValueError, match="Variable rnn/basic_rnn_cell/kernel already exists"):
        gs.nn.dynamic_rnn(cells.BasicRNNCell(2), x, dtype=gs.float32)


@pytest.mark.parametrize("hide", [False, True])
def test_one_cell_twice_shares_its_variables(hide):
    same = cells.GRUCell(4)
    row = cells.MultiRNNCell([same, same])
    assert not row.runs_sequences
    x = gs.placeholder(gs.float32, [2, 3, 4])
    gs.nn.dynamic_rnn(Stepwise(row) if hide else row, x, dtype=gs.float32)
    assert len(gs.trainable_variables()) == 4
    assert all("cell_0" in variable.name for variable in gs.trainable_variables())


def test_refusals():
    cell, x = cells.GRUCell(2), gs.placeholder(gs.float32, [None, None, 3])
    with pytest.raises(ValueError, match="If there is no initial_state, you must give a dtype"):
        gs.nn.dynamic_rnn(cell, x)
    with pytest.raises(TypeError, match="is not an RNNCell"):
        gs.nn.dynamic_rnn(None, x, dtype=gs.float32)
    with pytest.raises(ValueError, match="Input size .* must be accessible via shape inference"):
        gs.nn.dynamic_rnn(cell, gs.placeholder(gs.float32, [None, None, None]), dtype=gs.float32)
    with pytest.raises(TypeError, match="inputs must be a sequence"):
        gs.nn.static_rnn(cell, x, dtype=gs.float32)
    with pytest.raises(ValueError, match="inputs must not be empty"):
        gs.nn.static_rnn(cell, [], dtype=gs.float32)
    with pytest.raises(ValueError, match="dtype must be specified"):
        gs.nn.static_rnn(cell, [x])
    with pytest.raises(ValueError, match="only supports floating point inputs, but saw dtype: int32"):
        cells.GRUCell(2)(gs.ones([1, 2], gs.int32), gs.zeros([1, 2]))
    with pytest.raises(ValueError, match="Must specify at least one cell"):
        cells.MultiRNNCell([])
    with pytest.raises(ValueError, match="state_is_tuple is not set"):
        cells.MultiRNNCell([cells.BasicLSTMCell(2)], state_is_tuple=False)
    with pytest.raises(ValueError, match="sequence_length must be a vector"):
        gs.nn.dynamic_rnn(cell, x, sequence_length=3, dtype=gs.float32)


LOGITS = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
TARGETS = np.array([[1, 0, 3], [2, 2, 1]])
WEIGHTS = np.array([[1, 0.5, 0], [2, 0, 0]], np.float32)


@pytest.mark.parametrize(
    ("options", "divide"),
    [
        ({}, lambda ce: ce.sum() / WEIGHTS.sum()),
        ({"average_across_timesteps": False}, lambda ce: np.array([ce[:, 0].sum() / 3, ce[:, 1].sum() / 0.5, 0])),
        ({"average_across_batch": False}, lambda ce: ce.sum(1) / WEIGHTS.sum(1)),
        ({"average_across_timesteps": False, "average_across_batch": False}, lambda ce: ce),
        (
            {"average_across_timesteps": False, "average_across_batch": False, "sum_over_timesteps": True,
             "sum_over_batch": True},
            lambda ce: ce.sum() / 3,
        ),
        (
            {"average_across_timesteps": False, "average_across_batch": False, "sum_over_timesteps": True},
            lambda ce: ce.sum(1) / [2, 1],
        ),
        (
            {"average_across_timesteps": False, "average_across_batch": False, "sum_over_batch": True},
            lambda ce: [ce[:, 0].sum() / 2, ce[0, 1], 0],
        ),
    ],
)  # fmt: skip
def test_sequence_loss(session, options, divide):
    powers = np.exp(LOGITS.astype(float))
    chosen = np.take_along_axis(np.log(powers / powers.sum(-1, keepdims=True)), TARGETS[:, :, None], 2)[:, :, 0]
    loss = gs.contrib.seq2seq.sequence_loss(gs.constant(LOGITS), gs.constant(TARGETS), gs.constant(WEIGHTS), **options)
    np.testing.assert_allclose(session.run(loss), divide(-chosen * WEIGHTS), rtol=1e-5)


def test_sequence_loss_refuses():
    with pytest.raises(ValueError, match="Logits must be a"):
        gs.contrib.seq2seq.sequence_loss(gs.ones([2, 3]), gs.ones([2, 3]), gs.ones([2, 3]))
    with pytest.raises(ValueError, match="cannot be set to True at same time"):
        gs.contrib.seq2seq.sequence_loss(LOGITS, TARGETS, WEIGHTS, sum_over_batch=True)


def nas_step(x, c, h, weights):
    """One step of the NAS cell in numpy, after the tree of figure 8 of arXiv:1611.01578."""

    def sigmoid(value):
        return 1 / (1 + np.exp(-value))

    def relu(value):
        return np.maximum(value, 0)

    of_x = np.split(x @ weights["kernel"], 8, axis=1)
    of_h = np.split(h @ weights["recurrent_kernel"] + weights.get("bias", 0), 8, axis=1)
    kinds = [sigmoid, relu, sigmoid, relu, np.tanh, sigmoid, np.tanh, sigmoid]
    leaves = [kind(a * b if n == 3 else a + b) for n, (kind, a, b) in enumerate(zip(kinds, of_x, of_h, strict=True))]
    left = np.tanh(np.tanh(leaves[0] * leaves[1]) + c)
    new_c = left * np.tanh(leaves[2] + leaves[3])
    right = np.tanh(np.tanh(leaves[4] * leaves[5]) + sigmoid(leaves[6] + leaves[7]))
    new_h = np.tanh(new_c * right)
    return new_c, new_h @ weights["projection_weights"] if "projection_weights" in weights else new_h


@pytest.mark.parametrize("options", [{}, {"use_biases": True}, {"num_proj": 2}, {"num_proj": 2, "use_biases": True}])
def test_a_nas_cell_gives_what_its_tree_gives(session, options):
    x = gs.placeholder(gs.float64, [None, None, SIZE])
    outputs, state = gs.nn.dynamic_rnn(gs.contrib.rnn.NASCell(3, **options), x, dtype=gs.float64)
    names = ["recurrent_kernel", "kernel", *["bias"] * ("use_biases" in options)]
    names += ["projection_weights"] * ("num_proj" in options)
    variables = gs.trainable_variables()
    assert [variable.name for variable in variables] == [f"rnn/nas_cell/{name}:0" for name in names]
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal(v.shape.as_list()) for name, v in zip(names, variables, strict=True)}
    session.run([v.assign(weights[name]) for name, v in zip(names, variables, strict=True)])
    values = rng.standard_normal((BATCH, TIME, SIZE))
    c, h, wanted = np.zeros((BATCH, 3)), np.zeros((BATCH, options.get("num_proj", 3))), []
    for step in range(TIME):
        c, h = nas_step(values[:, step], c, h, weights)
        wanted.append(h)
    found = session.run([outputs, state.c, state.h], {x: values})
    for one, other in zip(found, (np.stack(wanted, 1), c, h), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_raw_rnn_refuses_what_is_no_cell_and_no_function():
    with pytest.raises(TypeError, match="'cell'"):
        gs.nn.raw_rnn(None, lambda *given: None)
    with pytest.raises(TypeError, match="loop_fn must be a callable"):
        gs.nn.raw_rnn(cells.GRUCell(2), None)


def test_raw_rnn_refuses_a_state_that_is_not_the_cells():
    def step(time, output, state, loop_state):
        return time >= [1], gs.zeros([1, 2]), (gs.zeros([1, 2]),) * 2, output, None

    with pytest.raises((TypeError, ValueError), match="structure"):
        gs.nn.raw_rnn(cells.GRUCell(2), step)


@pytest.mark.parametrize("lengths", [None, [6, 0, 3, 6]])
def test_fused_cells_give_what_cells_give_step_by_step(session, lengths):
    x = gs.constant(np.random.default_rng(1).standard_normal((TIME, BATCH, SIZE)).astype("f"))
    fused = gs.contrib.rnn.LSTMBlockFusedCell(3, 0.5, use_peephole=True)
    options = {"dtype": gs.float32, "sequence_length": lengths}
    forward, last = fused(x, **options)
    back, first = gs.contrib.rnn.TimeReversedFusedRNN(fused)(x, **options)
    names = {variable.op.name for variable in gs.trainable_variables()}
    assert names == {f"lstm_fused_cell/{name}" for name in ("kernel", "bias", "w_f_diag", "w_i_diag", "w_o_diag")}
    cell = cells.LSTMCell(3, use_peepholes=True, forget_bias=0.5, reuse=True, name="lstm_fused_cell")
    cell(x[0], cell.zero_state(BATCH, gs.float32))  # now it has its Variables
    outputs, states = gs.contrib.rnn.FusedRNNCellAdaptor(cell, use_dynamic_rnn=True)(x, **options)
    turned = gs.reverse(x, [0]) if lengths is None else gs.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)
    reverse, ends = gs.contrib.rnn.FusedRNNCellAdaptor(cell)(turned, **options)
    reverse = gs.reverse(reverse, [0]) if lengths is None else gs.reverse_sequence(reverse, lengths, 0, 1)
    session.run(gs.global_variables_initializer())
    found = session.run([[forward, *last, back, *first], [outputs, *states, reverse, *ends]])
    for one, other in zip(*found, strict=True):
        assert_equal_but_for_rounding(one, other, 100)
    with pytest.raises(ValueError, match="Either initial_state or dtype"):
        fused(x)


def test_products_of_cells_by_tensorflows_own_name(session):
    from globalstep.contrib.rnn.python.ops.core_rnn_cell import _Linear
    from globalstep.python.ops.rnn_cell_impl import _linear

    x, h = gs.constant([[1.0, 2.0]]), gs.constant([[3.0]])
    ones = gs.ones_initializer()
    with gs.variable_scope("mine", initializer=ones):
        both = _Linear([x, h], 2, True, bias_initializer=ones)
        again = both([x, h])
    with gs.variable_scope("plain"):
        one = _linear(x, 2, False, kernel_initializer=ones)
    assert [v.op.name for v in gs.trainable_variables()] == ["mine/kernel", "mine/bias", "plain/kernel"]
    session.run(gs.global_variables_initializer())
    assert session.run([again, one])[0].tolist() == [[7, 7]]
    assert session.run(one).tolist() == [[3, 3]]
    for wrong, text in (([], "must be specified"), (gs.zeros([2]), "linear expects shapes")):
        with pytest.raises(ValueError, match=text):
            _Linear(wrong, 2, False)


def test_sizes_put_together_and_what_is_like_a_cell():
    from globalstep.python.ops.rnn_cell_impl import _concat, _like_rnncell

    x = gs.placeholder(gs.float32, [None, 3])
    assert _concat(gs.shape(x)[0], gs.TensorShape([2, 4]), static=True) == [None, 2, 4]
    assert _concat(5, gs.TensorShape(None), static=True) is None
    with gs.Session() as session:
        assert session.run(_concat(gs.shape(x)[0], 7), {x: np.zeros((4, 3))}).tolist() == [4, 7]
    with pytest.raises(ValueError, match="a prefix or suffix of None"):
        _concat(gs.TensorShape([None]), 7)
    assert [_like_rnncell(one) for one in (cells.GRUCell(2), gs.zeros)] == [True, False]
