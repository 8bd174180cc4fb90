"""The site: ``pip install '.[docs]' && sphinx-build -W --keep-going -b html docs site``."""

from sphinx.ext.napoleon import GoogleDocstring

project = 'capturekit'
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
exclude_patterns = ['README.md']  # index.rst includes it
html_theme = 'furo'
html_title = 'capturekit'
html_static_path = ['_static']
html_css_files = ['site.css']
html_show_copyright = False
highlight_language = 'none'
myst_heading_anchors = 3
autodoc_class_signature = 'separated'  # most classes have no public constructor
autodoc_default_options = {'members': True, 'exclude-members': '__init__, counted, add'}
autodoc_member_order = 'bysource'
autodoc_typehints = 'none'

# "The origin: the stream on which the capture began." is a sentence: what is before the colon is no type.
GoogleDocstring._consume_inline_attribute = lambda self: ('', self._dedent(self._consume_to_end()))
