"""How Sphinx makes the site of the documentation: `make docs`.

The source folder is the repository, so that the links between its Markdown files hold on the site as they do on a
code host. The table of contents is what docs/index.md links to, section by section, by the names of the links; the API
reference is made from the docstrings at each build, the tables of names from what there is.
"""

import builtins
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "integration" / "faults")]

import api_pages
import cli_page
import compatibility
import fault_matrix
from docutils import nodes
from pygments.lexers.shell import BashLexer
from pygments.token import Name, Text
from sphinx.addnodes import pending_xref
from sphinx.util import inspect

import globalstep

project = "globalstep"
author = "the globalstep authors"
project_copyright = "the globalstep authors, Apache-2.0"
version = release = globalstep.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
source_suffix = {".md": "markdown", ".ipynb": "markdown", ".rst": "restructuredtext"}
root_doc = "docs/index"
include_patterns = ["docs/**", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md",
                    "benchmarks/figures.md"]  # fmt: skip
exclude_patterns = [".*", "build", "runs", "src", "tests", "docs/site", "docs/conf.py", "**/README.md"]

html_theme = "furo"
html_title = "globalstep"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_logo = "site/static/logo.svg"
html_favicon = "site/static/logo.svg"
copybutton_prompt_text = "$ "
html_extra_path = ["site/root"]
html_copy_source = False

myst_heading_anchors = 4
# Two hyphens are those of an option.
smartquotes_action = "qe"

default_role = "code"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
nitpicky = True


class _Shell(BashLexer):
    """Takes a word for one of the shell where a command begins alone: not in `globalstep checkpoint export`."""

    def get_tokens_unprocessed(self, text, stack=("root",)):
        for at, kind, word in super().get_tokens_unprocessed(text, stack):
            begins = re.search(r"(^|[\n;&|(]|\b(do|then|else))\s*$", text[:at])
            yield at, Text if kind is Name.Builtin and not begins else kind, word


def _contents(text):
    """Give the toctrees that the links of docs/index.md stand for, one a section; at last, pages it does not name."""
    named = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        pages = re.findall(r"^- \[([^\]]+)\]\(([^)#:]+)\.(?:md|ipynb)\)", section, flags=re.MULTILINE)
        if pages:
            yield _toctree(section.partition("\n")[0].strip(), [f"{title} <{page}>" for title, page in pages])
        named += [page for _, page in pages]
    folder = ROOT / "docs"
    files = [*folder.rglob("*.md"), *folder.rglob("*.ipynb")]
    every = sorted(str(path.relative_to(folder).with_suffix("")) for path in files)
    if more := [page for page in every if page not in {*named, "index"}]:
        yield _toctree("More", more)


def _toctree(caption, pages):
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])


def _notebook(text):
    """Give a notebook as Markdown: its text, its code, and what the code printed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            # Lines with ! are commands of the shell.
            language = "bash" if source.startswith("!") else "python"
            source = f"```{language}\n{re.sub('^!', '', source, flags=re.MULTILINE)}\n```"
        parts.append(source)
        parts += ["```text\n" + "".join(output["text"]).rstrip() + "\n```" for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def _read(app, docname, source):
    if app.env.doc2path(docname).suffix == ".ipynb":
        source[0] = _notebook(source[0])
    elif docname == root_doc:
        source[0] += "\n\n" + "\n\n".join(_contents(source[0])) + "\n"
    elif docname == "docs/api":
        pages = [f"api/{api_pages.page_name(page)}" for page in api_pages.MODULES]
        source[0] += "\n".join(["", "", "```{toctree}", ":maxdepth: 1", "", *pages, "```", ""])
    elif docname == "docs/cli":
        source[0] = cli_page.filled(source[0])
    elif docname == "docs/design/testing":
        source[0] = fault_matrix.page(source[0])
    elif docname == "docs/compatibility":
        source[0] += "\n" + compatibility.tables()


def _missing(app, env, node, contnode):
    """Link a type in a signature to its public name; types of Python, numpy and our inside are only named."""
    if node.get("refdomain") != "py" or node.get("reftype") not in {"class", "obj", "exc", "data"}:
        return None
    public = _PUBLIC.get(node["reftarget"])
    if public is None or public == node["reftarget"]:
        return contnode
    found = env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, contnode)
    return found or contnode


_PAGES = api_pages.public_names()
#: Where a thing is defined, and by what bare name -> where it is described.
_PUBLIC = {
    spelling: name.canonical
    for names in _PAGES.values()
    for name in names
    for spelling in (
        f"{getattr(name.value, '__module__', '')}.{getattr(name.value, '__qualname__', '')}",
        name.path.rpartition(".")[2],
        api_pages.spelled(name.path),
    )
    # In a signature `bool` is Python's.
    if not hasattr(builtins, spelling)
}


#: Where a docstring names what has a description of its own.
_NAMES = r"`(gs\.[\w.]+)`|(?<=[Ss]ee )`(\w+)`|(?<=See )([A-Z]\w+)(?=\.)|(?<=those of )`(\w+)`|^\s*`(\w+)`(?=\.$)"


def _docstring(app, what, name, found, options, lines):
    """Take what is plain in a docstring as plain: the star of `*shape`, and fenced code."""
    fenced = False
    for number, line in enumerate(lines):
        if line.strip().startswith("```"):
            fenced = not fenced
            lines[number] = "::\n\n" if fenced else ""
        elif fenced:
            lines[number] = f"    {line}"
        elif not line.lstrip().startswith((">>>", "...")):
            line = re.sub(_NAMES, _linked, line)
            lines[number] = re.sub(r"(?<![\w*`])(\*{1,2})(?=[a-z_][\w.]*(?![\w.*]))", _escaped, line)
    lines[:] = "\n".join(lines).split("\n")


def _linked(match):
    name = match[match.lastindex]
    return f":py:obj:`{name} <{_PUBLIC[name]}>`" if name in _PUBLIC else match[0]


def _escaped(match):
    return "\\*" * len(match[1])


def _signature(app, what, name, found, options, signature, returns):
    """Leave out how Python writes a default that has no literal: `<object object at 0x7f...>`."""
    if what == "class" and signature and signature.startswith("(*args"):
        # A `__new__` that takes anything looks at what `__init__` takes.
        taken = inspect.signature(found.__init__, bound_method=True)
        signature = inspect.stringify_signature(taken, show_return_annotation=False, unqualified_typehints=True)
    return (re.sub(r"<[^<>]* object[^<>]*>", "...", signature) if signature else signature), returns


def _types(app, doctree):
    """Keep Python's own types in signatures from being taken for functions of these names: `bool`, `tuple`."""
    for node in list(doctree.findall(pending_xref)):
        is_type = node.get("refdomain") == "py" and node.get("reftype") != "exc"
        if is_type and hasattr(builtins, node["reftarget"]):
            node.replace_self(nodes.Text(node["reftarget"]))


def setup(app):
    """Make the API's pages, and say how links and contents are found."""
    api_pages.write(ROOT / "docs" / "api")
    app.add_lexer("bash", _Shell)
    # Before napoleon, which takes the sections of a docstring apart.
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-read", _types)
    app.connect("source-read", _read)
    app.connect("missing-reference", _missing)
    return {"parallel_read_safe": True}
