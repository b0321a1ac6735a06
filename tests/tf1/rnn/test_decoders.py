"""Decoders against the same steps written out, and attention against numpy."""

import numpy as np
import pytest
from rounding import assert_equal_but_for_rounding

import globalstep as gs
from globalstep.tf1.graph import nest

cells, seq2seq = gs.nn.rnn_cell, gs.contrib.seq2seq
BATCH, TIME, SIZE, CLASSES = 3, 5, 4, 6


def start(session, scale=0.8):
    """Give all Variables values that belong to their names."""
    session.run(gs.global_variables_initializer())
    values = {}
    for variable in gs.global_variables():
        rng = np.random.default_rng(len(variable.name))
        values[variable.name] = (rng.standard_normal(variable.shape.as_list()) * scale).astype(np.float32)
        session.run(variable.assign(values[variable.name]))
    return values


def logits_of(output):
    return gs.layers.dense(output, CLASSES, name="logits")


@pytest.mark.parametrize("impute", [False, True])
def test_decoding_targets_is_running_the_cell_over_them(session, impute):
    lengths = np.array([5, 2, 3], np.int32)
    x = gs.placeholder(gs.float32, [None, None, SIZE])
    cell = cells.BasicLSTMCell(3)
    helper = seq2seq.TrainingHelper(x, lengths)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(BATCH, gs.float32), output_layer=logits_of)
    outputs, state, found_lengths = seq2seq.dynamic_decode(decoder, impute_finished=impute)
    with gs.variable_scope("decoder", reuse=True):
        wanted, last = gs.nn.dynamic_rnn(cell, x, lengths if impute else None, dtype=gs.float32)
        wanted = gs.layers.dense(wanted, CLASSES, name="logits")
        mask = gs.expand_dims(gs.sequence_mask(lengths, TIME, gs.float32), 2)
        wanted = wanted * mask if impute else wanted
    variables = gs.trainable_variables()
    loss, other = gs.reduce_sum(gs.square(outputs.rnn_output)), gs.reduce_sum(gs.square(wanted))
    gradients, same = gs.gradients(loss, [x, *variables]), gs.gradients(other, [x, *variables])
    start(session)
    names = ["decoder/basic_lstm_cell/kernel:0", "decoder/basic_lstm_cell/bias:0"]
    assert [v.name for v in variables] == [*names, "decoder/logits/kernel:0", "decoder/logits/bias:0"]
    values = np.random.default_rng(1).standard_normal((BATCH, TIME, SIZE))
    fetched = session.run([outputs.rnn_output, *nest.flatten(state), *gradients], {x: values})
    for one, another in zip(
        fetched, session.run([wanted, *nest.flatten(last), *same], {x: values}), strict=True
    ):  # fmt: skip
        assert_equal_but_for_rounding(one, another, 1000)
    ids, counts = session.run([outputs.sample_id, found_lengths], {x: values})
    np.testing.assert_array_equal(counts, lengths)
    np.testing.assert_array_equal(
        ids, fetched[0].argmax(-1) if not impute else ids * mask.eval(session=session)[:, :, 0]
    )
    assert ids.dtype == np.int32


def test_greedy_decoding_feeds_back_what_it_chose(session):
    table = gs.get_variable("table", [CLASSES, SIZE])
    cell = cells.GRUCell(3)
    helper = seq2seq.GreedyEmbeddingHelper(table, gs.constant([1, 2, 3]), 0)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(BATCH, gs.float32), output_layer=logits_of)
    outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=7)
    with gs.variable_scope("decoder", reuse=True):
        state, ids, chosen = cell.zero_state(BATCH, gs.float32), gs.constant([1, 2, 3]), []
        for _ in range(7):
            output, state = cell(gs.nn.embedding_lookup(table, ids), state)
            ids = gs.to_int32(gs.argmax(logits_of(output), -1))
            chosen.append(ids)
    start(session, 2.0)
    found, counts, wanted = session.run([outputs.sample_id, lengths, gs.stack(chosen, 1)])
    np.testing.assert_array_equal(found, wanted[:, : found.shape[1]])
    for row, count in zip(wanted, counts, strict=True):
        ends = np.flatnonzero(row == 0)
        assert count == (ends[0] + 1 if len(ends) else 7)
    assert found.shape[1] == counts.max()


def test_a_first_maximum_of_zero_decodes_nothing(session):
    cell = cells.GRUCell(3)
    helper = seq2seq.GreedyEmbeddingHelper(lambda ids: gs.one_hot(ids, SIZE), gs.constant([1, 2]), 0)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(2, gs.float32))
    outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=0, output_time_major=True)
    start(session)
    assert session.run(lengths).tolist() == [0, 0]
    assert session.run(outputs.rnn_output).shape[0] == 0


