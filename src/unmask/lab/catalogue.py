"""All questions, in the order of a course: attention, then positions, blocks, pre-training, use."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from unmask.errors import UserError
from unmask.lab.entry import Entry, Part

_FOLDER = Path(__file__).parent / "questions"
_PACKAGE = "unmask.lab.questions"
_KIT = "unmask.lab.kit"
#: Questions as a reader should meet them; those not named come last.
_ORDER = """
write-attention scale-sqrt-dk dot-vs-additive qk-layernorm no-projections qk-shared many-heads head-dim multi-head-cost
attention-cost self-attention-reach padding-mask look-ahead-mask cross-attention train-vs-test-decoding parallelism
vs-rnn vs-seq2seq positions-needed positions-kinds positions-sinusoid positions-learned embeddings-sum embedding-scale
weight-tying add-norm layernorm-vs-batchnorm norm-place warmup ffn nonlinearity dropout-places bert-parts bidirectional
bert-vs-gpt bert-vs-cbow pretrain-losses mask-rate mask-80-10-10 mlm-vs-left-to-right nsp-needed cls-token limit-512
chinese-characters nlu-not-nlg pretraining-helps fine-tune-grid label-noise long-text faster-inference
""".split()  # noqa: SIM905


@cache
def entries() -> tuple[Entry, ...]:
    """Every question."""
    found = {entry.id: entry for entry in (Entry.read(path) for path in sorted(_FOLDER.glob("*.toml")))}
    order = [one for one in _ORDER if one in found]
    return tuple(found[one] for one in [*order, *sorted(found.keys() - set(order))])


def entry_of(name: str) -> Entry:
    """The question of an id."""
    known = {entry.id: entry for entry in entries()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "`unmask lab list` shows all"
    raise UserError(f"there is no question {name[:60]!r}; {hint}")


def parts_of(entry: Entry) -> dict[str, Part]:
    """What can be run for a question, by name: the parts of its evidence that have been written."""
    if not (_FOLDER / f"{entry.module}.py").is_file():
        return {}
    module = importlib.import_module(f"{_PACKAGE}.{entry.module}")
    parts: tuple[Part, ...] = module.PARTS
    named = {method.name for method in entry.parts}
    for part in parts:
        if part.name not in named:
            raise LookupError(f"{entry.id}: part {part.name} has no method in words")
    return {part.name: part for part in parts}


def code_of(entry: Entry) -> str:
    """A short mark of the code whose numbers a question's are: its module and what it uses of the lab's kit.

    Words, docstrings and conclusions do not count: they change no number.
    """
    seen: dict[str, str] = {}
    waiting = [f"{_PACKAGE}.{entry.module}"]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            tree = ast.parse(_source(name))
            seen[name] = _bare(tree)
            waiting += _kit(tree)
    return hashlib.sha256("\n".join(seen[name] for name in sorted(seen)).encode()).hexdigest()[:12]


def _source(name: str) -> str:
    path = Path(__file__).parents[1].joinpath(*name.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def _kit(tree: ast.AST) -> Iterator[str]:
    """The modules of the kit that code imports, in whichever way."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(_KIT + "."))
        elif isinstance(node, ast.ImportFrom) and node.module == _KIT:
            yield from (f"{_KIT}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_KIT + "."):
            yield node.module or ""


def _bare(tree: ast.Module) -> str:
    """Code without docstrings and conclusions."""
    kept = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name.startswith("conclude"))]
    tree = ast.Module(kept, [])
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree)
