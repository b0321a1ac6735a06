"""Every code block of the documentation is executed as it stands, or says why it is not."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections import Counter

import pytest
from doc_blocks import EXECUTED, ROOT, SHOWN, blocks, pages

ALL = {page: blocks(page) for page in pages()}
#: A program that needs no other package; it is in the folder of every page as train.py.
TRAINER = next(block for block in ALL[ROOT / "docs" / "porting.md"] if block.file == "train.py")

#: A block that takes longer hangs, even where the machine has much else to do.
SECONDS = 180


def _is_executed(block):
    return block.language in EXECUTED and not block.skip and not block.file


def test_every_block_has_a_language_that_says_what_becomes_of_it():
    unknown = [
        f"{block.place}: {block.language or 'no language'}"
        for found in ALL.values()
        for block in found
        if block.language not in EXECUTED | SHOWN
    ]
    assert not unknown, f"name the language after the fence, one of {sorted(EXECUTED | SHOWN)}: {unknown}"


def test_a_block_that_is_not_executed_says_why():
    found = [block for page in ALL.values() for block in page if block.language in EXECUTED]
    assert not [block.place for block in found if block.skip and len(block.skip.split()) < 3]
    executed = sum(map(_is_executed, found))
    counts = Counter(block.language for block in found if _is_executed(block))
    print(f"{executed} of {len(found)} blocks are executed: {dict(counts)}")
    # What is skipped is the exception.
    assert executed > sum(1 for block in found if block.skip)


def test_commands_of_make_exist():
    targets = {
        line.partition(":")[0]
        for line in (ROOT / "Makefile").read_text().splitlines()
        if ":" in line and line[0] != "\t"
    }
    wanted = [
        (block.place, line.split()[1])
        for page in ALL.values()
        for block in page
        if block.language in EXECUTED
        for line in block.text.splitlines()
        if line.startswith("make ") and not line.split()[1].startswith("-")
    ]
    assert wanted
    assert not [found for found in wanted if found[1] not in targets]


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.transcript) for page in ALL.values() for b in page if b.transcript]
)
def test_a_run_is_shown_as_its_transcript_has_it(block):
    left = (ROOT / "tests" / "transcripts" / f"{block.transcript}.txt").read_text()
    for part in block.text.split("...\n"):
        before, _, after = left.partition(part)
        assert before != left, f"{block.place}: the transcript has no {part}"
        assert before[-1:] in ("", "\n"), f"{block.place}: not whole lines: {part}"
        left = after


class _Page:
    """Executes the blocks of a page, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.program: list = []
        self.missing: list[str] = []
        (folder / "train.py").write_text(TRAINER.text)
        for name in ("examples", "tests", "scripts"):
            (folder / name).symlink_to(ROOT / name)
        scripts = os.path.dirname(sys.executable)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GLOBALSTEP_", "TF_CONFIG"))},
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "REPOSITORY": str(ROOT),
        }

    def add(self, block):
        if block.file:
            (self.folder / block.file).write_text(block.text)
        elif _is_executed(block):
            missing = [package for package in block.needs if importlib.util.find_spec(package) is None]
            if missing:
                self.missing += missing
            elif block.language == "python":
                if block.new_program:
                    self.finish()
                self.program.append(block)
            else:
                self.finish()
                self._run(["bash", "-euo", "pipefail", "-c", block.setup + _commands(block)], block)

    def finish(self):
        """Execute the Python blocks since the last other one, as one program."""
        if self.program:
            # A traceback shows the lines around the place.
            text = ""
            for block in self.program:
                text += block.setup + f"# {block.place}\n" + block.text
            (self.folder / "_blocks.py").write_text(text)
            block, self.program = self.program[-1], []
            self._run([sys.executable, "_blocks.py"], block)

    def _run(self, command, block):
        path = self.folder / "_output.txt"
        # What a block leaves running would keep a pipe open, so it is a file; and a session, so that it can be ended.
        with path.open("w") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                code = f"no end within {SECONDS} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert code == block.exit_code, f"{block.place} ended with {code}:\n{path.read_text()[-3000:]}"


def _commands(block):
    text = _typed(block)
    with contextlib.ExitStack() as held:
        # All are free at once, so they differ.
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in block.ports]
        free = [each.getsockname()[1] for each in sockets]
    for port, other in zip(block.ports, free, strict=True):
        text = text.replace(port, str(other))
    return text


def _typed(block):
    if block.language in ("bash", "sh"):
        return block.text
    return "\n".join(line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ "))


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT))) for page in ALL if any(map(_is_executed, ALL[page]))],
)
def test_blocks(page, tmp_path):
    running = _Page(tmp_path)
    for block in ALL[page]:
        running.add(block)
    running.finish()
    if running.missing:
        pytest.skip(f"the other blocks ran; {', '.join(running.missing)} is not installed")
