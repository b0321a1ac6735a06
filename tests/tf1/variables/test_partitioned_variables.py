import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import globalstep as gs
from globalstep.tf1.graph.graph import as_node
from globalstep.tf1.variables.partitioned_variables import slices


class TestPartitioners:
    @pytest.mark.parametrize(("shards", "axis", "expected"), [(3, 0, [3, 1]), (3, 1, [1, 2]), (20, 0, [10, 1])])
    def test_fixed_size(self, shards, axis, expected):
        assert gs.fixed_size_partitioner(shards, axis)(shape=[10, 2], dtype=gs.float32) == expected

    @pytest.mark.parametrize(
        ("limit", "most", "expected"),
        [(80, None, [1, 1]), (40, None, [2, 1]), (39, None, [3, 1]), (1, None, [10, 1]), (8, 4, [4, 1])],
    )
    def test_axis_size(self, limit, most, expected):
        partitioner = gs.variable_axis_size_partitioner(limit, max_shards=most)
        assert partitioner(shape=[10, 2], dtype=gs.float32) == expected

    @pytest.mark.parametrize(("most", "size", "expected"), [(8, 80, [1, 1]), (8, 20, [4, 1]), (3, 20, [3, 1])])
    def test_min_max(self, most, size, expected):
        assert gs.min_max_variable_partitioner(most, 0, size)(shape=[10, 2], dtype=gs.float32) == expected

    def test_bad_limits(self):
        with pytest.raises(ValueError, match="max_shard_bytes must be positive, but got: 0"):
            gs.variable_axis_size_partitioner(0)
        with pytest.raises(ValueError, match="max_shards must be positive, but got: 0"):
            gs.variable_axis_size_partitioner(1, max_shards=0)
        with pytest.raises(ValueError, match="axis 2 when shape is only"):
            gs.fixed_size_partitioner(2, axis=2)(shape=[4, 4])


@given(st.integers(1, 50), st.integers(1, 10))
def test_slices_cover_the_whole_evenly(rows, count):
    count = min(rows, count)
    found = slices([rows, 3], [count, 1])
    sizes = [extent[0] for _, extent in found]
    assert sum(sizes) == rows
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert [offset[0] for offset, _ in found] == [sum(sizes[:i]) for i in range(count)]


def test_slices_refuse_two_axes():
    with pytest.raises(ValueError, match="along more than one dimension"):
        slices([4, 4], [2, 2])
    with pytest.raises(ValueError, match="does not match the Variable's rank"):
        slices([4, 4], [2])


class TestPartitionedVariable:
    def test_parts_and_the_whole(self):
        whole = np.arange(10, dtype=np.float32).reshape(5, 2)
        table = gs.get_variable("table", initializer=whole, partitioner=gs.fixed_size_partitioner(2))
        assert [part.name for part in table] == ["table/part_0:0", "table/part_1:0"]
        assert gs.trainable_variables() == list(table)
        assert (table.shape.as_list(), table.dtype, len(table)) == ([5, 2], gs.float32, 2)
        one = gs.get_variable("one", [2, 1], partitioner=gs.fixed_size_partitioner(1))
        assert (gs.convert_to_tensor(table).name, one.as_tensor().name) == ("table:0", "one:0")
        with gs.Session() as sess:
            sess.run(gs.global_variables_initializer())
            np.testing.assert_array_equal(sess.run(table), whole)
            np.testing.assert_array_equal(sess.run(as_node(table)), whole)
            np.testing.assert_array_equal(sess.run(table[1]), whole[3:])
            sess.run(table.assign(whole + 1))
            np.testing.assert_array_equal(sess.run(table), whole + 1)

    def test_initializer_is_told_which_part(self):
        asked = []

        def initializer(shape, dtype=None, partition_info=None):
            asked.append((shape, partition_info.full_shape, partition_info.var_offset))
            return as_node(np.zeros(shape, np.float32))

        with gs.variable_scope("emb", partitioner=gs.fixed_size_partitioner(2)):
            table = gs.get_variable("t", [3, 2], initializer=initializer)
            scalar = gs.get_variable("s", initializer=1.0)
        assert asked == [([2, 2], [3, 2], [0, 0]), ([1, 2], [3, 2], [2, 0])]
        assert table[1].save_slice_info.spec == "3 2 2,1:-"
        assert table[1].save_slice_info.full_name == "emb/t"
        assert isinstance(scalar, gs.Variable)

    def test_reuse_gives_the_same(self):
        table = gs.get_variable("t", [4, 2], partitioner=gs.fixed_size_partitioner(2))
        with gs.variable_scope("", reuse=True):
            assert gs.get_variable("t", [4, 2], partitioner=gs.fixed_size_partitioner(2)) is table


def test_parts_by_the_older_function():
    def parts(name=None, reuse=None, slicing=(2, 1)):
        made = gs.create_partitioned_variables([4, 2], slicing, gs.ones_initializer(), name=name, reuse=reuse)
        return [one.name for one in made]

    assert parts() == ["PartitionedVariable/part_0:0", "PartitionedVariable/part_1:0"]
    with gs.variable_scope("s"):
        assert parts() == ["s/PartitionedVariable/part_0:0", "s/PartitionedVariable/part_1:0"]
    assert parts() == ["PartitionedVariable_1/part_0:0", "PartitionedVariable_1/part_1:0"]
    assert parts("mine") == parts("mine", reuse=True) == ["mine/part_0:0", "mine/part_1:0"]
    with pytest.raises(ValueError, match="must have the length: shape:"):
        parts(slicing=(2,))
    with pytest.raises(ValueError, match="must have rank at least 1"):
        gs.create_partitioned_variables([], [], gs.ones_initializer())
