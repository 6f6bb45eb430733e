"""The models that pyflow knows by name, and where any model named by the user is kept."""

from pyflow.catalogue.download import Part
from pyflow.catalogue.entries import Entry, entry, models, pull, remove, speculators
from pyflow.catalogue.resolve import resolve
from pyflow.downloads import Progress, cache_dir

__all__ = [
    "Entry",
    "Part",
    "Progress",
    "cache_dir",
    "entry",
    "models",
    "pull",
    "remove",
    "resolve",
    "speculators",
]
