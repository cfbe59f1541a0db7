"""How Sphinx builds these pages: `make docs`."""

from importlib.metadata import version as _version

project = "bursar"
author = "the bursar authors"
release = version = _version("bursar")
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "bursar"
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 3