def test_sampling_draws_by_probability(session):
    class Fixed(cells.RNNCell):
        state_size = 1
        output_size = 2

        def __call__(self, inputs, state, scope=None):
            return gs.log(gs.constant([[0.25, 0.75]])) + 0 * inputs, state

    helper = seq2seq.SampleEmbeddingHelper(lambda ids: gs.zeros([1, 2]), gs.constant([0]), 5, seed=3)
    decoder = seq2seq.BasicDecoder(Fixed(), helper, gs.zeros([1, 1]))
    outputs, _, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=400)
    assert 0.65 < session.run(outputs.sample_id).mean() < 0.85


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def expected_scores(kind, values, query, memory):
    keys = memory @ values["memory_layer/kernel:0"]
    if kind.startswith("luong"):
        found = np.einsum("btu,bu->bt", keys, query)
        return found * values.get("luong_attention/attention_g:0", 1)
    scope = "bahdanau_attention"
    asked = (query @ values[f"{scope}/query_layer/kernel:0"])[:, None]
    v = values[f"{scope}/attention_v:0"]
    if kind.endswith("normed"):
        v = values[f"{scope}/attention_g:0"] * v / np.sqrt((v * v).sum())
        asked = asked + values[f"{scope}/attention_b:0"]
    return (v * np.tanh(keys + asked)).sum(-1)


MECHANISMS = {
    "luong": lambda *given: seq2seq.LuongAttention(3, *given),
    "luong-scaled": lambda *given: seq2seq.LuongAttention(3, *given, scale=True),
    "bahdanau": lambda *given: seq2seq.BahdanauAttention(5, *given),
    "bahdanau-normed": lambda *given: seq2seq.BahdanauAttention(5, *given, normalize=True),
}


@pytest.mark.parametrize("kind", MECHANISMS)
def test_attention_mechanisms(session, kind):
    rng = np.random.default_rng(4)
    memory, query = rng.standard_normal((2, 4, 3)).astype("f"), rng.standard_normal((2, 3)).astype("f")
    mechanism = MECHANISMS[kind](gs.constant(memory), [4, 2])
    weights, _ = mechanism(gs.constant(query), mechanism.initial_alignments(2, gs.float32))
    values = start(session)
    memory[1, 2:] = 0
    scores = expected_scores(kind, values, query, memory)
    scores[1, 2:] = -np.inf
    np.testing.assert_allclose(session.run(weights), softmax(scores), rtol=1e-4, atol=1e-6)


