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
    code.unmask_has_int8.argtypes = []
    code.unmask_has_int8.restype = c_int
    return code


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie. They must stay there while the kernels may read them."""
    return None if tensor is None else tensor.data_ptr()
