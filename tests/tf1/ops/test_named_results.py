"""Results that programs take apart by names, as TensorFlow's."""

import pytest

import globalstep as gs


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: gs.nn.top_k([3.0, 1.0]), ("values", "indices")),
        (lambda: gs.unique([3, 3]), ("y", "idx")),
        (lambda: gs.unique_with_counts([3, 3]), ("y", "idx", "count")),
        (lambda: gs.setdiff1d([1, 2], [2]), ("out", "idx")),
        *(
            (
                lambda sampler=sampler: sampler([[1]], 1, 2, True, 9),
                ("sampled_candidates", "true_expected_count", "sampled_expected_count"),
            )
            for sampler in (gs.nn.uniform_candidate_sampler, gs.nn.log_uniform_candidate_sampler)
        ),
        (lambda: gs.TextLineReader().read(gs.FIFOQueue(1, gs.string)), ("key", "value")),
        (lambda: gs.TextLineReader().read_up_to(gs.FIFOQueue(1, gs.string), 2), ("keys", "values")),
    ],
)
def test_results_have_tensorflow_s_names_in_its_order(session, make, names):
    result = make()
    assert result._fields == names
    assert [getattr(result, name) for name in names] == list(result)


def test_a_run_gives_the_values_under_the_same_names(session):
    values = session.run({"top": gs.nn.top_k([1.0, 5.0, 4.0], 2), "rest": gs.setdiff1d([1, 2, 3], [2])})
    assert values["top"].values.tolist() == [5.0, 4.0]
    assert values["top"].indices.tolist() == [1, 2]
    assert values["rest"].out.tolist() == [1, 3]
    assert values["rest"].idx.tolist() == [0, 2]
