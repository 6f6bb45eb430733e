"""GBNF, the grammars of llama.cpp: read, checked, and written in the library's language."""

from pyflow.constrain.gbnf.parse import parse
from pyflow.constrain.gbnf.write import written

__all__ = ["parse", "written"]
