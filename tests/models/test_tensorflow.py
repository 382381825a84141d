from __future__ import annotations

import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import ModelError
from unmask.models.tensorflow import hf_name, read_checkpoint, read_tensorflow
from unmask.models.tensorflow_checksum import crc32c, masked_crc32c
from unmask.models.tensorflow_names import is_training_state
from unmask.models.tensorflow_table import TableError, read_table, unsnappy, varint
from unmask.models.weights import WeightSource

GOLDEN = Path(__file__).parents[1] / "data_files" / "tf_bert"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for path in GOLDEN.glob("bert_model.ckpt.*"):
        shutil.copy(path, tmp_path)
    return tmp_path


# ---------------------------------------------------------------- golden: written by TensorFlow itself


@pytest.mark.parametrize("given_as", ["", "bert_model.ckpt", "bert_model.ckpt.index"])
def test_equals_what_tensorflow_wrote(given_as: str) -> None:
    expected = np.load(GOLDEN / "expected.npz")
    checkpoint = read_checkpoint(GOLDEN / given_as)
    assert {name for name in checkpoint.shapes if "adam" not in name} == set(expected)
    for name in expected:
        tensor = checkpoint.tensor(name)
        assert tuple(tensor.shape) == checkpoint.shapes[name] == expected[name].shape
        assert tensor.numpy().dtype == expected[name].dtype
        np.testing.assert_array_equal(tensor.numpy(), expected[name])


def test_gives_hugging_face_names_and_layout() -> None:
    expected = np.load(GOLDEN / "expected.npz")
    weights: WeightSource = read_tensorflow(GOLDEN)
    assert len(weights.shapes) == len(expected) - 1  # all but the step counter
    for name in expected:
        target = hf_name(name)
        if target is None:
            assert name == "global_step"
            continue
        value = expected[name].T if target[1] else expected[name]
        tensor = weights.tensor(target[0])
        assert weights.shapes[target[0]] == value.shape
        assert weights.dtypes[target[0]] == torch.float32
        assert tensor.is_contiguous()
        np.testing.assert_array_equal(tensor.numpy(), value)
    assert read_tensorflow(GOLDEN).ignored == ()


def test_every_numeric_type_is_read() -> None:
    checkpoint = read_checkpoint(GOLDEN / "types")
    for name in set(checkpoint.shapes) - {"empty"}:
        dtype = getattr(torch, name)
        assert checkpoint.dtypes[name] == dtype
        assert torch.equal(checkpoint.tensor(name), torch.tensor([[0, 1, 2], [3, 5, 7]]).to(dtype))
    assert len(checkpoint.shapes) == 11
    assert checkpoint.tensor("empty").shape == (0, 3)
    with pytest.raises(ModelError, match="holds no variable string"):
        checkpoint.tensor("string")


