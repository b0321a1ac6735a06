"""tf.shape, size, rank and convert_to_tensor of a SparseTensor; names of collections; what a dataset has."""

import numpy as np
import pytest

import globalstep as gs


def test_shape_size_and_rank_are_those_of_the_dense_shape():
    x = gs.SparseTensor([[0, 1], [2, 3]], [1.0, 2.0], [4, 5])
    with gs.Session() as session:
        shape, size, rank, wide = session.run([gs.shape(x), gs.size(x), gs.rank(x), gs.shape(x, out_type=gs.int64)])
    assert (shape.tolist(), shape.dtype, size, size.dtype, rank) == ([4, 5], np.int32, 20, np.int32, 2)
    assert wide.dtype == np.int64


def test_a_sparse_tensor_is_no_tensor():
    x = gs.SparseTensor([[0, 1]], [1.0], [4, 5])
    for convert in (gs.convert_to_tensor, gs.identity, gs.reduce_sum):
        with pytest.raises(TypeError, match="Failed to convert object of type SparseTensor to Tensor"):
            convert(x)


def test_collections_have_tensorflows_names():
    assert gs.GraphKeys.ASSET_FILEPATHS == "asset_filepaths"
    assert gs.GraphKeys.SAVEABLE_OBJECTS == "saveable_objects"
    assert gs.GraphKeys.EVAL_STEP == "eval_step"


def test_a_dataset_tells_what_its_elements_are():
    batches = gs.data.Dataset.from_tensor_slices([1.0, 2.0]).batch(2)
    assert gs.data.get_output_types(batches) == gs.float32
    assert gs.data.get_output_shapes(batches).as_list() == [None]
    assert gs.data.get_output_classes(batches) is gs.Tensor
