"""What golden values cannot show of strings: the reference's fingerprints, and what is refused."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.text.fingerprints import fingerprint64


@pytest.mark.parametrize(
    ("text", "fingerprint"),
    [
        ("", 0x9AE16A3B2F90404F),
        ("a", 0xB3454265B6DF75E3),
        ("abc", 0x24A5B3A074E7F369),
        ("hello", 0xB48BE5A931380CE8),
        ("abcdefgh", 0xFEE9D22990C82909),
        ("0123456789abcdef", 0x54B961E5DC834067),
        ("0123456789abcdefg", 0xA6DDFF87A449D24A),
        ("The quick brown fox jumps over the lazy dog", 0xABBE83F33B1B5134),
        ("x" * 65, 0x447CB9FD96F25F39),
        ("\u00e9", 0x099E89E5ECBB4CC1),
    ],
)
def test_fingerprints(text, fingerprint):
    assert fingerprint64(text.encode()) == fingerprint


@pytest.mark.parametrize(
    ("text", "dtype"), [("a", "float32"), ("1.5", "int32"), ("", "float32"), ("3000000000", "int32")]
)
def test_a_string_that_is_no_number(session, text, dtype):
    with pytest.raises(gs.errors.InvalidArgumentError, match=f"could not correctly convert string: {text}"):
        session.run(gs.string_to_number([text], gs.as_dtype(dtype)))


def test_what_is_no_string_is_refused(session):
    with pytest.raises(TypeError, match="has DataType int32; string is expected"):
        gs.string_split(gs.constant([1]))
    with pytest.raises(ValueError, match="must be rank 1 but is rank 0"):
        gs.string_split("a b")
    with pytest.raises(gs.errors.InvalidArgumentError, match="pos 4 out of range for string b'abc'"):
        session.run(gs.substr("abc", 4, 1))
    with pytest.raises(ValueError, match=r"Shapes \(2,\) and \(1, 1\) are incompatible"):
        gs.string_join(["a", ["b", "c"], [["d"]]])
    text = gs.placeholder(gs.string)
    with pytest.raises(gs.errors.InvalidArgumentError, match="Input shapes of StringJoin do not match"):
        session.run(gs.string_join([text, ["b", "c"]]), {text: [["a"]]})
    with pytest.raises(ValueError, match="result_type must be 'SparseTensor'"):
        gs.strings.split(["a b"], result_type="RaggedTensor")
    with pytest.raises(gs.errors.InvalidArgumentError, match="Invalid pattern"):
        gs.regex_replace("a", "(", "b")
    with pytest.raises(gs.errors.InvalidArgumentError, match="Invalid character found in base64"):
        session.run(gs.decode_base64("a*b"))
    with pytest.raises(ValueError, match="num_buckets must be at least 1"):
        gs.string_to_hash_bucket_fast("a", 0)
    with pytest.raises(ValueError, match="Key must have 2 elements"):
        gs.string_to_hash_bucket_strong("a", 3, [1])


def test_fed_text_and_fed_bytes_are_the_same(session):
    x = gs.placeholder(gs.string, [None])
    node = gs.string_to_hash_bucket_fast(x, 1000)
    assert (
        session.run(node, {x: ["h\u00e9", "b"]}).tolist()
        == session.run(node, {x: np.array([b"h\xc3\xa9", b"b"])}).tolist()
    )


def test_lines_of_a_file_become_numbers(session, tmp_path):
    (tmp_path / "data.txt").write_text("1,2\n3,4\n")
    path = str(tmp_path / "data.txt")
    lines = gs.string_split([gs.read_file(path)], "\n")
    parts = gs.string_split(lines.values, ",")
    numbers = gs.reshape(gs.string_to_number(parts.values, gs.int32), parts.dense_shape)
    assert session.run(numbers).tolist() == [[1, 2], [3, 4]]
    session.run(gs.write_file(str(tmp_path / "new" / "copy.txt"), gs.read_file(path)))
    assert (tmp_path / "new" / "copy.txt").read_text() == "1,2\n3,4\n"
    assert session.run(gs.matching_files(str(tmp_path / "*.txt"))).tolist() == [path.encode()]
    with pytest.raises(gs.errors.NotFoundError, match="No such file"):
        session.run(gs.read_file(str(tmp_path / "missing")))
