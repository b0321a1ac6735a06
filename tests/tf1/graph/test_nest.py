from collections import OrderedDict, namedtuple

import pytest

from globalstep.tf1.graph import nest

Pair = namedtuple("Pair", "a b")


def test_flatten_and_pack_are_each_others_way_back():
    structure = [1, (2, {"b": 4, "a": 3}), Pair(5, [6])]
    assert nest.flatten(structure) == [1, 2, 3, 4, 5, 6]
    packed = nest.pack_sequence_as(structure, [10, 20, 30, 40, 50, 60])
    assert packed == [10, (20, {"b": 40, "a": 30}), Pair(50, [60])]
    assert list(packed[1][1]) == ["b", "a"]
    ordered = nest.pack_sequence_as(OrderedDict(b=1, a=2), [3, 4])
    assert ordered == OrderedDict(b=4, a=3)
    assert nest.flatten(7) == [7]
    assert nest.pack_sequence_as(7, [8]) == 8


def test_map_structure_takes_structures_of_one_form():
    assert nest.map_structure(lambda x, y: x + y, Pair(1, [2]), Pair(3, [4])) == Pair(4, [6])
    with pytest.raises(ValueError, match="same number of elements"):
        nest.map_structure(lambda x, y: x + y, [1, 2], [1])


def test_programs_find_it_in_contrib():
    from globalstep.contrib.framework import nest as found

    assert found.flatten is nest.flatten


def test_structures_that_differ_are_refused():
    nest.assert_same_structure([1, (2,)], [3, (4,)])
    with pytest.raises(TypeError, match="not the same sequence type"):
        nest.assert_same_structure([1], (1,))
    nest.assert_same_structure([1], (1,), check_types=False)
    with pytest.raises(ValueError, match="only one of them is a sequence"):
        nest.assert_same_structure([1], [(1,)])
    with pytest.raises(ValueError, match="same set of keys"):
        nest.assert_same_structure({"a": 1}, {"b": 1})
    with pytest.raises(ValueError, match="Structure had 1 elements, but flat_sequence had 2"):
        nest.pack_sequence_as([1], [1, 2])
