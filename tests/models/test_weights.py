from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from unmask.errors import FetchError, ModelError
from unmask.models.weights import read_weights, write_weights
from unmask.storage import atomic_write, disk_sentence, replacing


def some_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"layer.{i}.weight": torch.randn(3, 5 + i, generator=generator) for i in range(4)}


def raw(header: object, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file by hand, with any lie in it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


# ---------------------------------------------------------------- reading


def test_reads_what_was_saved(tmp_path: Path) -> None:
    tensors = some_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    with read_weights(tmp_path) as weights:
        assert weights.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        assert set(weights.dtypes.values()) == {torch.float32}
        taken = {name: weights.tensor(name) for name in weights.shapes}
    for name, tensor in tensors.items():  # after closing: a tensor holds its own mapping
        assert torch.equal(taken[name], tensor)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_every_supported_dtype_survives(tmp_path: Path, dtype: str) -> None:
    tensor = torch.tensor([[0, 1, 2], [3, 5, 7]]).to(getattr(torch, dtype))
    write_weights(tmp_path, {"x": tensor, "scalar": tensor[1, 2], "empty": tensor[:0]})
    weights = read_weights(tmp_path)
    assert weights.dtypes["x"] == tensor.dtype
    assert torch.equal(weights.tensor("x"), tensor)
    assert torch.equal(weights.tensor("scalar"), tensor[1, 2])
    assert weights.tensor("empty").shape == (0, 3)


def test_writing_into_a_tensor_never_reaches_the_file(tmp_path: Path) -> None:
    write_weights(tmp_path, {"x": torch.ones(3)})
    before = (tmp_path / "model.safetensors").read_bytes()
    read_weights(tmp_path).tensor("x").fill_(7)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_tensor_that_is_taken_is_not_yet_in_memory(tmp_path: Path) -> None:
    write_weights(tmp_path, {f"big.{i}": torch.zeros(4_000_000) for i in range(8)})  # 128 MB
    # Of the map of the file alone: how much of torch's own code is in memory is the system's choice.
    script = (
        "import re, sys; from pathlib import Path; from unmask.models.weights import read_weights\n"
        "weights = read_weights(Path(sys.argv[1])); taken = weights.tensor('big.3')\n"
        "def resident():\n"
        "    maps = re.split(r'(?m)^(?=[0-9a-f]+-[0-9a-f]+ )', open('/proc/self/smaps').read())\n"
        "    of_file = [one for one in maps if one.split('\\n')[0].endswith('model.safetensors')]\n"
        "    return sum(int(re.search(r'(?m)^Rss: +(\\d+) kB', one)[1]) * 1024 for one in of_file)\n"
        "before = resident(); taken.sum(); print(before, resident())"
    )
    if not Path("/proc/self/smaps").exists():
        pytest.skip("memory is measured through /proc")
    told = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    before, after = map(int, told.stdout.split())
    assert before < 4_000_000  # a tensor has 16 MB, and each of its numbers was checked
    assert after >= 16_000_000  # what is measured is the map


def test_unknown_tensor_names_the_nearest(tmp_path: Path) -> None:
    write_weights(tmp_path, some_tensors())
    with pytest.raises(ModelError, match=r"layer\.0\.weigth.*nearest name is layer\.0\.weight"):
        read_weights(tmp_path).tensor("layer.0.weigth")


# ---------------------------------------------------------------- hostile files

HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "only 0 bytes"),
    "shorter than a length": (b"\x01\x02", "only 2 bytes"),
    "length beyond the file": (raw({}, length=1000), "claims a header of 1,000 bytes"),
    "length of 4 GB": (raw({}, length=2**32), "claims a header of 4,294,967,296"),
    "length of 2^64-1": (raw({}, length=2**64 - 1), "claims a header"),
    "huge header": (raw(b" " * 10_000_001), "beyond the allowed"),
    "header is not JSON": (raw(b"not json at all"), "not a sound safetensors file"),
    "header is not UTF-8": (raw(b'{"\xff\xfe": 1}'), "not a sound safetensors file"),
    "header is a list": (raw([1, 2]), "not a sound safetensors file"),
    "header nests deeply": (raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "not a sound"),
    "entry of the wrong type": (raw({"a": 3}), "not a sound safetensors file"),
    "negative offset": (raw({"a": entry(-4, 4, [1])}, bytes(4)), "not a sound"),
    "offsets out of range": (raw({"a": entry(0, 400, [100])}, bytes(4)), "not a sound"),
    "offsets reversed": (raw({"a": entry(4, 0, [1])}, bytes(4)), "not a sound"),
    "overlap": (raw({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)), "not a sound"),
    "same bytes twice": (raw({"a": entry(0, 8, [2]), "b": entry(0, 8, [2])}, bytes(8)), "not a sound"),
    "hole": (raw({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, bytes(12)), "not a sound"),
    "bytes after the last tensor": (raw({"a": entry(0, 4, [1])}, bytes(8)), "not a sound"),
    "shape larger than bytes": (raw({"a": entry(0, 4, [100])}, bytes(4)), "not a sound"),
    "shape overflows": (raw({"a": entry(0, 4, [2**40, 2**40])}, bytes(4)), "not a sound"),
    "truncated": (raw({"a": entry(0, 40, [10])}, bytes(39)), "not a sound"),
    "unknown dtype": (raw({"a": entry(0, 4, [1], "F31")}, bytes(4)), "not a sound"),
    "unsupported dtype": (raw({"a": entry(0, 4, [4], "F8_E4M3")}, bytes(4)), "a has dtype F8_E4M3"),
    "name given twice": (
        raw(b'{"a":%(e)s,"a":%(e)s}' % {b"e": json.dumps(entry(0, 4, [1])).encode()}, bytes(4)),
        "names a twice",
    ),
    "name of two lines": (raw({"a\nb": entry(0, 4, [1])}, bytes(4)), "has the name 'a\\nb'"),
    "endless name": (raw({"a" * 100_000: entry(0, 4, [1])}, bytes(4)), "has the name 'aaa"),
    "pickle in disguise": (b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01u.", "claims a header"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_gives_one_sentence_quickly(tmp_path: Path, case: str) -> None:
    content, words = HOSTILE[case]
    (tmp_path / "model.safetensors").write_bytes(content)
    start = time.process_time()
    with pytest.raises(ModelError) as caught:
        read_weights(tmp_path)
    seconds = time.process_time() - start
    tracemalloc.start()
    with pytest.raises(ModelError):
        read_weights(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(caught.value)
    assert words in message
    assert str(tmp_path / "model.safetensors") in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))
    assert seconds < 1
    assert peak < 2 * len(content) + 1_000_000


@given(damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_flipped_bytes_are_refused_or_read(
    damage: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    write_weights(folder, some_tensors())
    content = bytearray((folder / "model.safetensors").read_bytes())
    for place, value in damage:
        content[place % len(content)] = value
    (folder / "model.safetensors").write_bytes(content)
    with contextlib.suppress(ModelError):  # and nothing else: no crash, no other error
        weights = read_weights(folder)
        for name in weights.shapes:
            assert tuple(weights.tensor(name).shape) == weights.shapes[name]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", [617, -1])
def test_nan_and_infinity_name_the_tensor(tmp_path: Path, bad: float, dtype: torch.dtype, place: int) -> None:
    tensor = torch.ones(600_001, dtype=dtype)  # more than is looked at together
    tensor[place] = bad
    write_weights(tmp_path, {"good": torch.ones(3), "spoilt": tensor})
    weights = read_weights(tmp_path)
    weights.tensor("good")
    with pytest.raises(ModelError, match=r"tensor spoilt holds NaN or infinity"):
        weights.tensor("spoilt")


def test_large_finite_half_precision_is_not_mistaken_for_infinity(tmp_path: Path) -> None:
    write_weights(tmp_path, {"x": torch.full((10_000,), 60_000.0, dtype=torch.float16)})  # its sum would overflow
    assert read_weights(tmp_path).tensor("x")[0] == 60_000


# ---------------------------------------------------------------- shards


def test_shards_round_trip(tmp_path: Path) -> None:
    tensors = some_tensors()
    write_weights(tmp_path, tensors, max_shard_bytes=100)
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*-of-00004.safetensors"))) == 4
    weights = read_weights(tmp_path)
    assert list(weights.shapes) == sorted(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(weights.tensor(name), tensor)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "C:x.safetensors", "..", "", 3, None]
)
def test_shard_names_with_a_path_are_refused(tmp_path: Path, shard: object) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "outside.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ModelError, match="plain"):
        read_weights(folder)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b"[" * 10**5]
)
def test_broken_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(ModelError, match="weight_map"):
        read_weights(tmp_path)


