"""Writes docs/cli.md: every command of `globalstep` and `python -m globalstep.ps`, from their parsers.

Usage: python scripts/cli_page.py [--check]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from globalstep.deploy import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
_HEAD = """# Command line

<!-- Made by scripts/cli_page.py from the parsers; do not edit. -->

`globalstep COMMAND --help` says the same.
"""
#: Command -> the page that tells its story.
_STORIES = {
    "globalstep audit": "audit.md",
    "globalstep checkpoint": "checkpoints.md",
    "globalstep compose": "deploy/compose.md",
    "globalstep launch": "deploy.md",
    "globalstep ray": "deploy/ray.md",
    "globalstep replay": "recovery.md",
    "globalstep slurm": "deploy/slurm.md",
    "globalstep status": "status.md",
    "globalstep where": "status.md",
    "python -m globalstep.ps": "deploy.md",
}


def commands() -> dict[str, argparse.ArgumentParser]:
    """Give each command's parser, those of actions within commands too."""
    found: dict[str, argparse.ArgumentParser] = {}
    for name, (module, summary) in sorted(cli._SUBCOMMANDS.items()):
        parser = argparse.ArgumentParser(prog=f"globalstep {name}", description=summary)
        importlib.import_module(module).configure(parser)
        found.update(_with_actions(parser))
    ps = importlib.import_module("globalstep.ps.__main__").make_parser()
    found.update(_with_actions(ps))
    return found


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
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def page() -> str:
    """Give the text of the page."""
    lines = [_HEAD]
    for name, parser in commands().items():
        depth = "##" if name.count(" ") == 1 or name.startswith("python") else "###"
        lines += [f"{depth} `{name}`", ""]
        about = (parser.description or "").strip()
        about = about[:1].upper() + about[1:]
        story = _STORIES.get(name)
        lines += [about + ("" if about.endswith(".") else ".") + (f" See [{story}]({story})." if story else ""), ""]
        rows = arguments(parser)
        if rows:
            lines += ["| argument | meaning |", "|---|---|"]
            lines += [f"| `{_cell(typed)}` | {_cell(' '.join(text.split()))} |" for typed, text in rows]
            lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page, or with --check say whether it differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    check = parser.parse_args().check
    text = page()
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{'not up to date' if check else 'written'}: docs/{PAGE.name}")
    if not check:
        PAGE.write_text(text)
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
