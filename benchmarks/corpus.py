"""How fast text becomes a corpus: ours against `datasets.map`, on the same cores in the same run; and our memory.

    UNMASK_DATA=folder python benchmarks/corpus.py [--megabytes 30] [--folder TOKENIZER] [--json]
    UNMASK_DATA=folder python benchmarks/corpus.py --memory [--json]

Both sides read a gzip file of Chinese Wikipedia, encode every sentence without special tokens, keep the bounds of
sentences and documents, and write it all to the disk. The other side reads documents with a generator into a table,
then maps them in batches with the fast tokenizer of transformers in as many processes; both parts are timed, and said
apart, and the ratio is also given against the mapping alone. It does not look for words; ours is measured both ways.
Rounds are interleaved and the best of each side counts. The package `datasets` is no dependency of the project:
where it is missing, only our side is measured. With --memory, the most memory that all our processes hold together
is shown, for the whole file and for a third of it.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from common import arguments, data_folder, show
from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.format import CorpusSettings
from unmask.text import Tokenizer

SOURCE = Path("zhwiki_sample") / "zhwiki_sample.txt.gz"


def slice_of(source: Path, megabytes: float, target: Path) -> tuple[Path, int]:
    """The first documents of a file, so many megabytes of text; and how many characters that is."""
    held: list[bytes] = []
    size = 0
    with gzip.open(source) as file:
        for line in file:
            held.append(line)
            size += len(line)
            if size >= megabytes * 1e6 and not line.strip():
                break
    content = b"".join(held)
    target.write_bytes(gzip.compress(content, 6))
    return target, len(content.decode())


def tokenizer_folder(text: Path, folder: Path) -> Path:
    """A vocabulary of the size of the published Chinese one: the most frequent characters."""
    with gzip.open(text, "rt", encoding="utf-8") as file:
        counts = Counter(character for line in file for character in line if not character.isspace())
    letters = [letter for letter, _ in counts.most_common(9000)]
    pieces = [f"##{letter}" for letter in letters if letter.isalnum() and not "\u4e00" <= letter <= "\u9fff"]
    Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *pieces]).save(folder)
    return folder


def documents(path: str) -> Iterator[dict[str, list[str]]]:
    held: list[str] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if sentence := line.strip():
                held.append(sentence)
            elif held:
                yield {"sentences": held}
                held = []
    if held:
        yield {"sentences": held}


def theirs(text: Path, folder: Path, out: Path, workers: int) -> tuple[int, float, float]:
    """Tokens, and the seconds of reading and of mapping."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.model_max_length = 10**9

    def encode(batch: dict[str, list[list[str]]]) -> dict[str, list[list[list[int]]]]:
        flat = [sentence for document in batch["sentences"] for sentence in document]
        options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
        found = iter(tokenizer(flat, **options)["input_ids"])
        return {"ids": [[next(found) for _ in document] for document in batch["sentences"]]}

    kinds = datasets.Features({"ids": datasets.List(datasets.List(datasets.Value("uint16")))})
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    table = datasets.Dataset.from_generator(documents, gen_kwargs={"path": str(text)}, cache_dir=str(out / "cache"))
    read = time.perf_counter()
    options = {"batched": True, "batch_size": 200, "num_proc": workers, "remove_columns": ["sentences"]}
    mapped = table.map(encode, **options, features=kinds, cache_file_name=str(out / "mapped.arrow"))
    done = time.perf_counter()
    flat = mapped.data.column("ids").combine_chunks().flatten().flatten()
    return len(flat), read - started, done - read


def ours(text: Path, folder: Path, out: Path, workers: int, words: bool) -> int:
    settings = CorpusSettings(words=words)
    tokenizer = Tokenizer.from_folder(folder)
    return build_corpus([text], tokenizer, out, settings, workers=workers, overwrite=True).num_tokens


def compare(text: Path, folder: Path, spare: Path, workers: int, rounds: int) -> dict[str, float]:
    best: dict[str, float] = {}
    counts: dict[str, int] = {}

    def keep(name: str, seconds: float) -> None:
        best[name] = min(best.get(name, float("inf")), seconds)

    sides: dict[str, Callable[[], int]] = {
        "ours": lambda: ours(text, folder, spare / "ours", workers, False),
        "ours, with words": lambda: ours(text, folder, spare / "words", workers, True),
    }
    try:
        import datasets  # noqa: F401
    except ImportError:
        print("datasets is not installed, so only our side is measured", file=sys.stderr)
    else:

        def them() -> int:
            count, reading, mapping = theirs(text, folder, spare / "theirs", workers)
            keep("datasets, mapping alone", mapping)
            keep("datasets", reading + mapping)
            return count

        sides["them"] = them
    for turn in range(rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            started = time.perf_counter()
            counts[name] = sides[name]()
            if name != "them":
                keep(name, time.perf_counter() - started)
    if len(set(counts.values())) != 1:
        raise SystemExit(f"the sides disagree on the number of tokens: {counts}")
    return best


def memory_of(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        # Children are listed by the thread that started them.
        children = [
            child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(memory_of(int(child)) for child in children)


def peak_memory(text: Path, folder: Path, out: Path, workers: int) -> int:
    code = (
        "import sys; from pathlib import Path; from unmask.data.corpus.build import build_corpus;"
        "from unmask.text import Tokenizer; text, folder, out = map(Path, sys.argv[1:4]);"
        "build_corpus([text], Tokenizer.from_folder(folder), out, workers=int(sys.argv[4]), overwrite=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(text), str(folder), str(out), str(workers)])
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid))
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit("the build failed")
    return peak


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=float, default=30, help="how much of the text to use")
    parser.add_argument("--folder", type=Path, help="a folder with a BERT tokenizer (default: one of characters)")
    parser.add_argument("--memory", action="store_true", help="measure our memory instead")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # processes are what runs at the same time, on both sides
    source = data_folder() / SOURCE
    with tempfile.TemporaryDirectory() as name:
        spare = Path(name)
        if options.memory:
            third, _ = slice_of(source, 93.6 / 3, spare / "third.txt.gz")
            folder = options.folder or tokenizer_folder(third, spare / "tokenizer")
            rows: list[dict[str, object]] = [
                {"text": label, "peak MB": round(peak_memory(text, folder, spare / "out", options.threads) / 1e6)}
                for label, text in (("whole", source), ("a third", third))
            ]
            show("Memory of all processes while a corpus is built, with words", rows, options.json)
            return
        text, characters = slice_of(source, options.megabytes, spare / "text.txt.gz")
        folder = options.folder or tokenizer_folder(text, spare / "tokenizer")
        best = compare(text, folder, spare, options.threads, options.rounds)
    slowest = best.get("datasets")
    rows = [
        {
            "who": side,
            "seconds": round(seconds, 2),
            "million characters/s": round(characters / seconds / 1e6, 2),
            "times datasets": round(slowest / seconds, 2) if slowest else "",
            "times its mapping alone": round(best["datasets, mapping alone"] / seconds, 2) if slowest else "",
        }
        for side, seconds in best.items()
    ]
    show(f"Building a corpus, {characters:,} characters, {options.threads} processes", rows, options.json)


if __name__ == "__main__":
    main()
