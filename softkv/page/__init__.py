"""A page that shows how lookups come about: one HTML file that needs no network, or what a server shows at /.

`scene.py` takes from a store what the page shows, `writer.py` joins it with the page's own files into one document. All
arithmetic is done by the page itself, in float64.

Does not look anything up.
"""

from softkv.page.scene import FIELDS, PageQueries, scene_of
from softkv.page.writer import document, policy, write

__all__ = ["FIELDS", "PageQueries", "document", "policy", "scene_of", "write"]
