"""Our tensor names and those of published checkpoints: one table a format, read in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_Pairs = Sequence[tuple[str, str]]

#: Ours ↔ Hugging Face's, for BERT. `#` is a layer's number. Weight and bias follow where both exist.
_BERT: tuple[tuple[str, str], ...] = (
    ("encoder.embeddings.token.weight", "bert.embeddings.word_embeddings.weight"),
    ("encoder.embeddings.positions.table.weight", "bert.embeddings.position_embeddings.weight"),
    ("encoder.embeddings.segment.weight", "bert.embeddings.token_type_embeddings.weight"),
    ("encoder.embeddings.norm", "bert.embeddings.LayerNorm"),
    ("encoder.stack.blocks.#.self_attention.projections.query", "bert.encoder.layer.#.attention.self.query"),
    ("encoder.stack.blocks.#.self_attention.projections.key", "bert.encoder.layer.#.attention.self.key"),
    ("encoder.stack.blocks.#.self_attention.projections.value", "bert.encoder.layer.#.attention.self.value"),
    ("encoder.stack.blocks.#.self_attention.output", "bert.encoder.layer.#.attention.output.dense"),
    ("encoder.stack.blocks.#.around_attention.norm", "bert.encoder.layer.#.attention.output.LayerNorm"),
    ("encoder.stack.blocks.#.ffn.inner", "bert.encoder.layer.#.intermediate.dense"),
    ("encoder.stack.blocks.#.ffn.outer", "bert.encoder.layer.#.output.dense"),
    ("encoder.stack.blocks.#.around_ffn.norm", "bert.encoder.layer.#.output.LayerNorm"),
    ("encoder.pooler.dense", "bert.pooler.dense"),
    ("heads.mlm.dense", "cls.predictions.transform.dense"),
    ("heads.mlm.norm", "cls.predictions.transform.LayerNorm"),
    ("heads.mlm.output.weight", "cls.predictions.decoder.weight"),
    ("heads.mlm.bias", "cls.predictions.bias"),
    ("heads.nsp.dense", "cls.seq_relationship"),
    ("heads.qa.dense", "qa_outputs"),
)
#: Sequence and token classification use one name for their last layer; a folder has only one of them.
_CLASSIFIER = "classifier"

#: Written by some versions although it can be computed.
POSITION_IDS = "bert.embeddings.position_ids"
#: The output layer of the MLM head. Tied to the embedding, it repeats what stands elsewhere; untied, its bias, and not
#: the head's, is the one that counts.
DECODER_WEIGHT, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"

#: Ours ↔ Hugging Face's Marian, for the Transformer. Tied tables have one name of these and may have others.
_MARIAN_LAYER: tuple[tuple[str, str], ...] = (
    ("blocks.#.self_attention.projections.query", "layers.#.self_attn.q_proj"),
    ("blocks.#.self_attention.projections.key", "layers.#.self_attn.k_proj"),
    ("blocks.#.self_attention.projections.value", "layers.#.self_attn.v_proj"),
    ("blocks.#.self_attention.output", "layers.#.self_attn.out_proj"),
    ("blocks.#.around_attention.norm", "layers.#.self_attn_layer_norm"),
    ("blocks.#.ffn.inner", "layers.#.fc1"),
    ("blocks.#.ffn.outer", "layers.#.fc2"),
    ("blocks.#.around_ffn.norm", "layers.#.final_layer_norm"),
)
_MARIAN_CROSS: tuple[tuple[str, str], ...] = (
    ("blocks.#.cross_attention.projections.query", "layers.#.encoder_attn.q_proj"),
    ("blocks.#.cross_attention.projections.key", "layers.#.encoder_attn.k_proj"),
    ("blocks.#.cross_attention.projections.value", "layers.#.encoder_attn.v_proj"),
    ("blocks.#.cross_attention.output", "layers.#.encoder_attn.out_proj"),
    ("blocks.#.around_cross.norm", "layers.#.encoder_attn_layer_norm"),
)
_MARIAN_ENDS: tuple[tuple[str, str], ...] = (
    ("source_embeddings.token.weight", "model.encoder.embed_tokens.weight"),
    ("target_embeddings.token.weight", "model.decoder.embed_tokens.weight"),
    ("source_embeddings.positions.table.weight", "model.encoder.embed_positions.weight"),
    ("target_embeddings.positions.table.weight", "model.decoder.embed_positions.weight"),
    ("output.weight", "lm_head.weight"),
    ("output_bias", "final_logits_bias"),
)

#: Ours ↔ CTranslate2's, for the Transformer. `[i/n]` is the i-th of n equal parts of a tensor that holds several.
_CTRANSLATE_LAYER: tuple[tuple[str, str], ...] = (
    ("blocks.#.self_attention.projections.query", "layer_#.self_attention.linear_0[0/3]"),
    ("blocks.#.self_attention.projections.key", "layer_#.self_attention.linear_0[1/3]"),
    ("blocks.#.self_attention.projections.value", "layer_#.self_attention.linear_0[2/3]"),
    ("blocks.#.self_attention.output", "layer_#.self_attention.linear_1"),
    ("blocks.#.around_attention.norm", "layer_#.self_attention.layer_norm"),
    ("blocks.#.ffn.inner", "layer_#.ffn.linear_0"),
    ("blocks.#.ffn.outer", "layer_#.ffn.linear_1"),
    ("blocks.#.around_ffn.norm", "layer_#.ffn.layer_norm"),
)
_CTRANSLATE_CROSS: tuple[tuple[str, str], ...] = (
    ("blocks.#.cross_attention.projections.query", "layer_#.attention.linear_0"),
    ("blocks.#.cross_attention.projections.key", "layer_#.attention.linear_1[0/2]"),
    ("blocks.#.cross_attention.projections.value", "layer_#.attention.linear_1[1/2]"),
    ("blocks.#.cross_attention.output", "layer_#.attention.linear_2"),
    ("blocks.#.around_cross.norm", "layer_#.attention.layer_norm"),
)
_CTRANSLATE_ENDS: tuple[tuple[str, str], ...] = (
    ("source_embeddings.token.weight", "encoder.embeddings.weight"),
    ("target_embeddings.token.weight", "decoder.embeddings.weight"),
    ("source_embeddings.norm", "encoder.layernorm_embedding"),
    ("target_embeddings.norm", "decoder.layernorm_embedding"),
    ("encoder.norm", "encoder.layer_norm"),
    ("decoder.norm", "decoder.layer_norm"),
    ("output.weight", "decoder.projection.weight"),
    ("output_bias", "decoder.projection.bias"),
)


class NameTable:
    """A bijection between our names and theirs, for a model of a given depth."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._theirs = dict(pairs)
        self._ours = {theirs: ours for ours, theirs in pairs}
        if not len(self._theirs) == len(self._ours) == len(pairs):
            raise ValueError("a name stands twice in the table")

    def theirs(self, name: str) -> str | None:
        """Their name for one of ours; None if they have none."""
        return self._theirs.get(name)

    def ours(self, name: str) -> str | None:
        """Our name for one of theirs; None if we have none."""
        return self._ours.get(name)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Pairs of (ours, theirs)."""
        return iter(self._theirs.items())


def bert_names(num_layers: int, classifier: str | None = None) -> NameTable:
    """The table for BERT; `classifier` says whose last layer is called so: "classify" or "tag"."""
    pairs = _BERT if classifier is None else (*_BERT, (f"heads.{classifier}.dense", _CLASSIFIER))
    return NameTable(_spelt_out(pairs, num_layers))


def ctranslate_names(num_encoder_layers: int, num_decoder_layers: int) -> NameTable:
    """The table for CTranslate2's Transformer."""
    encoder, decoder = _two_stacks(_CTRANSLATE_LAYER, _CTRANSLATE_CROSS)
    stacks = _spelt_out(encoder, num_encoder_layers) + _spelt_out(decoder, num_decoder_layers)
    return NameTable(_spelt_out(_CTRANSLATE_ENDS, 0) + stacks)


