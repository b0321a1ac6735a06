"""The pages for those who change the code: every module they name is there, and every word of the glossary is used."""

import re
import sys

from doc_blocks import ROOT, pages, prose

sys.path.insert(0, str(ROOT / "scripts"))
import module_map

MAX_COLUMNS = 120
GLOSSARY = ROOT / "docs" / "glossary.md"
FOLDERS = "src/globalstep|ps|worker|chief|deploy|proto|tests|scripts|benchmarks"


def test_every_module_that_a_page_names_is_there():
    named = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[a-z0-9_/]+\.(?:py|proto))\b")
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        if page.name != "CHANGELOG.md"
        for name in named.findall(page.read_text())
        if not (ROOT / name).is_file()
    ]
    assert not gone


def test_the_map_of_the_modules_has_a_line_for_each():
    lines = module_map.page().splitlines()
    assert "| `shard` | A shard: the state machine of one PS task, with one door. |" in lines
    assert sum(line.startswith("| `") for line in lines) == sum(
        path.name != "__init__.py" for path in module_map.sources()
    )


def test_every_word_of_the_glossary_is_used():
    words = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text(), re.MULTILINE)
    sources = [*module_map.sources(), *(page for page in pages() if page not in (GLOSSARY, ROOT / "CHANGELOG.md"))]
    text = "\n".join(path.read_text() for path in sources)
    unused = [
        word
        for cell in words
        for word in cell.split(", ")
        if word not in ("word", "---") and not re.search(rf"\b{re.escape(word)}s?\b", text, re.IGNORECASE)
    ]
    assert not unused


def test_lines_of_prose_are_not_too_long():
    long = [
        f"{page.relative_to(ROOT)}:{number}: {len(line)}"
        for page in pages()
        if page.name != "CHANGELOG.md"
        for number, line in prose(page)
        if len(line) > MAX_COLUMNS
    ]
    assert not long
