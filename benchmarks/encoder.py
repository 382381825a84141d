"""Tokens per second of a BERT encoder on mixed-length text, against `transformers`, in one interleaved run.

    python benchmarks/encoder.py

Both read the same texts in the same order with the same weights, fp32. Theirs: SDPA, batches of 32 padded to their
longest, in given order and, for comparison, sorted by length. Ours: ragged batches by token budget; and ours padded,
which shows what the ragged layout itself brings.
"""

from __future__ import annotations

import os

import torch

import common

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    options = common.arguments(__doc__ or "")
    options.add_argument("--model", default="minilm")
    options.add_argument("--budgets", type=int, nargs="*", default=[2048], help="token budgets of ours to try")
    options.add_argument("--spread", type=float, default=0.95, help="how much lengths differ: sigma of a log-normal")
    chosen = options.parse_args()
    texts = common.mixed_length_texts(spread=chosen.spread)
    torch.set_num_threads(chosen.threads)
    import transformers

    import unmask
    from unmask.data.batching import collate, token_budget_batches

    bert = unmask.load(chosen.model)
    theirs = transformers.AutoModel.from_pretrained(bert.folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    encodings = bert.tokenizer.encode_batch(texts)
    lengths = [len(encoding) for encoding in encodings]
    by_length = sorted(range(len(texts)), key=lengths.__getitem__)

    @torch.inference_mode()
    def padded(order: list[int], size: int = 32) -> torch.Tensor:
        rows = []
        for start in range(0, len(order), size):
            batch = collate([encodings[number] for number in order[start : start + size]])
            mask = batch.layout.key_mask(batch.ids.device)
            out = theirs(
                input_ids=batch.layout.pad(batch.ids),
                token_type_ids=batch.layout.pad(batch.segments),
                attention_mask=mask.long(),
            )
            rows.append(out.last_hidden_state[mask])
        return torch.cat(rows)

    @torch.inference_mode()
    def ragged(budget: int) -> torch.Tensor:
        rows, order = [], []
        for numbers in token_budget_batches(lengths, budget):
            encoded = bert.encoder(collate([encodings[number] for number in numbers]))
            rows += encoded.layout.split(encoded.sequence)
            order += numbers
        return torch.cat([rows[place] for place in sorted(range(len(order)), key=order.__getitem__)])

    @torch.inference_mode()
    def ours_padded(size: int = 32) -> torch.Tensor:
        rows = []
        for start in range(0, len(texts), size):
            batch = collate(encodings[start : start + size]).padded()
            encoded = bert.encoder(batch)
            rows.append(encoded.sequence[batch.layout.token_rows(batch.ids.device)])
        return torch.cat(rows)

    expected = padded(list(range(len(texts))))
    assert (ragged(chosen.budgets[0]) - expected).abs().max() < 1e-5
    assert (ours_padded() - expected).abs().max() < 1e-5
    contestants = {
        "transformers, given order": lambda: padded(list(range(len(texts)))),
        "transformers, sorted": lambda: padded(by_length),
        "unmask, padded, given order": ours_padded,
    }
    for budget in chosen.budgets:
        contestants[f"unmask, ragged, {budget} tokens"] = lambda budget=budget: ragged(budget)
    best = common.interleaved(contestants, chosen.rounds)
    base = best["transformers, given order"]
    rows = [
        {
            "encoder": name,
            "texts/s": round(len(texts) / seconds, 1),
            "tokens/s": round(sum(lengths) / seconds),
            "times theirs": round(base / seconds, 2),
        }
        for name, seconds in best.items()
    ]
    mean = sum(lengths) / len(lengths)
    title = f"{len(texts)} texts, mean {mean:.0f} and at most {max(lengths)} tokens, {chosen.threads} threads"
    common.show(title, rows, chosen.json)


if __name__ == "__main__":
    main()
