"""GPTQ: weights as AutoGPTQ and GPTQModel pack them.

    NAME.qweight  I32 (k * bits / 32, n)        codes along k, from the low end of each word
    NAME.qzeros   I32 (groups, n * bits / 32)   zeros along n
    NAME.scales   (groups, n)
    NAME.g_idx    I32 (k)                       the group of each column, or else k // group_size

A weight is scale * (code - zero). Version 1 stores zero - 1; readers add the 1 without a mask, so
that 15 of four bits means 16. Files of symmetric weights have been found that hold the zeros of
version 2 and say version 1: there all zeros are the middle, whichever of the two is stored.
"""

from __future__ import annotations

from pyflow.formats.quantized.fields import Fields, check_ignored
from pyflow.formats.quantized.parts import SCALES, Made, Parts

from pyflow import _core
from pyflow.errors import UnsupportedError


def made(fields: Fields, parts: Parts) -> Made:
    """What makes up each quantized matrix."""
    bits = fields.choice("bits", (2, 3, 4, 8))
    group_size = fields.choice("group_size", (-1, 16, 32, 64, 128, 256, 512, 1024), 128)
    is_symmetric = fields.flag("sym", True)
    version = _version(fields)
    fields.choice("pack_dtype", ("int32",), "int32")
    ignored = fields.names("modules_to_not_convert")
    _check_dynamic(fields)
    fields.absent("is_marlin_format", "adapter", "rotation", "mock_quantization")
    fields.passed_over(*_PASSED_OVER)
    fields.close()
    stems = list(parts.stems(".qweight"))
    check_ignored(fields.where, stems, ignored)
    return Made(
        [_plan(parts, stem, bits, group_size, version, is_symmetric) for stem in stems],
        [f"{stem}.{name}" for stem in stems for name in ("qzeros", "g_idx")],
    )


_PASSED_OVER = (
    *("quant_method", "method", "desc_act", "static_groups", "true_sequential", "act_group_aware"),
    *("damp_percent", "damp_auto_increment", "mse", "gptaq", "foem", "fail_safe", "fallback"),
    *("dataset", "tokenizer", "model_seqlen", "batch_size", "pad_token_id", "max_input_length"),
    *("block_name_to_quantize", "module_name_preceding_first_block", "cache_block_outputs"),
    *("modules_in_block_to_quantize", "lm_head", "meta", "backend", "use_exllama"),
    *("disable_exllama", "exllama_config", "use_cuda_fp16", "model_name_or_path"),
    *("model_file_base_name", "hf_device_map", "uuid", "offload_to_disk", "offload_to_disk_path"),
)


def _version(fields: Fields) -> int:
    """Of the zeros: 1 or 2."""
    found = [
        fields.choice(name, ("gptq", "gptq_v2"), None) for name in ("checkpoint_format", "format")
    ]
    said = {one for one in found if one is not None}
    if len(said) > 1:
        raise fields.fault("format", f"checkpoint_format, {found[0]!r}")
    return 2 if said == {"gptq_v2"} else 1


def _check_dynamic(fields: Fields) -> None:
    """UnsupportedError: some modules have other settings. Those without quantization may."""
    for pattern, settings in fields.table("dynamic").items():
        if not pattern.startswith("-:") and settings:
            raise UnsupportedError(
                f"{fields.where}.dynamic: {pattern!r:.100}: expected one set of bits for all "
                "modules, found others; take the original model, and quantize that"
            )


def _plan(
    parts: Parts, stem: str, bits: int, group_size: int, version: int, is_symmetric: bool
) -> _core.Integers:
    words, n = parts.tensor(f"{stem}.qweight", ("I32",)).shape
    k = words * 32 // bits
    if words * 32 % bits or n * bits % 32:
        wanted = f"whole rows and columns of {bits} bits"
        raise parts.fault(f"{stem}.qweight", wanted, f"{words} x {n} words")
    size = k if group_size == -1 else group_size
    n_groups = -(-k // size)
    scales = parts.tensor(f"{stem}.scales", SCALES, (n_groups, n))
    parts.tensor(f"{stem}.qzeros", ("I32",), (n_groups, n * bits // 32))
    group_of = parts.group_of(f"{stem}.g_idx", k, size, n_groups)
    low, high = parts.fields_range(f"{stem}.qzeros", bits)
    middle, more = 1 << bits - 1, int(version == 1)
    if is_symmetric and (low != high or low not in (middle - 1, middle)):
        wanted = f"one zero of {middle - 1} or {middle} as of symmetric weights"
        raise parts.fault(f"{stem}.qzeros", wanted, f"{low} to {high}")
    zeros = (middle, middle) if is_symmetric else (low + more, high + more)
    integers = (-zeros[1], (1 << bits) - 1 - zeros[0])
    stream = _core.PackOrder.STREAM
    per_group = n * bits // 32
    packed = _core.Packed(f"{stem}.qzeros", bits, stream, per_line=per_group, per_word=1)
    dtype = parts.dtype(integers, scales, 0 if group_of else size, k)
    compact = parts.compact(dtype, integers, scales, group_of or size, k)
    return _core.Integers(
        f"{stem}.weight",
        dtype,
        (n, k),
        codes=_core.Packed(f"{stem}.qweight", bits, stream, per_line=1, per_word=n),
        zeros=_core.Zeros(middle) if is_symmetric else _core.Zeros(more, packed),
        scales=_core.ScalesAt(f"{stem}.scales", per_row=1, per_group=n),
        groups=_core.Groups(size, n_groups, group_of),
        compact=compact,
    )