def marian_names(num_encoder_layers: int, num_decoder_layers: int) -> NameTable:
    """The table for Hugging Face's Marian."""
    encoder, decoder = _two_stacks(_MARIAN_LAYER, _MARIAN_CROSS, "model.")
    stacks = _spelt_out(encoder, num_encoder_layers) + _spelt_out(decoder, num_decoder_layers)
    return NameTable(_spelt_out(_MARIAN_ENDS, 0) + stacks)


def modern_name(name: str) -> str:
    """A published name in today's spelling: `gamma` and `beta` were once what weight and bias are now."""
    if name.endswith(".gamma"):
        return name.removesuffix("gamma") + "weight"
    if name.endswith(".beta"):
        return name.removesuffix("beta") + "bias"
    return name


def with_prefix(name: str) -> str:
    """The name inside a model with heads, where the encoder is called `bert`."""
    bare = ("embeddings.", "encoder.", "pooler.")
    return f"bert.{name}" if name.startswith(bare) else name


def _two_stacks(layer: _Pairs, cross: _Pairs, prefix: str = "") -> tuple[_Pairs, _Pairs]:
    """The pairs of an encoder and of a decoder, whose layers are the encoder's and attention to it."""
    encoder = [(f"encoder.{ours}", f"{prefix}encoder.{theirs}") for ours, theirs in layer]
    decoder = [(f"decoder.{ours}", f"{prefix}decoder.{theirs}") for ours, theirs in (*layer, *cross)]
    return encoder, decoder


def _spelt_out(pairs: _Pairs, num_layers: int) -> list[tuple[str, str]]:
    """One pair a tensor: layers numbered, and a pair that names a layer split into its weight and its bias."""
    full: list[tuple[str, str]] = []
    for ours, theirs in pairs:
        numbered = [(ours, theirs)]
        if "#" in ours:
            numbered = [(ours.replace("#", str(i)), theirs.replace("#", str(i))) for i in range(num_layers)]
        for left, right in numbered:
            if left.endswith(("weight", "bias")):
                full.append((left, right))
            else:
                full += [(f"{left}.{part}", _tensor(right, part)) for part in ("weight", "bias")]
    return full


def _tensor(layer: str, part: str) -> str:
    """`linear_0[1/3]` and weight → `linear_0.weight[1/3]`."""
    name, bracket, piece = layer.partition("[")
    return f"{name}.{part}{bracket}{piece}"
