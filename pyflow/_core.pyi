"""The types of the extension module: _core_stubs has a file per group of its bindings."""

# ruff: noqa: F403
from pyflow._core_stubs.adapters import *
from pyflow._core_stubs.files import *
from pyflow._core_stubs.link import *
from pyflow._core_stubs.machine import *
from pyflow._core_stubs.model import *
from pyflow._core_stubs.quant import *
from pyflow._core_stubs.sampler import *
from pyflow._core_stubs.step import *
