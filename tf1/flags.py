"""`gs.tf1.flags` (also `gs.app.flags`): flags of a program, defined anywhere and read from `FLAGS`.

TensorFlow's functions over argparse. As there, the command line is read when a flag's value is first
asked for, and arguments that are no flags of the program are left for `main`; one that is nearly the name of a flag is
warned of.

Layer: tf1. Flags are defined and first read by one thread.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from globalstep.tf1.graph.callables import named

__all__ = [
    "DEFINE_bool",
    "DEFINE_boolean",
    "DEFINE_enum",
    "DEFINE_float",
    "DEFINE_integer",
    "DEFINE_list",
    "DEFINE_string",
    "DuplicateFlagError",
    "FLAGS",
    "FlagValues",
    "mark_flag_as_required",
]

_log = logging.getLogger("globalstep")

_TRUE = ("true", "t", "1", "yes", "y")
_FALSE = ("false", "f", "0", "no", "n")


class DuplicateFlagError(ValueError):
    """A flag of this name is defined already."""


class FlagValues:
    """The flags of a program as attributes.

    A read of a flag before `FLAGS(argv)` or `gs.app.run` was called parses `sys.argv`. An attribute that
    is set wins over the command line.
    """

    _parser: argparse.ArgumentParser
    _booleans: dict[str, str]
    _parsed: dict[str, Any] | None
    _by_hand: dict[str, Any]
    _names: set[str]
    _short_names: set[str]

    def __init__(self) -> None:
        # Not by assignment, which is for flags.
        self.__dict__.update(
            _parser=argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve"),
            _booleans={},
            _parsed=None,
            _by_hand={},
            _names=set(),
            _short_names=set(),
        )

    def define(
        self, name: str, default: Any, help: str | None = "", *, read: Callable[[str], Any],
        short_name: str | None = None, enum_values: Iterable[str] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Define a flag.

        Args:
            name: Its name, without dashes.
            default: Its value where it is not given.
            help: What --help says.
            read: Gives the value of a text.
            short_name: Another name on the command line.
            enum_values: The texts that are allowed; default all.
            **_: Accepted.

        Raises:
            DuplicateFlagError: If one of its names is a flag's already.
        """
        for one in (name, short_name):
            if one in self._names or one in self._short_names:
                raise DuplicateFlagError(f"The flag '{one}' is defined twice.")
        spellings = [dashes + one for one in (name, short_name) if one for dashes in ("--", "-")]
        # argparse reads "%" as the start of a format.
        text = (help or "").replace("%", "%%")
        choices = None if enum_values is None else list(enum_values)
        self._parser.add_argument(*spellings, dest=name, default=default, help=text, type=read, choices=choices)
        self._names.add(name)
        if short_name:
            self._short_names.add(short_name)
        if read is _truth:
            for spelling in spellings:
                bare = spelling.lstrip("-")
                self._booleans[spelling] = f"--{name}=true"
                self._booleans[f"{spelling.removesuffix(bare)}no{bare}"] = f"--{name}=false"
        # A flag that is defined after the first read must still be found on the command line.
        self.__dict__["_parsed"] = None

    def require(self, name: str) -> None:
        """See mark_flag_as_required."""
        self._check(name)
        for action in self._parser._actions:
            if action.dest == name:
                action.required = True

    def __call__(self, argv: Sequence[str] | None = None) -> list[str]:
        """Parse a command line.

        Args:
            argv: The command line, the program's name first; default `sys.argv`.

        Returns:
            The program's name and the arguments that are no flags of the program.
        """
        arguments = list(sys.argv if argv is None else argv)
        spelled_out = [self._booleans.get(argument, argument) for argument in arguments[1:]]
        parsed, rest = self._parser.parse_known_args(spelled_out)
        for name in (argument.lstrip("-").partition("=")[0] for argument in rest if argument.startswith("--")):
            if near := difflib.get_close_matches(name, sorted(self._names), n=1, cutoff=0.8):
                _log.warning("This program has no flag --%s, and leaves it; is it to be --%s?", name, near[0])
        self.__dict__["_parsed"] = vars(parsed)
        return [*arguments[:1], *rest]

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise AttributeError(f"Unknown flag: {name}. Flags of this program: {sorted(self._names)}")

    def _parse_flags(self, args: Sequence[str] | None = None) -> None:
        # What programs for TensorFlow before 1.5 call to have the command line parsed at once.
        self([sys.argv[0], *(sys.argv[1:] if args is None else args)])

    def __getattr__(self, name: str) -> Any:
        if name == "__flags":
            # And how they list all flags.
            return self.flag_values_dict()
        self._check(name)
        if name in self._by_hand:
            return self._by_hand[name]
        if self._parsed is None:
            self(sys.argv)
        assert self._parsed is not None
        return self._parsed[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name)
        self._by_hand[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __dir__(self) -> list[str]:
        return sorted(self._names)

    def flag_values_dict(self) -> dict[str, Any]:
        """Give all flags and their values."""
        return {name: getattr(self, name) for name in self}


FLAGS = FlagValues()


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _truth(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() in _TRUE


def _definer(function: str, kind: str, read: Callable[[str], Any], *extra: str) -> Callable[..., None]:
    """Give a function that defines flags, whose arguments have the names of TensorFlow 1.5 or those of before."""
    old = {"flag_name": "name", "default_value": "default", "docstring": "help"}
    arguments = ("name", "default", *extra, "help")

    @named(function, f"Define a flag whose value is {kind}: {', '.join(map('`{}`'.format, arguments))}.")
    def define(*args: Any, **kwargs: Any) -> None:
        given = dict(zip(arguments, args, strict=False))
        FLAGS.define(**given, **{old.get(name, name): value for name, value in kwargs.items()}, read=read)

    return define


DEFINE_string = _definer("DEFINE_string", "a string", str)
DEFINE_integer = _definer("DEFINE_integer", "an int", int)
DEFINE_float = _definer("DEFINE_float", "a float", float)
DEFINE_bool = DEFINE_boolean = _definer(
    "DEFINE_boolean", "True by `--name` or `--name=true`, False by `--noname` or `--name=false`", _truth
)
DEFINE_enum = _definer("DEFINE_enum", "one of some words", str, "enum_values")
DEFINE_list = _definer("DEFINE_list", "a list of strings, separated by commas on the command line", _split)


def mark_flag_as_required(flag_name: str) -> None:
    """Make parsing fail when the flag is not given."""
    FLAGS.require(flag_name)