def test_names_match_the_reference_model() -> None:
    """The names we give are exactly those of the reference library's model of the same shape."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig.from_json_file(str(GOLDEN / "bert_config.json"))
    reference = transformers.BertForPreTraining(config)
    wanted = {name: tuple(value.shape) for name, value in reference.named_parameters()}
    assert wanted.items() <= read_tensorflow(GOLDEN).shapes.items()


def test_another_model_is_named_as_such() -> None:
    with pytest.raises(ModelError, match=r"no variables named like Google's BERT \(it has bfloat16"):
        read_tensorflow(GOLDEN / "types")


def test_tensors_may_be_written_to_without_touching_the_file(copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.iterdir()}
    read_tensorflow(copy).tensor("bert.pooler.dense.bias").fill_(3)
    assert {path: path.read_bytes() for path in copy.iterdir()} == before


# ---------------------------------------------------------------- names


def test_names_by_hand() -> None:
    layer = "bert/encoder/layer_11/"
    assert hf_name(layer + "attention/self/query/kernel") == (
        "bert.encoder.layer.11.attention.self.query.weight",
        True,
    )
    assert hf_name(layer + "attention/output/LayerNorm/gamma") == (
        "bert.encoder.layer.11.attention.output.LayerNorm.weight",
        False,
    )
    assert hf_name(layer + "output/dense/bias") == ("bert.encoder.layer.11.output.dense.bias", False)
    assert hf_name("bert/embeddings/word_embeddings") == ("bert.embeddings.word_embeddings.weight", False)
    assert hf_name("cls/predictions/output_bias") == ("cls.predictions.bias", False)
    assert hf_name("cls/seq_relationship/output_weights") == ("cls.seq_relationship.weight", False)
    assert hf_name("output_weights") == ("classifier.weight", False)


@pytest.mark.parametrize(
    "name",
    [
        "bert/encoder/layer_0/attention/self/query/kernel/adam_m",
        "bert/encoder/layer_0/attention/self/query/gamma",
        "bert/encoder/layer_0/output/LayerNorm/kernel",
        "bert/encoder/layer_00/output/dense/kernel",
        "bert/encoder/layer_-1/output/dense/kernel",
        "bert/embeddings/word_embeddings/adam_v",
        "global_step",
        "bert",
        "",
        "/",
    ],
)
def test_other_names_are_not_weights(name: str) -> None:
    assert hf_name(name) is None


def test_training_state_is_told_from_weights() -> None:
    assert is_training_state("global_step")
    assert is_training_state("bert/pooler/dense/kernel/adam_v")
    assert is_training_state("bert/pooler/dense/kernel/Adam_1")
    assert is_training_state("beta1_power")
    assert not is_training_state("bert/pooler/dense/kernel")
    assert not is_training_state("my_head/kernel")


def test_renaming_is_one_to_one() -> None:
    names = [target[0] for name in np.load(GOLDEN / "expected.npz") if (target := hf_name(name))]
    assert len(set(names)) == len(names)


# ---------------------------------------------------------------- checksums


def slow_crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for octet in data:
        register ^= octet
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_checksum_known_values() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@given(st.binary(max_size=600))
def test_checksum_equals_the_definition(data: bytes) -> None:
    assert crc32c(data) == slow_crc32c(data)


@pytest.mark.parametrize("size", [4095, 65_536, 65_537, 262_144, 262_145, 300_001])
def test_checksum_of_longer_data(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())


def test_checksum_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.models.tensorflow_checksum._BLOCK", 4096)
    data = np.random.default_rng(1).integers(0, 256, 20_001, dtype=np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())


# ---------------------------------------------------------------- tables by hand


def number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(entries: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(number(0) + number(len(k)) + number(len(v)) + k + v for k, v in entries)
    return body + bytes(4) + (1).to_bytes(4, "little")


def framed(content: bytes, kind: int = 0) -> bytes:
    data = content + bytes([kind])
    return data + masked_crc32c(data).to_bytes(4, "little")


def table(entries: list[tuple[bytes, bytes]], pack: Callable[[bytes], tuple[bytes, int]] | None = None) -> bytes:
    content, kind = pack(block(entries)) if pack else (block(entries), 0)
    data = framed(content, kind)
    handle = number(0) + number(len(content))
    index = block([(b"\xff", handle)])
    place = number(len(data)) + number(len(index))
    footer = number(0) + number(0) + place
    return data + framed(index) + footer.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


def field(key: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return number(key << 3 | 2) + number(len(value)) + value
    return number(key << 3) + number(value)


def variable(shape: tuple[int, ...], offset: int, size: int, *, shard: int = 0, crc: int = 0, dtype: int = 1) -> bytes:
    axes = b"".join(field(2, field(1, axis)) for axis in shape)
    head = field(1, dtype) + field(2, axes) + field(3, shard) + field(4, offset) + field(5, size)
    return head + number(6 << 3 | 5) + crc.to_bytes(4, "little")


HEADER = (b"", field(1, 1))
NAME = b"bert/pooler/dense/bias"


def write(folder: Path, entries: list[tuple[bytes, bytes]], data: bytes = bytes(64)) -> None:
    (folder / "x.ckpt.index").write_bytes(table(entries))
    (folder / "x.ckpt.data-00000-of-00001").write_bytes(data)


def test_a_table_by_hand_is_read(tmp_path: Path) -> None:
    data = np.arange(16, dtype=np.float32).tobytes()
    write(tmp_path, [HEADER, (NAME, variable((4,), 8, 16, crc=masked_crc32c(data[8:24])))], data)
    assert read_tensorflow(tmp_path).tensor("bert.pooler.dense.bias").tolist() == [2, 3, 4, 5]


def literals(data: bytes) -> tuple[bytes, int]:
    """Snappy without any compression: literals only, of every form of length."""
    out = bytearray(number(len(data)))
    for start in range(0, len(data), 300):
        piece = data[start : start + 300]
        if len(piece) <= 60:
            out.append((len(piece) - 1) << 2)
        else:
            out += bytes([61 << 2]) + (len(piece) - 1).to_bytes(2, "little")
        out += piece
    return bytes(out), 1


def test_snappy_blocks_are_read() -> None:
    entries = [(b"%05d" % i, b"value" * (i % 7)) for i in range(200)]
    assert list(read_table(table(entries, literals))) == entries


def test_snappy_copies() -> None:
    # literal "xab", copy of 4 from 2 back (1-byte offset), of 3 from 7 back (2 bytes), of 5 from 1 back (4 bytes)
    stream = number(15) + b"\x08xab" + b"\x01\x02" + bytes([2 << 2 | 2, 7, 0]) + bytes([4 << 2 | 3, 1, 0, 0, 0])
    assert unsnappy(stream) == b"xababab" + b"xab" + b"bbbbb"


@pytest.mark.parametrize(
    "stream",
    [
        number(2**31) + b"\x00a",  # claims 2 GB
        number(3) + b"\x01\x01",  # copies before there is anything
        number(3) + b"\x00a\x01\x09",  # copies from before the start
        number(3) + b"\x00a\x01\x00",  # copies from nowhere
        number(9) + b"\x20a",  # literal cut off
        number(2) + b"\x00a",  # too short
        number(1) + b"\x04ab",  # too long
        b"\xff" * 12,
        b"",
    ],
)
def test_broken_snappy(stream: bytes) -> None:
    with pytest.raises(TableError):
        unsnappy(stream)


def test_varint_bounds() -> None:
    assert varint(number(2**63), 0)[0] == 2**63
    with pytest.raises(TableError):
        varint(b"\x80" * 20, 0)
    with pytest.raises(TableError):
        varint(b"\x80", 0)


# ---------------------------------------------------------------- hostile checkpoints


def read_all(folder: Path) -> None:
    weights = read_tensorflow(folder)
    for name in weights.shapes:
        weights.tensor(name)


def refused(folder: Path) -> str:
    """The one sentence with which a checkpoint is refused, quickly and without much memory."""
    start = time.process_time()
    with pytest.raises(ModelError) as caught:
        read_all(folder)
    assert time.process_time() - start < 1
    tracemalloc.start()
    with pytest.raises(ModelError):
        read_all(folder)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    return str(caught.value)


ENTRIES: dict[str, tuple[list[tuple[bytes, bytes]], str]] = {
    "no header": ([(NAME, variable((4,), 0, 16))], "no header entry"),
    "big-endian": ([(b"", field(1, 1) + field(2, 1))], "big-endian"),
    "no shards": ([(b"", b"")], "claims 0 shards"),
    "too many shards": ([(b"", field(1, 2**31))], "shards"),
    "size and shape disagree": ([HEADER, (NAME, variable((4,), 0, 20))], "claims 20 bytes"),
    "shape overflows": ([HEADER, (NAME, variable((2**40, 2**40), 0, 0))], "claims 0 bytes"),
    "negative axis": ([HEADER, (NAME, variable((2**64 - 1,), 0, 4))], "impossible size"),
    "too many axes": ([HEADER, (NAME, variable((1,) * 1000, 0, 4))], "1000 axes"),
    "beyond the shard": ([HEADER, (NAME, variable((4,), 60, 16))], "should end at byte 76"),
    "offset near 2^64": ([HEADER, (NAME, variable((4,), 2**64 - 8, 16))], "should end at byte"),
    "size near 2^63": ([HEADER, (NAME, variable((2**47, 2**14), 0, 2**63))], "should end at byte"),
    "shard that is not there": ([HEADER, (NAME, variable((4,), 0, 16, shard=5))], "shard 5 of 1"),
    "same bytes twice": (
        [HEADER, (b"bert/pooler/dense/a", variable((4,), 0, 16)), (NAME, variable((4,), 8, 16))],
        "claim the same bytes",
    ),
    "wrong checksum": ([HEADER, (NAME, variable((4,), 0, 16, crc=1))], "checksum"),
    "names out of order": ([HEADER, (b"b", variable((4,), 0, 16)), (b"a", b"")], "not in order"),
    "name twice": ([HEADER, (b"b", b""), (b"b", b"")], "not in order"),
    "partitioned": ([HEADER, (NAME, variable((4,), 0, 16) + field(7, b""))], "partitioned"),
    "not protobuf": ([HEADER, (NAME, b"\xff\xff\xff")], "runs past its end"),
    "unknown wire type": ([HEADER, (NAME, b"\x0f")], "wire type 7"),
    "field runs past": ([HEADER, (NAME, number(2 << 3 | 2) + number(2**40))], "runs past its end"),
    "kernel of one axis": ([HEADER, (b"bert/pooler/dense/kernel", variable((4,), 0, 16))], "not two axes"),
    "name of two lines": ([HEADER, (b"a\nb", variable((4,), 0, 16))], "has the name"),
    "name is not text": ([HEADER, (b"\xff\xfe", variable((4,), 0, 16))], "has the name"),
    "no variables": ([HEADER], "no variables named like"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_hostile_entries(tmp_path: Path, case: str) -> None:
    entries, words = ENTRIES[case]
    write(tmp_path, entries)
    assert words in refused(tmp_path)


def test_nan_is_named(tmp_path: Path) -> None:
    data = np.array([1, np.nan], np.float32).tobytes()
    write(tmp_path, [HEADER, (NAME, variable((2,), 0, 8, crc=masked_crc32c(data)))], data)
    assert "dense/bias holds NaN" in refused(tmp_path)


def test_every_truncation_of_the_index_is_refused(copy: Path) -> None:
    index = copy / "bert_model.ckpt.index"
    whole = index.read_bytes()
    for length in range(0, len(whole), 97):
        index.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="cut off or something else"):
            read_tensorflow(copy)


@given(place=st.integers(0, 4661), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_in_the_index_is_refused_or_harmless(
    place: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    for path in GOLDEN.glob("bert_model.ckpt.*"):
        shutil.copy(path, folder)
    index = folder / "bert_model.ckpt.index"
    content = bytearray(index.read_bytes())
    content[place] = value
    index.write_bytes(content)
    try:
        shapes = read_tensorflow(folder).shapes
    except ModelError:
        return
    # What is not refused is padding, the metaindex, or the same byte as before.
    assert shapes == read_tensorflow(GOLDEN).shapes


def test_a_flipped_bit_in_the_data_is_found(copy: Path) -> None:
    shard = copy / "bert_model.ckpt.data-00000-of-00002"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    weights = read_tensorflow(copy)

    def damaged(name: str) -> bool:
        try:
            weights.checkpoint.tensor(name)
        except ModelError as error:
            return "checksum" in str(error)
        return False

    assert sum(damaged(name) for name in weights.checkpoint.shapes) == 1


def test_truncated_and_missing_shards(copy: Path) -> None:
    shard = copy / "bert_model.ckpt.data-00001-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "cut off" in refused(copy)
    shard.unlink()
    assert "data-00001-of-00002: missing" in refused(copy)


def test_a_table_that_points_at_itself_ends(tmp_path: Path) -> None:
    """The index names one data block 20,000 times: names that do not grow end it at once."""
    data = framed(block([HEADER, (b"a", b"")]))
    handle = number(0) + number(len(data) - 5)
    index = block([(b"%08d" % i, handle) for i in range(20_000)])
    footer = (number(0) + number(0) + number(len(data)) + number(len(index))).ljust(40, b"\0")
    content = data + framed(index) + footer + (0xDB4775248B80FB57).to_bytes(8, "little")
    (tmp_path / "x.ckpt.index").write_bytes(content)
    assert "not in order" in refused(tmp_path)


def test_endless_variables_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [HEADER, *((b"%07d" % i, b"") for i in range(200_000))])
    assert "more than 20,000 variables" in refused(tmp_path)


def test_shared_prefixes_cannot_blow_up_memory(tmp_path: Path) -> None:
    long = b"a" * 5000
    write(tmp_path, [HEADER, (long, b"")])
    assert "more bytes than there are" in refused(tmp_path)


def test_places_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"looked for bert_model\.ckpt\.index"):
        read_tensorflow(tmp_path)
    with pytest.raises(ModelError, match=r"no such checkpoint.*model\.ckpt\.index"):
        read_tensorflow(tmp_path / "model.ckpt")
    write(tmp_path, [HEADER])
    (tmp_path / "y.ckpt.index").write_bytes(b"")
    with pytest.raises(ModelError, match=r"several checkpoints \(x\.ckpt\.index, y\.ckpt\.index\)"):
        read_tensorflow(tmp_path)
