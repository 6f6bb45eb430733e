"""The types of the extension module: _core_stubs has a file per group of its bindings."""

from pyflow._core_stubs.files import (
    Checkpoint,
    GgufFile,
    SafetensorsFile,
    TensorRow,
    TorchFile,
    open_checkpoint,
    pickle_globals,
    read_head,
)
from pyflow._core_stubs.machine import (
    Placement,
    ThreadPool,
    binding_refusal,
    cpu_info,
    memory_policy,
    read_bandwidth,
)
from pyflow._core_stubs.model import MAX_BATCH, MAX_SEQUENCES, Context, InputMoments, Stage
from pyflow._core_stubs.quant import (
    Feedback,
    Requantizer,
    dequantize,
    quantize,
    runnable_isas,
    weight_formats,
)
from pyflow._core_stubs.sampler import Sampled, Sampler
from pyflow._core_stubs.speculate import (
    POLICIES,
    Draft,
    Verified,
    abort,
    commit,
    exit_layer,
    guess,
    verify,
)

__all__ = [
    "MAX_BATCH",
    "MAX_SEQUENCES",
    "POLICIES",
    "Checkpoint",
    "Context",
    "Draft",
    "Feedback",
    "GgufFile",
    "InputMoments",
    "Placement",
    "Requantizer",
    "SafetensorsFile",
    "Sampled",
    "Sampler",
    "Stage",
    "TensorRow",
    "ThreadPool",
    "TorchFile",
    "Verified",
    "abort",
    "binding_refusal",
    "commit",
    "cpu_info",
    "dequantize",
    "exit_layer",
    "guess",
    "memory_policy",
    "open_checkpoint",
    "pickle_globals",
    "quantize",
    "read_bandwidth",
    "read_head",
    "runnable_isas",
    "verify",
    "weight_formats",
]