def test_index_names_a_missing_shard(tmp_path: Path) -> None:
    write_weights(tmp_path, some_tensors(), max_shard_bytes=100)
    (tmp_path / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00004\.safetensors, which is not in the folder"):
        read_weights(tmp_path)


def test_index_names_a_tensor_the_shard_lacks(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"says that 'b' is in one\.safetensors"):
        read_weights(tmp_path)


def test_links_into_a_cache_are_followed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "blob")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(Path("..") / "blob")
    assert torch.equal(read_weights(snapshot).tensor("a"), torch.ones(2))


# ---------------------------------------------------------------- folders without safetensors


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "last.ckpt"])
def test_pickles_are_never_loaded(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'echo pwned'\ntR.")
    with pytest.raises(ModelError, match=r"pickle that can run code.*never loaded.*weights_only=True") as caught:
        read_weights(tmp_path)
    assert name in str(caught.value)


def test_the_suggested_conversion_works(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    shared = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": shared, "tied": shared, "turned": shared.t()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError) as caught:
        read_weights(folder)
    command = str(caught.value).partition("with: ")[2].replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True)
    weights = read_weights(folder)
    assert torch.equal(weights.tensor("tied"), shared)
    assert torch.equal(weights.tensor("turned"), shared.t())


def test_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no weights; looked for model.safetensors and model.safetensors.index"):
        read_weights(tmp_path)
    with pytest.raises(ModelError, match="no such folder"):
        read_weights(tmp_path / "absent")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="no weights"):
        read_weights(tmp_path)


