"""The code blocks, links and anchors of the documentation, and what comments before a block say of its test.

A block of python, bash or console is executed as it stands, in the order of its page. An HTML comment right before it
may say otherwise:

    <!-- test: skip: needs a Slurm cluster -->          not executed, and why
    <!-- test: file train.py -->                        written to that file, for later blocks of the page
    <!-- test: exit 2 -->                               ends with this code
    <!-- test: with 100 for 10000 -->                   executed with the one text in place of the other
    <!-- test: ports 2222 2223 -->                      executed with free ports in place of these
    <!-- test: needs torch -->                          not executed where that package is not installed
    <!-- test: new program -->                          python: in a new process; else a page is one program
    <!-- test: transcript two-ps -->                    parts of tests/transcripts/two-ps.txt, ... between them
    <!-- test: setup
    lines that are executed first
    -->
"""

import itertools
import re
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
#: Languages of blocks that are executed.
EXECUTED = {"python", "bash", "sh", "console"}
#: Languages of blocks that only show something: output, files, pictures, changes.
SHOWN = {"text", "json", "yaml", "ini", "toml", "diff", "mermaid"}
_MARKDOWN = MarkdownIt("commonmark").enable("table")
#: Enough to find code blocks, and four times as fast: every process of pytest does so when it collects.
_BLOCKS_ONLY = MarkdownIt("commonmark").disable("inline")
_DIRECTIVE = re.compile(r"<!--\s*test:\s*(.*?)\s*-->", re.DOTALL)


@dataclass
class Block:
    """A code block of a page, and what is said of its test."""

    page: Path
    line: int
    language: str
    text: str
    skip: str = ""
    file: str = ""
    exit_code: int = 0
    needs: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    setup: str = ""
    new_program: bool = False
    transcript: str = ""

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages():
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if "site" not in path.relative_to(ROOT).parts)


def blocks(page):
    """Give the code blocks of a page; one that is only indented has the language "indented"."""
    found, said = [], []
    for token in _BLOCKS_ONLY.parse(page.read_text()):
        if token.type == "html_block":
            said += _DIRECTIVE.findall(token.content)
        elif token.type in ("fence", "code_block"):
            language = token.info.strip() if token.type == "fence" else "indented"
            block = Block(page, token.map[0] + 1, language, token.content)
            for directive in said:
                _apply(block, directive)
            found.append(block)
            said = []
        elif said and token.type == "paragraph_open":
            raise ValueError(f"{page.relative_to(ROOT)}:{token.map[0] + 1}: {said} is not right before a code block")
    return found


def _apply(block, directive):
    word, _, rest = directive.partition(" ")
    if word == "skip:":
        block.skip = rest
    elif word == "file":
        block.file = rest
    elif word == "exit":
        block.exit_code = int(rest)
    elif word == "ports":
        for port in rest.split():
            if port not in block.text:
                raise ValueError(f"{block.place}: no port {port} in the block")
        block.ports = rest.split()
    elif word == "needs":
        block.needs.append(rest)
    elif word == "transcript":
        block.transcript = rest
    elif directive == "new program":
        block.new_program = True
    elif directive.startswith("setup\n"):
        block.setup += textwrap.dedent(directive.removeprefix("setup\n")) + "\n"
    elif word == "with" and " for " in rest:
        new, _, old = rest.partition(" for ")
        if old not in block.text:
            raise ValueError(f"{block.place}: {old!r} is not in the block")
        block.text = block.text.replace(old, new)
    else:
        raise ValueError(f"{block.place}: unknown directive {directive!r}")


def links(page):
    """Give each link and picture of a page: (line, target)."""
    for token in _MARKDOWN.parse(page.read_text()):
        if token.type == "inline":
            for child in token.children:
                if child.type in ("link_open", "image"):
                    yield token.map[0] + 1, child.attrGet("href" if child.type == "link_open" else "src")


def prose(page):
    """Give the lines of a page that are prose: no tables, no code, nothing that a benchmark has written there."""
    lines = page.read_text().splitlines()
    written = set()
    for match in re.finditer(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", page.read_text(), re.DOTALL):
        first = page.read_text().count("\n", 0, match.start())
        written.update(range(first, first + match[0].count("\n") + 1))
    for opening, inline in itertools.pairwise(_MARKDOWN.parse(page.read_text())):
        if opening.type in ("paragraph_open", "heading_open"):
            yield from ((at + 1, lines[at]) for at in range(*inline.map) if at not in written)


def anchors(page):
    """Give the anchors of a page's headings, as code hosts and myst-parser make them."""
    tokens = _MARKDOWN.parse(page.read_text())
    seen: Counter = Counter()
    found = set()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found
