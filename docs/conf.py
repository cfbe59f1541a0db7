"""How Sphinx builds these pages: `make docs`."""

import re
from importlib.metadata import version as _version
from typing import Any

project = "bursar"
author = "the bursar authors"
release = version = _version("bursar")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bursar"
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 3
autodoc_default_options = {"undoc-members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# A single backquote is code, as in the source.
default_role = "code"

_ROW = re.compile(r"(\w[\w, ]*?) {2,}(\S.*)")


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _mark_up)


def _mark_up(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written to be read as they stand. Two things in them mean something else to
    Sphinx: a row of a table ("name   what it is") becomes a definition, an indented block code."""
    written: list[str] = []
    in_row = False
    for line in lines:
        row = _ROW.fullmatch(line)
        if row:
            written += [row[1], f"    {row[2]}"]
        elif in_row and line.startswith(" "):
            written.append(f"    {line.strip()}")
        else:
            if line.startswith(" ") and (not written or not written[-1]):
                written += ["::", ""]
            written.append(line)
        in_row = bool(row) or (in_row and bool(line.strip()))
    lines[:] = written
