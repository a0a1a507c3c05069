"""The site: sphinx, furo and MyST, built strict (`make docs`)."""

import re
import subprocess
import sys
from importlib.metadata import version as installed_version

import latex2mathml.converter
from docutils.nodes import SkipNode

project = "pullback"
author = "The pullback authors"
copyright = "The pullback authors"
version = release = installed_version("pullback")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The site loads nothing from elsewhere: formulas are MathML, which browsers draw by themselves.
html_math_renderer = "mathml"
html_theme = "furo"
html_extra_path = ["../llms.txt"]
html_title = f"pullback {version}"
exclude_patterns = ["_build"]

# A docstring writes code in single backticks, so that it reads well in a terminal too.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Formula", "Source", "Shape"]
autodoc_member_order = "groupwise"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_use_unqualified_type_names = True


def escape_bars(*event):
    """A bar in a docstring is an absolute value, not a substitution."""
    lines = event[-1]
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "|", "+")):
            pieces = re.split(r"(`+[^`]*`+)", line)
            pieces[::2] = [piece.replace("|", r"\|") for piece in pieces[::2]]
            lines[number] = "".join(pieces)


def inline_formula(translator, node):
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise SkipNode


def formula(translator, node):
    markup = latex2mathml.converter.convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{markup}</div>')
    raise SkipNode


def add_unreleased(app, docname, source):
    """What the next version brings stands in fragments until it is released."""
    if docname == "changelog":
        towncrier = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "Next"]
        root = app.srcdir.parent
        done = subprocess.run(towncrier, cwd=root, capture_output=True, text=True, check=True)
        source[0] += "\n" + done.stdout[done.stdout.find("## ") :]


def setup(app):
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("source-read", add_unreleased)
    app.connect("autodoc-process-docstring", escape_bars)
