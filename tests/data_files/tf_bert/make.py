"""Writes the golden checkpoint in this folder with TensorFlow itself, as Google's BERT code would.

Run it in an environment of its own; TensorFlow is not needed to run the tests:

    python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu
    CUDA_VISIBLE_DEVICES= /tmp/tf/bin/python tests/data_files/tf_bert/make.py

`bert_model.ckpt.*` is the checkpoint (two shards, with optimiser state and a step counter), `expected.npz` holds the
values that went in, under TensorFlow's names. `types.ckpt.*` in `types/` has one variable of each type.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
HIDDEN, LAYERS, HEADS, FFN, VOCAB, POSITIONS = 8, 2, 2, 12, 31, 16
v1 = tf.compat.v1


def bert_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes exactly as `google-research/bert` creates them for pre-training."""
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (VOCAB, HIDDEN),
        "bert/embeddings/position_embeddings": (POSITIONS, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
        "bert/pooler/dense/kernel": (HIDDEN, HIDDEN),
        "bert/pooler/dense/bias": (HIDDEN,),
        "cls/predictions/transform/dense/kernel": (HIDDEN, HIDDEN),
        "cls/predictions/transform/dense/bias": (HIDDEN,),
        "cls/predictions/output_bias": (VOCAB,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in range(LAYERS):
        start = f"bert/encoder/layer_{layer}"
        for part, size in {
            "attention/self/query": (HIDDEN, HIDDEN),
            "attention/self/key": (HIDDEN, HIDDEN),
            "attention/self/value": (HIDDEN, HIDDEN),
            "attention/output/dense": (HIDDEN, HIDDEN),
            "intermediate/dense": (HIDDEN, FFN),
            "output/dense": (FFN, HIDDEN),
        }.items():
            shapes[f"{start}/{part}/kernel"] = size
            shapes[f"{start}/{part}/bias"] = (size[1],)
        norms += [f"{start}/attention/output/LayerNorm", f"{start}/output/LayerNorm"]
    for norm in norms:
        shapes[f"{norm}/gamma"] = shapes[f"{norm}/beta"] = (HIDDEN,)
    return shapes


def save(values: dict[str, np.ndarray], prefix: Path, shards: int) -> None:
    """Save with the Saver of TensorFlow 1; one shard for each (pretended) CPU that holds variables."""
    v1.reset_default_graph()
    config = v1.ConfigProto(device_count={"CPU": shards})
    with v1.Graph().as_default():
        for i, (name, value) in enumerate(values.items()):
            with v1.device(f"/cpu:{i % shards}"):
                v1.get_variable(name, initializer=tf.constant(value), use_resource=False)
        saver = v1.train.Saver(sharded=shards > 1, write_version=v1.train.SaverDef.V2)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            saver.save(session, str(prefix), write_meta_graph=False, write_state=False)


def main() -> None:
    v1.disable_eager_execution()
    rng = np.random.default_rng(7)
    values: dict[str, np.ndarray] = {}
    for name, shape in bert_shapes().items():
        values[name] = rng.normal(0, 0.02, shape).astype(np.float32)
        values[f"{name}/adam_m"] = np.zeros(shape, np.float32)
        values[f"{name}/adam_v"] = np.ones(shape, np.float32)
    values["global_step"] = np.array(1234, np.int64)
    save(values, HERE / "bert_model.ckpt", shards=2)
    np.savez_compressed(HERE / "expected.npz", **{k: v for k, v in values.items() if "adam" not in k})

    (HERE / "types").mkdir(exist_ok=True)
    kinds = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
    types = {kind: np.array([[0, 1, 2], [3, 5, 7]]).astype(kind) for kind in kinds}
    types["bfloat16"] = np.array([[0, 1, 2], [3, 5, 7]]).astype(tf.bfloat16.as_numpy_dtype)
    types["empty"] = np.zeros((0, 3), np.float32)
    types["string"] = np.array(["not", "a number"])
    save(types, HERE / "types" / "types.ckpt", shards=1)

    settings = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": FFN,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "type_vocab_size": 2,
        "vocab_size": VOCAB,
    }
    (HERE / "bert_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(ord("a") + i) for i in range(VOCAB - len(special))]
    (HERE / "vocab.txt").write_text("\n".join(special + letters) + "\n")


if __name__ == "__main__":
    main()
