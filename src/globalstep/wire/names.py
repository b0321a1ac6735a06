"""Rules for names on the wire, and their longest: Variables, optimizers, tasks, ids of clients.

Names come into error texts, log lines, terminals, and tables that are kept: all of them are looked at where they come
in, so that no code behind it has to.

Layer: shared. Imports nothing of globalstep but errors. Threads: functions are pure.
"""

from __future__ import annotations

import re

from globalstep.errors import InvalidArgumentError

#: The Variable that counts the steps of a training program.
GLOBAL_STEP = "global_step"
#: Most characters of a client's id, of a task's name, and of a Variable's, an optimizer's or a hyper-parameter's.
ID_CHARACTERS = 128
TASK_CHARACTERS = 256
NAME_CHARACTERS = 1024
#: Of a queue's.
QUEUE_CHARACTERS = 256

#: TensorFlow's characters of names, and those that globalstep's own names have besides: "#" of a Variable's parts.
_NAME = re.compile(r"[\w.\\/>#:-]+", re.ASCII)
_NAME_SAYS = r"letters, digits and _.\/>#:-"
#: Clients choose their ids; none of these characters ends a line, or is a terminal's.
_ID = re.compile(r"[\w.\\/>#:@+=,~ -]+", re.ASCII)
#: Controls of C0 and C1, ends of lines, and marks that change the direction of writing.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200e\u200f]")
#: Ids, and names, that have been found to be good: a push bears some.
GOOD_IDS: set[str] = set()
GOOD_NAMES: set[str] = set()
_MOST_GOOD = 4096
_SHOWN_CHARACTERS = 80


def printable(text: str) -> str:
    r"""Give a text as a terminal may have it: what would speak to it, or turn the line around, is escaped.

    >>> printable("worker:1"), printable("a\x1b[2J\nb")
    ('worker:1', 'a\\x1b[2J\\nb')
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shown(name: str) -> str:
    r"""Give a name as a message may have it: quoted, escaped and not too long.

    >>> shown("w"), shown("a\nb"), len(shown("x" * 1000))
    ("'w'", "'a\\nb'", 103)
    """
    if len(name) <= _SHOWN_CHARACTERS:
        return ascii(name)
    return f"{name[:_SHOWN_CHARACTERS]!a}... ({len(name)} characters)"


def check_name(name: str, what: str) -> None:
    """Refuse what cannot be the name of a Variable, an optimizer or a hyper-parameter.

    Raises:
        InvalidArgumentError: If it is empty, too long, or has other characters than names have.
    """
    if not name:
        raise _refusal(name, what, NAME_CHARACTERS, _NAME_SAYS)
    check_name_if_any(name, what)


def check_name_if_any(name: str, field: str) -> None:
    """Refuse what cannot be such a name; none at all may be. Raises as `check_name`."""
    if name in GOOD_NAMES or not name:
        return
    if len(name) > NAME_CHARACTERS or _NAME.fullmatch(name) is None:
        raise _refusal(name, field, NAME_CHARACTERS, _NAME_SAYS)
    if len(name) <= ID_CHARACTERS:  # longer ones are looked at each time
        _remember(name, GOOD_NAMES)


def _remember(text: str, good: set[str]) -> None:
    # Adding and clearing are atomic each; one too many does no harm.
    if len(good) >= _MOST_GOOD:
        good.clear()
    good.add(text)


def check_task(name: str, field: str = "") -> None:
    """Refuse what cannot be the name of a task; none at all may be.

    Raises:
        InvalidArgumentError: If it is too long, or has other characters than names have.
    """
    if name and (len(name) > TASK_CHARACTERS or _ID.fullmatch(name) is None):
        raise _refusal(name, "a task", TASK_CHARACTERS, r"letters, digits, spaces and _.\/>#:@+=,~-")


def check_id(name: str, field: str = "") -> None:
    """Refuse what cannot be the id of a client; none at all may be.

    Raises:
        InvalidArgumentError: If it is too long, or has other characters than ids have.
    """
    if name in GOOD_IDS or not name:
        return
    if len(name) > ID_CHARACTERS or _ID.fullmatch(name) is None:
        raise _refusal(name, "a client", ID_CHARACTERS, r"letters, digits, spaces and _.\/>#:@+=,~-")
    _remember(name, GOOD_IDS)


def check_queue_name(name: str, field: str = "") -> None:
    """Refuse what cannot be the name of a queue that tasks share.

    Raises:
        InvalidArgumentError: If it is empty, too long, or has other characters than names have.
    """
    if len(name) > QUEUE_CHARACTERS or _ID.fullmatch(name) is None:
        raise _refusal(name, "a queue", QUEUE_CHARACTERS, r"letters, digits, spaces and _.\/>#:@+=,~-")


def _refusal(name: str, what: str, most: int, characters: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{shown(name)} cannot name {what}: 1 to {most} characters are needed, and only {characters}."
    )
