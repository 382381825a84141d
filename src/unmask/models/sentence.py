"""How a folder says that its token vectors become one sentence vector: sentence-transformers' convention."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from unmask.config import read_json, shown
from unmask.errors import ModelError
from unmask.nn.heads import Pooling
from unmask.storage import atomic_write

_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class SentenceSettings:
    """How to make one vector of a text."""

    pooling: Pooling = "mean"
    normalise: bool = False
    #: Where sentence-transformers cuts a text. We read texts to their end and only keep the number for others.
    cut_at: int | None = None


def read_sentence_settings(folder: Path) -> SentenceSettings | None:
    """What modules.json and the pooling's config say; None where a folder has no modules.json."""
    if not (folder / "modules.json").is_file():
        return None
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{folder / 'modules.json'}: expected a list of modules")
    pooling: Pooling = "mean"
    normalise = False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _read_pooling(folder, str(module.get("path", "")))
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise ModelError(
                f"{folder / 'modules.json'}: module {shown(kind)} is not supported; known are Transformer, Pooling, "
                "Normalize"
            )
    return SentenceSettings(pooling, normalise, _read_cut(folder / "sentence_bert_config.json"))


def write_sentence_settings(folder: Path, settings: SentenceSettings, hidden_size: int) -> None:
    """Write modules.json and what belongs to it, so that sentence-transformers gives the same vectors.

    Up to the length at which it cuts a text: beyond, it leaves the rest out and we do not.
    """
    chain = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if settings.normalise:
        chain.append(("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(chain)
    ]
    modes: dict[str, object] = {mode: pooling == settings.pooling for mode, pooling in _MODES.items()}
    for path, _ in chain[1:]:
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size} | modes)
    if settings.cut_at is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": settings.cut_at, "do_lower_case": False})
    _write(folder / "modules.json", modules)


def _read_pooling(folder: Path, path: str) -> Pooling:
    if not re.fullmatch(r"\w[\w.-]{0,99}", path):
        raise ModelError(
            f"{folder / 'modules.json'}: the pooling's path {shown(path)} must be a folder inside the model's"
        )
    config = read_json(folder / path / "config.json")
    chosen = [pooling for mode, pooling in _MODES.items() if isinstance(config, dict) and config.get(mode)]
    if isinstance(config, dict) and "pooling_mode" in config and not chosen:
        chosen = [pooling for pooling in _MODES.values() if pooling == config["pooling_mode"]]
    if len(chosen) != 1:
        raise ModelError(f"{folder / path / 'config.json'}: exactly one pooling of cls, mean, max is supported")
    return chosen[0]


def _read_cut(path: Path) -> int | None:
    config = read_json(path) if path.exists() else {}
    found = config.get("max_seq_length") if isinstance(config, dict) else None
    return found if type(found) is int and 0 < found < 10**9 else None


def _write(path: Path, content: object) -> None:
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())
