"""Sphinx configuration: `make docs` builds the site into build/docs."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

from tf_onebit._version import __version__  # noqa: E402

project = "tf_onebit"
release = version = __version__
copyright = "the authors of tf_onebit, Apache License 2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]

# Pages are written in Markdown that reads well on a code host, too.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# TensorFlow's, which docstrings name as programs catch them.
nitpick_ignore = [
    ("py:exc", "InvalidArgumentError"),
    ("py:exc", "UnknownError"),
]

# In docstrings `name` is code, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # Keras' of every method of a callback, for example
# Docstrings say what types are. Annotations show names of private modules.
autodoc_typehints = "none"
napoleon_attr_annotations = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"tf_onebit {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
templates_path = ["_templates"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
# Code without a language in Markdown is text: outputs, shell, equations of docstrings.
highlight_language = "text"

# Files beside the pages that are pages of the site, too. Links to them lead there.
INCLUDED = {
    "../benchmarks/README.md": "benchmarks.md",
    "../examples/keras_fit/README.md": "examples_keras_fit.md",
    "../examples/speech/README.md": "examples_speech.md",
    "../reproduction/README.md": "reproduction.md",
}


def link_to_included(app, docname, source):
    for path, page in INCLUDED.items():
        source[0] = source[0].replace(f"]({path}", f"]({page}")


# MathJax would come from another host. Browsers show MathML, and screen readers read it.
def write_math(translator, node):
    is_block = isinstance(node, nodes.math_block)
    tag = "div" if is_block else "span"
    translator.body.append(translator.starttag(node, tag, "", CLASS="math notranslate nohighlight"))
    translator.body.append(f"{tex2mathml(node.astext(), as_block=is_block)}</{tag}>")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("source-read", link_to_included)
    app.connect("include-read", lambda app, path, *page: link_to_included(app, *page))
    return {"parallel_read_safe": True}
