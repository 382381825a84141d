"""How a folder says that its token vectors become one sentence vector: sentence-transformers' convention."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from unmask.config import read_json
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
                f"{folder / 'modules.json'}: module {kind} is not supported; supported are Transformer, Pooling, "
                "Normalize"
            )
    return SentenceSettings(pooling, normalise)


def write_sentence_settings(folder: Path, settings: SentenceSettings, hidden_size: int) -> None:
    """Write modules.json and the pooling's config, so that sentence-transformers gives the same vectors."""
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
    _write(folder / "modules.json", modules)


def _read_pooling(folder: Path, path: str) -> Pooling:
    if Path(path).name != path or path in ("", ".", ".."):
        raise ModelError(f"{folder / 'modules.json'}: the pooling's path {path!r} must be a folder inside the model's")
    config = read_json(folder / path / "config.json")
    chosen = [pooling for mode, pooling in _MODES.items() if isinstance(config, dict) and config.get(mode)]
    if isinstance(config, dict) and "pooling_mode" in config and not chosen:
        chosen = [pooling for pooling in _MODES.values() if pooling == config["pooling_mode"]]
    if len(chosen) != 1:
        raise ModelError(f"{folder / path / 'config.json'}: exactly one pooling of cls, mean, max is supported")
    return chosen[0]


def _write(path: Path, content: object) -> None:
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())
