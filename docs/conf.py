"""The documentation site: `make docs` builds it into docs/_build/html, without a network, and stops at the first warning."""

from __future__ import annotations

import sys
from pathlib import Path

import fedkin

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "fedkin"
author = "the fedkin authors"
copyright = "the fedkin authors"
version = release = fedkin.__version__
language = "en_GB"

extensions = [
    "myst_nb",  # Markdown pages and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "reference_pages",  # ours: commands, settings, methods and the API, from the code
]
exclude_patterns = ["_build"]

# Pages are read on GitHub as well: headings can be linked to, nothing else of Markdown is extended.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# Notebooks are stored without outputs and run when the site is built; one that fails fails the build.
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_ipywidgets_js: dict[str, object] = {}  # would be fetched by the reader's browser

autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
add_module_names = False
smartquotes_action = "qe"  # dashes stay as they are: --seed is no dash
default_role = "code"  # docstrings write `names` as Markdown does
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"fedkin {release}"
html_favicon = "_static/kin.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c6b", "color-brand-content": "#0b5c6b"},
    "dark_css_variables": {"color-brand-primary": "#6fc3d0", "color-brand-content": "#6fc3d0"},
}
