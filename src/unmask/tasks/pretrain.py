"""Pre-training BERT: guess hidden tokens (MLM), and whether two texts belong together (NSP or SOP)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.pretraining import Examples, PretrainBatch
from unmask.errors import DataError
from unmask.models.bert import Bert, Encoded, device_of
from unmask.tasks.fill_mask import fill_mask
from unmask.text.tokenizer import Tokenizer


class Pretraining:
    """The losses `mlm` and, where texts come in pairs, `nsp` or `sop`, each over its own items."""

    def __init__(self, pairs: str, pair_weight: float = 1.0) -> None:
        """`pairs` is the objective: nsp, sop or none. Its loss counts `pair_weight` times, that of the tokens once."""
        self.pairs = pairs
        self.weights = {pairs: pair_weight}

    def counts(self, batch: PretrainBatch) -> dict[str, float]:
        """Hidden tokens, and pairs."""
        counts = {"mlm": float(len(batch.targets))}
        return counts if self.pairs == "none" else counts | {self.pairs: float(len(batch.batch))}

    def sums(self, model: nn.Module, batch: PretrainBatch) -> dict[str, Tensor]:
        """Cross-entropy over hidden tokens and over pairs."""
        assert isinstance(model, Bert)
        hidden, encoded = looked_at(model, batch)
        sums = {"mlm": model.masked_token_loss(hidden, batch.targets)}
        if batch.pair_labels is not None:
            sums[self.pairs] = F.cross_entropy(
                _pair_logits(model, encoded, self.pairs), batch.pair_labels, reduction="sum"
            )
        return sums


def looked_at(model: Bert, batch: PretrainBatch) -> tuple[Tensor, Encoded]:
    """The rows of the hidden tokens (M, H), and what the encoder says of the rows that are asked about.

    Nothing is computed for tokens that nobody asks about: neither the vocabulary nor the last block.
    """
    firsts = batch.batch.layout.first_rows(batch.masked_rows.device)
    asked, order = torch.cat([firsts, batch.masked_rows]).sort()  # [CLS] is never hidden
    encoded: Encoded = model(batch.batch, asked)
    return encoded.sequence.index_select(0, order.argsort()[len(firsts) :]), encoded


def _pair_logits(model: Bert, encoded: Encoded, pairs: str) -> Tensor:
    return model.next_sentence_logits(encoded) if pairs == "nsp" else model.sentence_order_logits(encoded)


class HeldOut:
    """How well a model guesses text it has not learned from: always the same examples, with the same masks."""

    score = "mlm_loss"
    lower_is_better = True

    def __init__(self, examples: Examples, tokens: int, tokenizer: Tokenizer, cloze: Sequence[str] = ()) -> None:
        """Batches of held-out documents, of about so many tokens and at most all of them once."""
        self.pairs = examples.settings.pairs.objective
        wanted = max(1, tokens // examples.settings.batch_tokens)
        self.batches = [examples[number] for number in range(min(wanted, examples.batches_of_epoch(0)))]
        self.tokenizer = tokenizer
        self.cloze = tuple(cloze)

    def __len__(self) -> int:
        return len(self.batches)

    def measure(self, model: nn.Module, number: int) -> dict[str, float]:
        """Losses and right guesses of one batch, summed."""
        batch = self.batches[number].to(device_of(model))
        assert isinstance(model, Bert)
        hidden, encoded = looked_at(model, batch)
        found = {"tokens": len(batch.targets)} | _judged("mlm", model.masked_token_logits(hidden), batch.targets)
        if batch.pair_labels is not None:
            pairs = _pair_logits(model, encoded, self.pairs)
            found |= {"pairs": len(batch.pair_labels)} | _judged("pair", pairs, batch.pair_labels)
        return found

    def conclude(self, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Means over all hidden tokens, and over all pairs."""
        total = {name: math.fsum(one[name] for one in results) for name in results[0]}
        if not total["tokens"]:
            raise DataError("no token of the held-out documents is hidden: hold out more, or hide more (masking.rate)")
        loss = total["mlm_loss"] / total["tokens"]
        values = {
            "mlm_loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "mlm_accuracy": total["mlm_right"] / total["tokens"],
        }
        if self.pairs != "none":
            values[f"{self.pairs}_loss"] = total["pair_loss"] / total["pairs"]
            values[f"{self.pairs}_accuracy"] = total["pair_right"] / total["pairs"]
        return values

    def remarks(self, model: nn.Module) -> list[str]:
        """The best guesses for each of the cloze texts."""
        assert isinstance(model, Bert)
        lines = []
        for text in self.cloze:
            masks = fill_mask(model, self.tokenizer, text, top=5, max_length=model.settings.max_length)
            guesses = " | ".join(" ".join(f"{g.token} {g.probability:.2f}" for g in mask) for mask in masks)
            lines.append(f"{text}  →  {guesses}")
        return lines


def _judged(name: str, given: Tensor, right: Tensor) -> dict[str, float]:
    loss = float(F.cross_entropy(given.float(), right, reduction="sum"))
    return {f"{name}_loss": loss, f"{name}_right": float((given.argmax(-1) == right).sum())}


class Stages:
    """Examples of one length after another: `lengths` of the first stage, then of the second, …"""

    def __init__(self, stages: Sequence[tuple[Examples, int]]) -> None:
        """Each stage with its number of micro-batches."""
        self.stages = tuple(stages)

    def __getitem__(self, number: int) -> PretrainBatch:
        """Micro-batch `number` of the whole run."""
        for examples, size in self.stages[:-1]:
            if number < size:
                return examples[number]
            number -= size
        return self.stages[-1][0][number]
