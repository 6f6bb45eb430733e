"""What tells models apart whose results differ."""

from __future__ import annotations

import hashlib

import numpy as np

from pyflow.formats import Checkpoint
from pyflow.specs.model_spec import ModelSpec

_WHOLE = 4096  # bytes; tensors up to this size are read whole
_N_SAMPLES, _SAMPLE = 16, 64  # pieces of a larger one, and their bytes


def fingerprint(checkpoint: Checkpoint, spec: ModelSpec) -> str:
    """A hash of a model's arithmetic and of its weights: small tensors whole, samples of others.

    Reads about a hundredth of the pages of a file of 1 GB. Weights that a fine-tuning changed
    differ nearly everywhere.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((spec.stage(), checkpoint.pack_as)).encode())
    if spec.source:
        digest.update(repr(spec.source_stage()).encode())
    for name in sorted(spec.tensors()):
        record = checkpoint.native.tensor(name)
        digest.update(repr((name, record.dtype, tuple(record.shape))).encode())
        for data in checkpoint.native.parts(name):
            if data.size <= _WHOLE:
                digest.update(data.tobytes())
                continue
            for begin in np.linspace(0, data.size - _SAMPLE, _N_SAMPLES, dtype=np.int64):
                digest.update(data[begin : begin + _SAMPLE].tobytes())
    checkpoint.native.release_all()
    return digest.hexdigest()
