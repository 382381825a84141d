"""The index of a TensorFlow checkpoint: a sorted string table (LevelDB's format) of protobuf messages.

    file   = block* metaindex index footer
    block  = entry* restart* count(u32)   then  kind(u8) masked-crc(u32)
    entry  = shared, added, size (varints), `added` bytes of key, `size` bytes of value
    footer = handle of metaindex, handle of index (offset, size as varints), padding to 40 bytes, magic(u64)

The index block maps keys to the handles of the data blocks. Everything is checked before it is believed:
handles against the file, checksums, the order of keys (which makes a table that points at itself impossible), and the
sizes that compression and shared prefixes could blow up.
"""

from __future__ import annotations

from collections.abc import Iterator

from unmask.models.tensorflow_checksum import masked_crc32c

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
_MAX_KEY = 4096
_MAX_BLOCK = 32 * 2**20


class TableError(Exception):
    """What is wrong with the table; the reader of the file adds its name."""


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a table, in the order of keys."""
    if len(content) < _FOOTER or int.from_bytes(content[-8:], "little") != _MAGIC:
        raise TableError("does not end like a checkpoint index, so it is cut off or something else")
    footer = content[-_FOOTER:]
    _, place = _handle(footer, 0)
    index, _ = _handle(footer, place)
    last: bytes | None = None
    for _, value in _entries(_block(content, index)):
        handle, _ = _handle(value, 0)
        for key, data in _entries(_block(content, handle)):
            if last is not None and key <= last:
                raise TableError(f"its names are not in order ({key[:60]!r} after {last[:60]!r})")
            last = key
            yield key, data


def varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of at most 64 bits, seven to the byte, and the place behind it."""
    value = 0
    for position in range(10):
        if place >= len(data):
            break
        octet = data[place]
        place += 1
        value |= (octet & 0x7F) << (7 * position)
        if octet < 0x80:
            return value & (2**64 - 1), place
    raise TableError("a number in it runs past its end")


def message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: number and raw value (an integer, or bytes for what has a length)."""
    place = 0
    while place < len(data):
        tag, place = varint(data, place)
        match tag & 7:
            case 0:
                number, place = varint(data, place)
                yield tag >> 3, number
                continue
            case 1:
                size = 8
            case 2:
                size, place = varint(data, place)
            case 5:
                size = 4
            case kind:
                raise TableError(f"a field in it has the unknown wire type {kind}")
        if size > len(data) - place:
            raise TableError("a field in it runs past its end")
        raw = data[place : place + size]
        place += size
        yield tag >> 3, raw if tag & 7 == 2 else int.from_bytes(raw, "little")


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    offset, place = varint(data, place)
    size, place = varint(data, place)
    return (offset, size), place


def _block(content: bytes, handle: tuple[int, int]) -> bytes:
    """One block, its checksum proven and its compression undone."""
    offset, size = handle
    if offset + size + _TRAILER > len(content) - _FOOTER:
        raise TableError(f"a block at byte {offset} claims {size} bytes, which is past the end of the file")
    checked = memoryview(content)[offset : offset + size + 1]
    stored = int.from_bytes(content[offset + size + 1 : offset + size + _TRAILER], "little")
    if masked_crc32c(checked) != stored:
        raise TableError(f"the checksum of the block at byte {offset} does not match, so the file is damaged")
    block = content[offset : offset + size]
    match content[offset + size]:
        case 0:
            return block
        case 1:
            return unsnappy(block)
        case kind:
            raise TableError(f"the block at byte {offset} has the unknown compression {kind}")


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of one block, each key rebuilt from the one before."""
    if len(block) < 4:
        raise TableError("a block is too short to be one")
    # The restart points only serve searching; reading from the start needs to know where they begin.
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise TableError("a block claims more restart points than it has room for")
    place, key = 0, b""
    while place < end:
        shared, place = varint(block, place)
        added, place = varint(block, place)
        size, place = varint(block, place)
        if shared > len(key) or added + size > end - place or shared + added > _MAX_KEY:
            raise TableError("an entry in it claims more bytes than there are")
        key = key[:shared] + block[place : place + added]
        place += added
        yield key, block[place : place + size]
        place += size


def unsnappy(data: bytes) -> bytes:
    """Undo Snappy compression: literals and copies of what was already written."""
    length, place = varint(data, 0)
    # The best a copy can do is 64 bytes out of 3, so more than that is a lie.
    if length > min(_MAX_BLOCK, 22 * len(data) + 64):
        raise TableError(f"a compressed block claims to hold {length} bytes")
    out = bytearray()
    while place < len(data):
        tag = data[place]
        place += 1
        if tag & 3 == 0:
            size, place = _literal_size(data, tag >> 2, place)
            if size > len(data) - place:
                raise TableError("a compressed block is cut off")
            out += data[place : place + size]
            place += size
        else:
            width = (1, 2, 4)[(tag & 3) - 1]
            offset = int.from_bytes(data[place : place + width], "little")
            size = (tag >> 2) + 1
            if tag & 3 == 1:
                offset |= (tag >> 5) << 8
                size = (tag >> 2 & 7) + 4
            place += width
            if place > len(data) or not 0 < offset <= len(out):
                raise TableError("a compressed block copies from before its start")
            # A copy may overlap its own output: then it repeats.
            pattern = out[len(out) - offset :][:size]
            out += (pattern * -(-size // len(pattern)))[:size]
        if len(out) > length:
            break
    if len(out) != length:
        raise TableError("a compressed block does not have the size it claims")
    return bytes(out)


def _literal_size(data: bytes, code: int, place: int) -> tuple[int, int]:
    if code < 60:
        return code + 1, place
    width = code - 59
    return int.from_bytes(data[place : place + width], "little") + 1, place + width
