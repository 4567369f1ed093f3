"""Settings of Sphinx for this documentation; rosdoc2 finds them here. ``scripts/docs`` builds the site."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

PACKAGE = ElementTree.parse(Path(__file__).parents[1] / "package.xml").getroot()

project = str(PACKAGE.findtext("name"))
version = release = str(PACKAGE.findtext("version"))
author = str(PACKAGE.findtext("maintainer"))
extensions = ["myst_parser"]
exclude_patterns = ["results/notes/*"]
html_theme = "furo"
html_title = project
myst_heading_anchors = 4
myst_links_external_new_tab = True
