"""Examples and sequences of features, parsed; see value_cases."""

import numpy as np
from value_cases import Values


def feature(tf, *values):
    """Give a Feature of floats, ints or bytes."""
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def sequence(tf):
    """Give a serialized SequenceExample."""
    lists = {"words": [[b"a"], [b"bc"], [b""]], "pairs": [[1.0, 2.0], [3.0, 4.0]], "ragged": [[1, 2, 3], [4], [5, 6]]}
    made = {
        key: tf.train.FeatureList(feature=[feature(tf, *entry) for entry in entries]) for key, entries in lists.items()
    }
    context = {"length": feature(tf, 3), "names": feature(tf, b"x", b"y")}
    return tf.train.SequenceExample(
        context=tf.train.Features(feature=context), feature_lists=tf.train.FeatureLists(feature_list=made)
    ).SerializeToString()


def outputs(found):
    """Give the nodes of what was parsed, those of a SparseTensor by themselves."""
    nodes = {}
    for key, value in found.items():
        if hasattr(value, "dense_shape"):
            nodes.update(
                {f"{key} indices": value.indices, f"{key} values": value.values, f"{key} size": value.dense_shape}
            )
        else:
            nodes[key] = value
    return nodes


def parsed(tf):
    context, lists = tf.parse_single_sequence_example(
        sequence(tf),
        {"length": tf.FixedLenFeature([], tf.int64), "names": tf.VarLenFeature(tf.string),
         "other": tf.FixedLenFeature([2], tf.float32, [1.0, 2.0])},
        {"words": tf.FixedLenSequenceFeature([], tf.string), "pairs": tf.FixedLenSequenceFeature([2], tf.float32),
         "ragged": tf.VarLenFeature(tf.int64), "none": tf.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
         "nothing": tf.VarLenFeature(tf.float32)},
    )  # fmt: skip
    return outputs({**context, **lists})


def fed(tf):
    text = tf.placeholder(tf.string, [])
    _, lists = tf.parse_single_sequence_example(text, sequence_features={"ragged": tf.VarLenFeature(tf.int64)})
    return Values(outputs(lists), [(text, np.array(sequence(tf), object))])


def examples(tf):
    """Give serialized Examples with entries of one shape."""
    rows = [{"pairs": feature(tf, 1, 2, 3, 4), "words": feature(tf, b"a")}, {"pairs": feature(tf, 5, 6)}, {}]
    return [tf.train.Example(features=tf.train.Features(feature=row)).SerializeToString() for row in rows]


def entries(tf):
    return {
        "pairs": tf.FixedLenSequenceFeature([2], tf.int64, allow_missing=True, default_value=-1),
        "words": tf.FixedLenSequenceFeature([], tf.string, allow_missing=True),
    }


CASES = {
    "a sequence": parsed,
    "a sequence that is fed": fed,
    "entries of a batch": lambda tf: outputs(tf.parse_example(examples(tf), entries(tf))),
    "entries of one": lambda tf: outputs(tf.parse_single_example(examples(tf)[0], entries(tf))),
    "entries of one without": lambda tf: outputs(tf.parse_single_example(examples(tf)[2], entries(tf))),
}