# ---------------------------------------------------------------- writing


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_whoever_may_read_the_folder_may_read_the_weights(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_weights(tmp_path, some_tensors())
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask


def test_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = some_tensors()
    write_weights(tmp_path / "a", tensors)
    write_weights(tmp_path / "b", dict(reversed(tensors.items())))
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_tied_turned_and_trained_tensors_are_written(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(torch.ones(3))
    tensors = {"a": base, "tied": base, "turned": base.t(), "row": base[1], "trained": parameter}
    write_weights(tmp_path, tensors)
    weights = read_weights(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(weights.tensor(name), tensor.detach())
    assert torch.equal(base, torch.arange(12.0).reshape(3, 4))


def test_mapped_tensors_can_be_written_over_their_own_file(tmp_path: Path) -> None:
    tensors = some_tensors()
    write_weights(tmp_path, tensors)
    mapped = read_weights(tmp_path)
    write_weights(tmp_path, {name: mapped.tensor(name) for name in mapped.shapes})
    again = read_weights(tmp_path)
    assert all(torch.equal(again.tensor(name), tensors[name]) for name in tensors)


def test_unsupported_dtype_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tensor x has dtype torch.complex64"):
        write_weights(tmp_path, {"x": torch.zeros(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("first", [10**9, 100, 180])
@pytest.mark.parametrize("second", [10**9, 100, 180])
def test_new_weights_replace_the_old_in_every_form(tmp_path: Path, first: int, second: int) -> None:
    old = {name: torch.zeros_like(tensor) for name, tensor in some_tensors().items()}
    write_weights(tmp_path, old, max_shard_bytes=first)
    write_weights(tmp_path, some_tensors(), max_shard_bytes=second)
    weights = read_weights(tmp_path)
    assert all(torch.equal(weights.tensor(name), tensor) for name, tensor in some_tensors().items())
    fresh = tmp_path / "fresh"
    write_weights(fresh, some_tensors(), max_shard_bytes=second)
    assert {path.name for path in tmp_path.iterdir()} - {"fresh"} == {path.name for path in fresh.iterdir()}


@pytest.mark.parametrize("shards", [10**9, 100])
@pytest.mark.parametrize("crash_at", [0, 1, 2])
def test_a_crash_never_leaves_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, crash_at: int
) -> None:
    old = {name: torch.zeros_like(tensor) for name, tensor in some_tensors().items()}
    new = some_tensors()
    write_weights(tmp_path, old, max_shard_bytes=shards)
    calls = 0

    def failing(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        nonlocal calls
        save_file(tensors, path, metadata)
        calls += 1
        if calls > crash_at:
            raise KeyboardInterrupt

    monkeypatch.setattr("unmask.models.weights_write.save_file", failing)
    with pytest.raises(KeyboardInterrupt):
        write_weights(tmp_path, new, max_shard_bytes=100)
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))
    try:
        weights = read_weights(tmp_path)
    except ModelError:
        return
    assert all(torch.equal(weights.tensor(name), old[name]) for name in old)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files makes the real writer fail half-way, as a full disk does."""
    script = (
        "import resource, sys; from pathlib import Path; import torch\n"
        "from unmask.models.weights import write_weights; from unmask.errors import FetchError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: write_weights(Path(sys.argv[1]), {'x': torch.zeros(1_000_000)})\n"
        "except FetchError as error: print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "model.safetensors" in answer.stdout
    assert "larger than a file may be" in answer.stdout
    assert list(tmp_path.iterdir()) == []


def test_disk_sentences_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert "disk is full" in disk_sentence(path, OSError(28, "No space left on device"))
    assert "not allowed" in disk_sentence(path, PermissionError(13, "denied"))
    assert "Input/output" in disk_sentence(path, OSError(5, "Input/output error"))


# ---------------------------------------------------------------- atomic files


def test_atomic_write(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a.json", b"one")
    atomic_write(tmp_path / "a.json", b"two")
    assert (tmp_path / "a.json").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_replacing_keeps_the_old_file_on_any_error(tmp_path: Path, error: Callable[[], BaseException]) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def write() -> None:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_bytes(b"half")
            raise error()

    with pytest.raises(error):  # type: ignore[call-overload]
        write()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="there is no folder"):
        atomic_write(tmp_path / "absent" / "a", b"")
