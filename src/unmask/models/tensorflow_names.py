"""The names of Google's BERT variables, and what the same tensors are called in Hugging Face folders."""

from __future__ import annotations

import re

# What an optimiser keeps beside each variable, and counters: not weights.
_TRAINING_STATE = re.compile(
    r".+/(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?|LAMBOptimizer(_1)?)"
    r"|(.+/)?(global_step|beta[12]_power)"
)

# The leaves of a dense layer and of a layer norm; a kernel is stored as (in, out), torch holds (out, in).
_DENSE = {"kernel": "weight", "bias": "bias"}
_NORM = {"gamma": "weight", "beta": "bias"}

_LAYER = re.compile(r"bert/encoder/layer_(0|[1-9]\d{0,3})/(.+)/([a-z]+)")
_LAYER_PARTS = {
    "attention/self/query": _DENSE,
    "attention/self/key": _DENSE,
    "attention/self/value": _DENSE,
    "attention/output/dense": _DENSE,
    "attention/output/LayerNorm": _NORM,
    "intermediate/dense": _DENSE,
    "output/dense": _DENSE,
    "output/LayerNorm": _NORM,
}
_PARTS = {
    "bert/embeddings/LayerNorm": _NORM,
    "bert/pooler/dense": _DENSE,
    "cls/predictions/transform/dense": _DENSE,
    "cls/predictions/transform/LayerNorm": _NORM,
}
_SINGLE = {
    "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
    "bert/embeddings/position_embeddings": "bert.embeddings.position_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "bert.embeddings.token_type_embeddings.weight",
    "cls/predictions/output_bias": "cls.predictions.bias",
    # Matrices of (labels, hidden): Google multiplies by their transpose, so they are not turned.
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}


def hf_name(tf_name: str) -> tuple[str, bool] | None:
    """The Hugging Face name of a BERT weight and whether to transpose it; None for any other variable."""
    if tf_name in _SINGLE:
        return _SINGLE[tf_name], False
    if layer := _LAYER.fullmatch(tf_name):
        number, part, leaf = layer.groups()
        leaves, start = _LAYER_PARTS.get(part, {}), f"bert.encoder.layer.{number}."
    else:
        part, _, leaf = tf_name.rpartition("/")
        leaves, start = _PARTS.get(part, {}), ""
    if leaf not in leaves:
        return None
    return f"{start}{part.replace('/', '.')}.{leaves[leaf]}", leaf == "kernel"


def is_training_state(tf_name: str) -> bool:
    """Whether a variable belongs to the optimiser or counts steps, so that leaving it out loses nothing."""
    return _TRAINING_STATE.fullmatch(tf_name) is not None
