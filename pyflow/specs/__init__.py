"""Model specs: TOML files that describe models, and the `ModelSpec` built from one.

    describe(checkpoint).spec

A checkpoint is described by a pyflow.toml in its folder, or else by the spec of its family (in
pyflow/families), which GGUF's metadata or a config.json in its folder names. docs/add-a-model.md
has the grammar.
"""

from pyflow.specs.bind.describe import Description, build_spec, describe
from pyflow.specs.bind.naming import naming

__all__ = ["Description", "build_spec", "describe", "naming"]