def test_an_attentive_decoder(session):
    memory = np.random.default_rng(5).standard_normal((BATCH, 4, 3)).astype("f")
    x = gs.placeholder(gs.float32, [BATCH, None, SIZE])
    mechanism = seq2seq.BahdanauAttention(5, gs.constant(memory))
    cell = seq2seq.AttentionWrapper(
        cells.BasicLSTMCell(3), mechanism, attention_layer_size=2, alignment_history=True
    )  # fmt: skip
    assert cell.output_size == 2
    decoder = seq2seq.BasicDecoder(
        cell, seq2seq.TrainingHelper(x, [TIME] * BATCH), cell.zero_state(BATCH, gs.float32), output_layer=logits_of
    )
    outputs, state, _ = seq2seq.dynamic_decode(decoder)
    gradients = gs.gradients(gs.reduce_sum(gs.square(outputs.rnn_output)), gs.trainable_variables())
    values = start(session)
    scope = "decoder/attention_wrapper"
    assert sorted(values) == sorted(
        [
            "memory_layer/kernel:0",
            f"{scope}/basic_lstm_cell/kernel:0",
            f"{scope}/basic_lstm_cell/bias:0",
            f"{scope}/bahdanau_attention/query_layer/kernel:0",
            f"{scope}/bahdanau_attention/attention_v:0",
            f"{scope}/attention_layer/kernel:0",
            "decoder/logits/kernel:0",
            "decoder/logits/bias:0",
        ]
    )
    inputs = np.random.default_rng(6).standard_normal((BATCH, TIME, SIZE)).astype("f")
    found, history, last = session.run(
        [outputs.rnn_output, state.alignment_history.stack(), state.attention], {x: inputs}
    )  # fmt: skip
    c, h, attention = np.zeros((BATCH, 3)), np.zeros((BATCH, 3)), np.zeros((BATCH, 2))
    local = {name.removeprefix(f"{scope}/"): value for name, value in values.items()}
    for step in range(TIME):
        sums = np.concatenate([inputs[:, step], attention, h], 1) @ local["basic_lstm_cell/kernel:0"]
        i, j, f, o = np.split(sums + local["basic_lstm_cell/bias:0"], 4, axis=1)
        c = c / (1 + np.exp(-f - 1)) + np.tanh(j) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        weights = softmax(expected_scores("bahdanau", local, h, memory))
        context = np.einsum("bt,bts->bs", weights, memory)
        attention = np.concatenate([h, context], 1) @ local["attention_layer/kernel:0"]
        np.testing.assert_allclose(history[step], weights, rtol=1e-4, atol=1e-5)
        logits = attention @ values["decoder/logits/kernel:0"] + values["decoder/logits/bias:0"]
        np.testing.assert_allclose(found[:, step], logits, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(last, attention, rtol=1e-3, atol=1e-4)
    assert all(np.any(gradient != 0) for gradient in session.run(gradients, {x: inputs}))


def test_several_mechanisms_are_attended_to_together(session):
    memory = gs.ones([2, 4, 3])
    with gs.variable_scope("one"):
        first = seq2seq.LuongAttention(3, memory)
    with gs.variable_scope("two"):
        second = seq2seq.BahdanauAttention(3, memory)
    cell = seq2seq.AttentionWrapper(cells.GRUCell(3), [first, second], attention_layer_size=[2, 4])
    outputs, state = gs.nn.dynamic_rnn(cell, gs.ones([2, 3, 5]), dtype=gs.float32)
    start(session)
    assert session.run(outputs).shape == (2, 3, 6)
    assert [weights.shape for weights in session.run(state.alignments)] == [(2, 4), (2, 4)]
    assert session.run(state.time) == 3
    with pytest.raises(ValueError, match="exactly one of each attention mechanism: 2"):
        seq2seq.AttentionWrapper(cells.GRUCell(3), [first, second], attention_layer_size=[2])


def test_tile_batch(session):
    state = cells.LSTMStateTuple(gs.constant([[1.0], [2.0]]), gs.constant([[3.0], [4.0]]))
    c, h = session.run(seq2seq.tile_batch(state, 2))
    assert (c[:, 0].tolist(), h[:, 0].tolist()) == ([1, 1, 2, 2], [3, 3, 4, 4])


def test_losses_of_lists(session):
    logits = [gs.constant(np.eye(3, dtype="f")[[0, 1]] * k) for k in (1, 2)]
    targets, weights = [gs.constant([0, 0]), gs.constant([0, 1])], [gs.constant([1.0, 0.5]), gs.constant([1.0, 0.0])]
    legacy = gs.contrib.legacy_seq2seq
    ce = np.array([[-np.log(np.e / (np.e + 2)), -np.log(1 / (np.e + 2))], [-np.log(np.e**2 / (np.e**2 + 2)), 0]])
    each = session.run(legacy.sequence_loss_by_example(logits, targets, weights))
    np.testing.assert_allclose(each, [ce[:, 0].mean(), ce[0, 1]], rtol=1e-5)
    total = session.run(legacy.sequence_loss(logits, targets, weights))
    np.testing.assert_allclose(total, each.mean(), rtol=1e-5)
    with pytest.raises(ValueError, match="must be the same"):
        legacy.sequence_loss(logits, targets, weights[:1])


def test_an_encoder_and_a_decoder_over_lists(session):
    inputs = [gs.ones([2, 3]) * k for k in range(3)]
    legacy = gs.contrib.legacy_seq2seq
    outputs, state = legacy.basic_rnn_seq2seq(inputs, inputs[:2], cells.GRUCell(4))
    fed, _ = legacy.rnn_decoder(
        inputs, gs.zeros([2, 3]), cells.BasicRNNCell(3), loop_function=lambda output, step: output * 2, scope="fed"
    )
    names = {variable.name for variable in gs.trainable_variables()}
    assert {f"basic_rnn_seq2seq/{part}/gru_cell/gates/kernel:0" for part in ("rnn", "rnn_decoder")} < names
    values = start(session)
    assert len(outputs) == 2
    np.testing.assert_array_equal(*session.run([outputs[-1], state]))
    kernel, bias = values["fed/basic_rnn_cell/kernel:0"], values["fed/basic_rnn_cell/bias:0"]
    output = np.tanh(bias)[None].repeat(2, 0)
    for _ in range(2):
        output = np.tanh(np.concatenate([output * 2, output], 1) @ kernel + bias)
    np.testing.assert_allclose(session.run(fed[-1]), output, rtol=1e-4)
