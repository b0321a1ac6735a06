"""The pages of the documentation: links, the site, and that it names everything public."""

import inspect
import re
import sys
import types
from urllib.parse import unquote

import pytest
from doc_blocks import ROOT, anchors, links, pages

sys.path.insert(0, str(ROOT / "scripts"))
import api_pages
import check_site
import cli_page

INDEX = ROOT / "docs" / "index.md"
API = api_pages.public_names()


def _local_links(page):
    for line, target in links(page):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = unquote(target).partition("#")
            yield line, (page.parent / path).resolve() if path else page, anchor


def test_every_link_leads_somewhere():
    broken = []
    for page in pages():
        for line, path, anchor in _local_links(page):
            place = f"{page.relative_to(ROOT)}:{line}"
            if not path.is_relative_to(ROOT) or not path.is_file():
                broken.append(f"{place}: no file {path}")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                broken.append(f"{place}: {path.name} has no heading #{anchor}")
    assert not broken


def test_every_page_is_reached_from_the_first():
    reached, ahead = set(), [INDEX]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += [path for _, path, _ in _local_links(page) if path.suffix == ".md" and path.is_file()]
    assert not [
        str(page.relative_to(ROOT)) for page in pages() if page.is_relative_to(ROOT / "docs") and page not in reached
    ]


def test_what_a_site_lacks_is_said(tmp_path, capsys):
    """`make docs` asks after it has built one."""
    site = tmp_path / "docs" / "api"
    site.mkdir(parents=True)
    (tmp_path / "objects.inv").write_bytes(bytes(2000))
    for page in pages():
        if page.is_relative_to(ROOT / "docs"):
            built = (tmp_path / page.relative_to(ROOT)).with_suffix(".html")
            built.parent.mkdir(parents=True, exist_ok=True)
            built.touch()
    for page, names in API.items():
        anchors_of = "".join(f'<i id="{name.path}">{name.short}</i>' for name in names)
        (site / f"{api_pages.page_name(page)}.html").write_text(anchors_of)
    assert check_site.lacks(tmp_path) == []
    (tmp_path / "docs" / "modes.html").unlink()
    (tmp_path / "objects.inv").unlink()
    changed = site / f"{api_pages.page_name(next(iter(API)))}.html"
    name = next(iter(API.values()))[0]
    changed.write_text(changed.read_text().replace(f'id="{name.path}">{name.short}', ""))
    found = check_site.lacks(tmp_path)
    assert [line for line in found if "modes.md" in line]
    assert [line for line in found if "no inventory" in line]
    assert [line for line in found if line.endswith(f"does not have {name.path}")]
    assert len(found) == 3


def _is_documented(value):
    """Whether it has a docstring of its own, of some words."""
    text = inspect.getdoc(value) or ""
    inherited = not inspect.isclass(value) or value.__doc__ is not None
    return inherited and len(text.split()) >= 2


@pytest.mark.parametrize("page", list(API), ids=api_pages.page_name)
def test_every_public_name_is_documented(page):
    names = API[page]
    assert names
    described = api_pages.text(page, names)
    for name in names:
        assert (name.path if name.canonical == name.path else name.short) in described
        if callable(name.value) and not hasattr(name.value, "DESCRIPTOR"):
            assert _is_documented(name.value), f"{name.path} has no docstring"


@pytest.mark.parametrize("page", list(API), ids=api_pages.page_name)
def test_public_functions_name_their_arguments(page):
    """What a function takes stands below Args, unless its text or the first line names it."""
    silent = []
    for name in API[page]:
        if inspect.isfunction(name.value) and name.canonical == name.path:
            parameters = inspect.signature(name.value).parameters.values()
            needed = [each.name for each in parameters if each.default is each.empty and each.kind in (0, 1, 3)]
            text = inspect.getdoc(name.value) or ""
            missing = [each for each in needed if not each.startswith("_") and not re.search(rf"\b{each}\b", text)]
            if missing and not _plain(needed, text):
                silent.append((name.path, missing))
    assert not silent


def _plain(needed, text):
    """Whether there is so little to say that the first line says it: one or two arguments, elementwise."""
    return len(needed) <= 2 and bool(text)


def test_every_public_module_has_a_page():
    import globalstep as gs

    modules = [name for name in gs.__all__ if isinstance(getattr(gs, name), types.ModuleType)]
    paged = {page.partition(".")[0] for page in api_pages.MODULES}
    # What has no page holds names that are described elsewhere.
    assert not [name for name in modules if name not in {*paged, "core", "dtypes", "examples", "python"}]


def test_every_command_and_option_is_documented():
    text = cli_page.filled(cli_page.PAGE.read_text())
    found = cli_page.commands()
    assert {"globalstep launch", "globalstep checkpoint import", "python -m globalstep.ps"} <= set(found)
    for name, parser in found.items():
        section = text.partition(f" `{name}`\n")[2].partition("\n## ")[0].partition("\n### ")[0]
        assert section, f"docs/cli.md has no {name}"
        for action in parser._actions:
            for option in {*action.option_strings} - {"-h", "--help"}:
                assert option in section, f"docs/cli.md: {name} has no {option}"
        assert not [typed for typed, meaning in cli_page.arguments(parser) if not meaning], f"{name}: no help"
