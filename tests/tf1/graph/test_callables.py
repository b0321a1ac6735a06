"""What `tensorflow.python.util.function_utils` says of functions."""

import functools

import pytest

from globalstep.python.util import function_utils


class Model:
    def call(self, features, labels=None):
        return features, labels

    def __call__(self, features, **options):
        return features, options


def plain(a, b=2, *rest, mode=None):
    return a, b, rest, mode


@functools.wraps(plain)
def decorated(*given, **named):
    return plain(*given, **named)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (plain, ("a", "b")),
        (decorated, ("a", "b")),
        (Model().call, ("features", "labels")),
        (Model.call, ("self", "features", "labels")),
        (Model(), ("features",)),
        (functools.partial(plain, 1), ("b",)),
        (functools.partial(plain, b=1), ("a",)),
        (functools.partial(Model().call, 1), ("labels",)),
    ],
)
def test_the_arguments_that_a_call_still_takes(function, names):
    assert function_utils.fn_args(function) == names


def test_keywords_names_and_code():
    assert function_utils.has_kwargs(Model())
    assert not function_utils.has_kwargs(functools.partial(plain, 1))
    with pytest.raises(TypeError, match="should be a callable"):
        function_utils.has_kwargs(3)
    assert function_utils.get_func_name(plain) == "plain"
    assert function_utils.get_func_name(Model().call) == "Model.call"
    assert function_utils.get_func_name(Model()) == str(Model)
    assert function_utils.get_func_code(plain) is plain.__code__
    assert function_utils.get_func_code(Model()) is Model.__call__.__code__
    assert function_utils.get_func_code(functools.partial(plain)) is None
    for ask in (function_utils.get_func_name, function_utils.get_func_code):
        with pytest.raises(ValueError, match="must be a callable"):
            ask(3)
