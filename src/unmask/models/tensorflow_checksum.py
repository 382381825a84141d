"""CRC-32C (Castagnoli) with numpy: fast enough to check every byte of a checkpoint.

A CRC is linear: the register after `a + b` is (the register after `a`, moved over `len(b)` zero bytes) xor
(the register after `b`, started at zero). So the bytes are laid out in thousands of lanes that advance together,
four bytes a step, and the lanes are then folded in pairs. A plain Python loop would take a minute for a BERT.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LANE = 1024  # bytes in one lane
_BLOCK = 8 * 2**20  # bytes taken at a time, so that memory stays bounded
_SMALL_LANE = 64


def crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """The CRC-32C of some bytes."""
    octets = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    length = octets.size
    # Zero bytes do not move a register that is zero, so the odd part goes first, padded at its front.
    start = length % _BLOCK
    register = _from_zero(octets[:start])
    for begin in range(start, length, _BLOCK):
        register = _move(register, _BLOCK) ^ _from_zero(octets[begin : begin + _BLOCK])
    return register ^ _move(_ONES, length) ^ _ONES


def masked_crc32c(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """The form in which files hold it: rotated and shifted, so that a checksum of checksums means something."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES


def _from_zero(octets: npt.NDArray[np.uint8]) -> int:
    """The register after these bytes, having started at zero."""
    if octets.size == 0:
        return 0
    lane = _LANE if octets.size > 256 * _LANE else _SMALL_LANE
    lanes = 1 << (-(-octets.size // lane) - 1).bit_length()
    if lanes * lane == octets.size:
        padded = np.ascontiguousarray(octets)
    else:
        padded = np.zeros(lanes * lane, np.uint8)
        padded[-octets.size :] = octets
    steps = np.ascontiguousarray(padded.view("<u4").reshape(lanes, lane // 4).T)
    low, high = _step_tables()
    registers = np.zeros(lanes, np.uint32)
    for words in steps:
        registers ^= words
        registers = low[registers & 0xFFFF] ^ high[registers >> 16]
    while registers.size > 1:
        low, high = _tables(lane)
        left = registers[0::2]
        registers = low[left & 0xFFFF] ^ high[left >> 16] ^ registers[1::2]
        lane *= 2
    return int(registers[0])


@functools.cache
def _step_tables() -> tuple[Words, Words]:
    """A step over four bytes is a move over four zero bytes of (register xor bytes)."""
    return _tables(4)


@functools.cache
def _tables(length: int) -> tuple[Words, Words]:
    """The move over `length` zero bytes, looked up for the lower and the upper half of the register."""
    columns = _matrix(length)
    halves = []
    for part in (columns[:16], columns[16:]):
        table = np.zeros(1, np.uint32)
        for column in part:
            table = np.concatenate([table, table ^ np.uint32(column)])
        halves.append(table)
    return halves[0], halves[1]


@functools.cache
def _matrix(length: int) -> tuple[int, ...]:
    """Where each bit of a register goes when it moves over `length` (a power of two) zero bytes."""
    if length == 1:
        return tuple(_shift(1 << bit) for bit in range(32))
    half = _matrix(length // 2)
    return tuple(_apply(half, column) for column in half)


def _shift(register: int) -> int:
    for _ in range(8):
        register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)
    return register


def _apply(columns: tuple[int, ...], register: int) -> int:
    result = 0
    for bit in range(32):
        if register >> bit & 1:
            result ^= columns[bit]
    return result


def _move(register: int, length: int) -> int:
    """The register after `length` zero bytes."""
    bit = 1
    while bit <= length:
        if length & bit:
            register = _apply(_matrix(bit), register)
        bit <<= 1
    return register
