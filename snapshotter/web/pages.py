"""All pages people read, as one blueprint: importing a module of routes enters them.

Rendered on the server; scripts only add the explorable graph, copying and live state.
"""

from __future__ import annotations

from snapshotter.web import comparing, overview, parts, tabs
from snapshotter.web.site import pages

__all__ = ["comparing", "overview", "pages", "parts", "tabs"]
