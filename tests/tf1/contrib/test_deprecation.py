"""tf.contrib.framework.deprecated."""

import pytest

import globalstep as gs

deprecated = gs.contrib.framework.deprecated


def test_a_call_says_so_once_and_where_it_was_made(caplog):
    @deprecated("2027-01-31", "Use new.")
    def old(value: int) -> int:
        return value + 1

    assert [old(1), old(2)] == [2, 3]
    (record,) = caplog.records
    assert "test_deprecation.py:" in record.getMessage()
    assert record.getMessage().endswith(
        "old (from test_deprecation) is deprecated and will be removed after 2027-01-31.\n"
        "Instructions for updating:\nUse new."
    )


def test_each_call_says_so_on_request(caplog):
    old = deprecated(None, "Use new.", warn_once=False)(len)
    assert [old("a"), old("ab")] == [1, 2]
    assert ["in a future version" in record.getMessage() for record in caplog.records] == [True, True]


def test_a_class_says_so_when_it_is_made(caplog):
    @deprecated(None, "Use New.")
    class Old:
        """Keeps a value.

        And no more.
        """

        def __init__(self, value: int) -> None:
            self.value = value

    assert isinstance(Old, type)
    assert Old(3).value == 3
    assert len(caplog.records) == 1
    assert Old.__doc__ == (
        "Keeps a value. (deprecated)\n\nDeprecated: it will be removed in a future version. Instructions for updating: "
        "Use New.\n\nAnd no more."
    )


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"Date must be in format YYYY-MM-DD\. Received: soon"):
        deprecated("soon", "Use new.")
    with pytest.raises(ValueError, match="without conversion instructions"):
        deprecated(None, "")
