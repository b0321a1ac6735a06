import sys
from types import ModuleType

import pytest

from globalstep import app
from globalstep.tf1 import flags
from globalstep.tf1.flags import FlagValues


@pytest.fixture
def values(monkeypatch):
    """Fresh flags, so that the tests do not share theirs."""
    fresh = FlagValues()
    monkeypatch.setattr(flags, "FLAGS", fresh)
    return fresh


def test_defaults_and_given_values(values):
    flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
    flags.DEFINE_integer("task_index", 3, "100% an index")
    flags.DEFINE_float("rate", 0.5)
    assert values(["prog", "--job_name=ps", "--rate", "0.25"]) == ["prog"]
    assert (values.job_name, values.task_index, values.rate) == ("ps", 3, 0.25)


def test_one_dash_is_as_good_as_two(values):
    flags.DEFINE_integer("task_index", 0)
    values(["prog", "-task_index=2"])
    assert values.task_index == 2


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([], False),
        (["--sync"], True),
        (["--nosync"], False),
        (["--sync=true"], True),
        (["--sync=False"], False),
        (["-sync"], True),
        (["--sync", "--nosync"], False),
    ],
)
def test_booleans(values, arguments, value):
    flags.DEFINE_boolean("sync", False, "")
    values(["prog", *arguments])
    assert values.sync is value


def test_a_boolean_does_not_eat_what_follows(values):
    flags.DEFINE_bool("sync", False)
    assert values(["prog", "--sync", "data.txt"]) == ["prog", "data.txt"]


def test_enums_and_lists(values):
    flags.DEFINE_enum("kind", "a", ["a", "b"])
    flags.DEFINE_list("hosts", "x:1,y:2")
    values(["prog", "--kind=b"])
    assert values.kind == "b"
    assert values.hosts == ["x:1", "y:2"]
    values(["prog", "--hosts=z:3, w:4"])
    assert values.hosts == ["z:3", "w:4"]


@pytest.mark.parametrize("names", [("name", "default", "help"), ("flag_name", "default_value", "docstring")])
@pytest.mark.parametrize(
    ("define", "default", "argument", "value"),
    [
        (flags.DEFINE_integer, 2, "-ne=3", 3),
        (flags.DEFINE_string, "a", "--ne=b", "b"),
        (flags.DEFINE_bool, False, "-ne", True),
        (flags.DEFINE_list, "a,b", "-ne=c,d", ["c", "d"]),
    ],
)
def test_arguments_by_their_names_and_a_short_name(values, names, define, default, argument, value):
    define(**dict(zip(names, ["epochs", default, "how many"], strict=True)), short_name="ne")
    values(["prog", argument])
    assert values.epochs == value


def test_a_wrong_value_ends_the_program_with_a_message(values, capsys):
    flags.DEFINE_integer("task_index", 0)
    with pytest.raises(SystemExit, match="2"):
        values(["prog", "--task_index=one"])
    assert "invalid int value: 'one'" in capsys.readouterr().err


def test_a_required_flag(values, capsys):
    flags.DEFINE_string("job_name", None)
    flags.mark_flag_as_required("job_name")
    with pytest.raises(SystemExit):
        values(["prog"])
    assert "required: --job_name" in capsys.readouterr().err


def test_what_is_no_flag_is_left(values):
    flags.DEFINE_integer("task_index", 0)
    assert values(["prog", "--other=1", "file", "--task_index=2"]) == ["prog", "--other=1", "file"]


def test_what_is_nearly_a_flag_is_left_too_and_warned_of(values, caplog):
    flags.DEFINE_integer("train_steps", 0)
    flags.DEFINE_integer("task_index", 0)
    assert values(["prog", "--train_step=5", "--nothing_like_it", "file"]) == [
        "prog",
        "--train_step=5",
        "--nothing_like_it",
        "file",
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "This program has no flag --train_step, and leaves it; is it to be --train_steps?"
    ]


def test_the_first_read_parses_the_command_line(values, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["prog", "--a=1", "--b=2"])
    flags.DEFINE_integer("a", 0)
    assert values.a == 1
    flags.DEFINE_integer("b", 0)
    assert values.b == 2


def test_a_value_set_by_hand_wins(values):
    flags.DEFINE_integer("a", 0)
    values.a = 5
    values(["prog", "--a=1"])
    assert values.a == 5
    assert values.flag_values_dict() == {"a": 5}


def test_unknown_and_duplicate_flags(values):
    flags.DEFINE_integer("a", 0)
    with pytest.raises(AttributeError, match=r"Unknown flag: b. Flags of this program: \['a'\]"):
        _ = values.b
    with pytest.raises(AttributeError, match="Unknown flag: b"):
        values.b = 1
    with pytest.raises(flags.DuplicateFlagError, match="The flag 'a' is defined twice"):
        flags.DEFINE_string("a", "")
    assert "a" in values
    assert list(values) == ["a"]


def test_run_calls_main_with_what_is_no_flag(values):
    flags.DEFINE_integer("a", 0)
    seen = []

    def main(argv):
        seen.append((argv, values.a))
        return 7

    with pytest.raises(SystemExit) as ended:
        app.run(main, argv=["prog", "--a=1", "x"])
    assert ended.value.code == 7
    assert seen == [(["prog", "x"], 1)]


def test_run_finds_main_by_itself(values, monkeypatch):
    program = ModuleType("__main__")
    program.main = lambda argv: None
    monkeypatch.setitem(sys.modules, "__main__", program)
    with pytest.raises(SystemExit) as ended:
        app.run(argv=["prog"])
    assert ended.value.code is None


def test_app_flags_are_the_flags():
    assert app.flags is flags


def test_what_programs_before_1_5_do_with_their_flags(values, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["prog", "--a=3"])
    flags.DEFINE_integer("a", 0)
    flags.DEFINE_string("b", "x")
    flags.FLAGS._parse_flags()
    assert getattr(flags.FLAGS, "__flags") == {"a": 3, "b": "x"}
    flags.FLAGS._parse_flags(["--a=4"])
    assert flags.FLAGS.a == 4


def test_a_short_name_is_one_flag_s(values):
    flags.DEFINE_string("host", "", short_name="h")
    values(["prog", "-h=x"])
    assert values.host == "x"
    for name, options in (("other", {"short_name": "h"}), ("h", {}), ("third", {"short_name": "host"})):
        with pytest.raises(flags.DuplicateFlagError, match="The flag '(h|host)' is defined twice"):
            flags.DEFINE_string(name, "", **options)
    assert list(values) == ["host"]
