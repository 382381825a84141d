"""The kernels' structures as Python sees them, and the calls. Field by field what kernels/*.h and *.c declare."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p

from torch import Tensor


class CMatrix(Structure):
    """`matrix` of product.h."""

    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
    )


class CNorm(Structure):
    """`norm` of rows.h."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))


class CLayer(Structure):
    """`layer` of encoder.c."""

    _fields_ = (
        ("qkv", CMatrix),
        ("output", CMatrix),
        ("inner", CMatrix),
        ("outer", CMatrix),
        ("around_attention", CNorm),
        ("around_ffn", CNorm),
        ("heads", c_int64),
    )


class CEncoder(Structure):
    """`encoder` of encoder.c."""

    _fields_ = (
        ("hidden", c_int64),
        ("stride", c_int64),
        ("head_size", c_int64),
        ("num_layers", c_int64),
        ("pre_norm", c_int64),
        ("activation", c_int64),
        ("quantised", c_int64),
        ("layers", POINTER(CLayer)),
        ("final", CNorm),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("segments", c_void_p),
        ("vocabulary", c_int64),
        ("num_positions", c_int64),
        ("num_segments", c_int64),
        ("token_scale", c_float),
        ("embedding", CNorm),
    )


class CCross(Structure):
    """`cross` of decoder.h."""

    _fields_ = (
        ("query", CMatrix),
        ("memory", CMatrix),
        ("output", CMatrix),
        ("around", CNorm),
        ("heads", c_int64),
    )


class CDecoder(Structure):
    """`decoder` of decoder.h."""

    _fields_ = (
        ("stack", CEncoder),
        ("crosses", POINTER(CCross)),
        ("output", CMatrix),
        ("vocabulary", c_int64),
    )


class CSearch(Structure):
    """`search` of search.h."""

    _fields_ = (
        ("reader", POINTER(CEncoder)),
        ("writer", POINTER(CDecoder)),
        ("ids", c_void_p),
        ("lengths", c_void_p),
        ("sentences", c_int64),
        ("limits", c_void_p),
        ("prefixes", c_void_p),
        ("prefix_lengths", c_void_p),
        ("width", c_int64),
        ("num_best", c_int64),
        ("at_once", c_int64),
        ("start", c_int64),
        ("end", c_int64),
        ("never", c_void_p),
        ("num_never", c_int64),
        ("min_length", c_int64),
        ("no_repeat", c_int64),
        ("divisors", c_void_p),
        ("out_ids", c_void_p),
        ("out_lengths", c_void_p),
        ("out_log_probabilities", c_void_p),
        ("out_finished", c_void_p),
        ("stop", c_void_p),
    )


class CStep(Structure):
    """`given_step` of unmask.c."""

    _fields_ = (
        ("model", POINTER(CDecoder)),
        ("count", c_int64),
        ("position", c_int64),
        ("capacity", c_int64),
        ("ids", c_void_p),
        ("sources", c_void_p),
        ("lengths", c_void_p),
        ("key_starts", c_void_p),
        ("value_starts", c_void_p),
        ("source_keys", c_void_p),
        ("source_values", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("logits", c_void_p),
    )


def declare(code: ctypes.CDLL) -> ctypes.CDLL:
    """The same code with the types of its functions."""
    code.unmask_encode.argtypes = [
        POINTER(CEncoder),
        c_void_p,
        c_void_p,
        c_void_p,
        c_void_p,
        c_int64,
        c_void_p,
        c_int64,
        c_void_p,
        c_int,
    ]
    code.unmask_encode.restype = c_int
    code.unmask_search.argtypes = [POINTER(CSearch), c_int]
    code.unmask_search.restype = c_int
    code.unmask_step.argtypes = [POINTER(CStep), c_int]
    code.unmask_step.restype = c_int
    addresses = (c_void_p, c_void_p, c_void_p, c_void_p)
    code.unmask_remember.argtypes = [POINTER(CDecoder), c_void_p, c_void_p, c_int64, *addresses]
    code.unmask_remember.restype = c_int
    code.unmask_has_int8.argtypes = []
    code.unmask_has_int8.restype = c_int
    return code


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie. They must stay there while the kernels may read them."""
    return None if tensor is None else tensor.data_ptr()
