"""The models that pyflow can fetch by name, and where they are kept."""

from pyflow.catalogue.download import Part, Progress
from pyflow.catalogue.entries import Entry, cache_dir, entry, models, pull, remove, resolve

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
]
