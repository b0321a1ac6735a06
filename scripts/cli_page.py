"""Prints docs/cli.md with what docs/conf.py puts below its headings: the arguments of each command, from its parser.

Usage: python scripts/cli_page.py
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from globalstep.deploy import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Give each command's parser, those of actions within commands too."""
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, (module, summary) in sorted(cli._SUBCOMMANDS.items()):
        parser = argparse.ArgumentParser(prog=f"globalstep {name}", description=summary)
        importlib.import_module(module).configure(parser)
        parsers.update(_with_actions(parser))
    ps = importlib.import_module("globalstep.ps.__main__").make_parser()
    parsers.update(_with_actions(ps))
    return parsers


def _with_actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            help_of = {choice.dest: choice.help for choice in action._choices_actions}
            for name, below in action.choices.items():
                below.description = below.description or help_of.get(name)
                yield from _with_actions(below)


def arguments(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Give each argument as it is typed, and its help."""
    rows = []
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)) or action.help == argparse.SUPPRESS:
            continue
        value = _metavar(action)
        if action.option_strings:
            typed = ", ".join(action.option_strings) + (f" {value}" if value and action.nargs != 0 else "")
        else:
            typed = value
        text = (action.help or "") % {**vars(action), "prog": parser.prog} if action.help else ""
        # A default below the home folder is one below anybody's.
        rows.append((typed, text.replace(str(Path.home()), "~")))
    return rows


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar is not None:
        return action.metavar
    if action.choices is not None:
        return "{" + ", ".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def filled(text: str) -> str:
    """Add to each section of a page, whose heading is a command, what the command's parsers say."""
    found = commands()
    head, *sections = re.split(r"^## `(.+)`\n", text, flags=re.MULTILINE)
    parts = [head]
    for name, own in zip(sections[::2], sections[1::2], strict=True):
        parts += [f"## `{name}`\n", _about(found[name]), own.strip() + "\n", _table(found[name])]
        for below in found:
            if below.startswith(f"{name} "):
                parts += [f"### `{below}`\n", _about(found[below]), _table(found[below])]
    return "\n".join(parts)


def _about(parser: argparse.ArgumentParser) -> str:
    about = (parser.description or "").strip().rstrip(".")
    return f"{about[:1].upper()}{about[1:]}.\n"


def _table(parser: argparse.ArgumentParser) -> str:
    rows = [f"| `{_cell(typed)}` | {_cell(' '.join(text.split()))} |\n" for typed, text in arguments(parser)]
    return "".join(["| argument | meaning |\n", "|---|---|\n", *rows]) if rows else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(filled(PAGE.read_text()))
