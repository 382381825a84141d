"""A Transformer whose outputs are searched for by the kernels. What must be seen from inside, torch still computes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from unmask.decode.candidates import NOT_A_NUMBER
from unmask.decode.hypothesis import Hypothesis, length_divisor, score
from unmask.decode.sentence import Sentence
from unmask.decode.settings import DecodeSettings
from unmask.decode.stepping import TargetIds
from unmask.engine.binding import CSearch, address
from unmask.engine.decoder import PackedTransformer
from unmask.engine.encoder import Precision, is_hooked
from unmask.engine.steps import FastSteps
from unmask.errors import TaskError, UserError
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch
from unmask.nn.modes import one_thread

#: So many rows at once are about the quickest: fp32 weights are four times as large, so each is used for more rows.
ROWS_AT_ONCE = {"fp32": 128, "int8": 64}
#: Bytes of keys and values that a thread keeps at once.
_MOST_BYTES = 1 << 28
#: Room for outputs, in tokens, that one call may ask for.
_MOST_TOKENS = 1 << 24
#: As in search.h.
_NOT_A_NUMBER = 5


class FastTransformer(Transformer):
    """The same torch modules, for alignments and whoever looks inside, and a quick form that does not need them."""

    packed: PackedTransformer
    precision: Precision
    threads: int
    _kernels: ctypes.CDLL

    @classmethod
    def of(cls, model: Transformer, precision: Precision, code: ctypes.CDLL) -> FastTransformer:
        """From a model, with which it shares its modules."""
        fast = cls.__new__(cls)
        fast.__dict__.update(model.__dict__)
        fast._modules = dict(model._modules)
        fast._parameters = dict(model._parameters)
        fast.packed, fast.precision = PackedTransformer(model, precision), precision
        fast.threads = torch.get_num_threads()
        fast._kernels = code
        return fast

    def quick(self) -> FastDecoder | None:
        """What decodes; None where somebody watches what happens inside, which torch must compute then."""
        if is_hooked(self):
            return None
        embeddings = self.source_embeddings, self.target_embeddings
        return FastDecoder(self.packed, embeddings, self._kernels, self.threads)


class FastDecoder(FastSteps):
    """Steps, and whole searches, by the kernels."""

    def search(
        self, sentences: Sequence[Sentence], ids: TargetIds, settings: DecodeSettings, batch_size: int | None
    ) -> None:
        """Find the outputs of sentences that are sorted by length, as `beam_search` would."""
        waiting, room = list(sentences), settings.num_best
        while waiting:  # from the last, the longest, on: short ones fill the gaps at the end
            some = [waiting.pop()]
            tokens = room * some[0].limit
            while waiting and tokens + room * waiting[-1].limit <= _MOST_TOKENS:
                tokens += room * waiting[-1].limit
                some.append(waiting.pop())
            _Search(self, some, ids, settings).run(batch_size)


class _Search:
    """One call, and all that it reads and writes."""

    def __init__(
        self, model: FastDecoder, sentences: Sequence[Sentence], ids: TargetIds, settings: DecodeSettings
    ) -> None:
        self.model, self.sentences, self.settings = model, sentences, settings
        self.source = Batch.of([one.source for one in sentences])
        longest = max(one.limit for one in sentences)
        self.reader, self._waves = model.packed.reader(self.source.layout.max_length)
        self.writer, self._other_waves = model.packed.writer(longest)
        never = [*ids.never, *([ids.unknown] if settings.forbid_unknown and ids.unknown is not None else [])]
        prefixes = [token for one in sentences for token in one.prefix]
        _check(model, [ids.start, *prefixes])
        count, best = len(sentences), settings.num_best
        self.stop = torch.zeros(1, dtype=torch.long)
        self.limits = torch.tensor([one.limit for one in sentences])
        self.ids = torch.empty(best * int(self.limits.sum()), dtype=torch.long)
        self.lengths, self.finished = (torch.empty(count, best, dtype=torch.long) for _ in range(2))
        self.log_probabilities = torch.empty(count, best, dtype=torch.float64)
        self._given: list[Tensor] = []
        divisors = [1.0, *(length_divisor(length, settings) for length in range(1, longest + 2))]
        self.c = CSearch(
            reader=ctypes.pointer(self.reader),
            writer=ctypes.pointer(self.writer),
            ids=self._lend(self.source.ids),
            lengths=self._lend(torch.tensor(self.source.layout.lengths)),
            sentences=count,
            limits=self._lend(self.limits),
            prefixes=self._lend(torch.tensor(prefixes, dtype=torch.long)) if prefixes else None,
            prefix_lengths=self._lend(torch.tensor([len(one.prefix) for one in sentences])),
            width=settings.beam,
            num_best=best,
            start=ids.start,
            end=ids.end,
            never=self._lend(torch.tensor(never, dtype=torch.long)),
            num_never=len(never),
            min_length=settings.min_length,
            no_repeat=settings.no_repeat_ngram or 0,
            divisors=self._lend(torch.tensor(divisors, dtype=torch.float64)),
            out_ids=address(self.ids),
            out_lengths=address(self.lengths),
            out_log_probabilities=address(self.log_probabilities),
            out_finished=address(self.finished),
            stop=address(self.stop),
        )

    def _lend(self, tensor: Tensor) -> int | None:
        """The address of a tensor that lives as long as this."""
        self._given.append(tensor)
        return address(tensor)

    def run(self, batch_size: int | None) -> None:
        """Search, and note what was found with the sentences."""
        threads, width = self.model.threads, self.settings.beam
        share = -(-len(self.sentences) // threads)
        wanted = batch_size or max(1, ROWS_AT_ONCE[self.model.packed.precision] // width)
        self.c.at_once = max(1, min(share, wanted, _MOST_BYTES // self._bytes()))
        outcome = self._called(threads)
        if outcome == _NOT_A_NUMBER:
            raise TaskError(NOT_A_NUMBER)
        if outcome:
            self.model.embeddings[0](self.source)  # torch says what is wrong with the tokens
            raise MemoryError(f"no memory to decode {len(self.sentences)} sentences")
        self._note()

    def _bytes(self) -> int:
        """What the longest source and the longest output need in keys and values, if beams have half in common."""
        packed, longest = self.model.packed, self.source.layout.max_length
        cells = int(self.limits.max()) * (1 + self.settings.beam) // 2
        return 8 * packed.head_size * (packed.source_heads * longest + packed.own_heads * cells)

    def _called(self, threads: int) -> int:
        """In another thread, so that who interrupts this one is heard."""
        with one_thread(), ThreadPoolExecutor(1, "search") as pool:
            future = pool.submit(self.model.code.unmask_search, ctypes.byref(self.c), threads)
            try:
                return int(future.result())
            except BaseException:
                self.stop.fill_(1)
                raise

    def _note(self) -> None:
        place, settings, ids = 0, self.settings, self.ids.tolist()
        found = zip(
            self.sentences,
            self.lengths.tolist(),
            self.log_probabilities.tolist(),
            self.finished.tolist(),
            strict=True,
        )
        for sentence, lengths, values, finished in found:
            for length, value, ended in zip(lengths, values, finished, strict=True):
                if length >= 0:
                    rank = score(value, length + 1 if ended else max(1, length), settings)
                    sentence.found.append(Hypothesis(ids[place : place + length], value, rank, bool(ended)))
                place += sentence.limit


def _check(model: FastDecoder, ids: Sequence[int]) -> None:
    """UserError for a token that the target side does not know."""
    most = model.packed.vocabulary
    wrong = [token for token in ids if not 0 <= token < most]
    if wrong:
        raise UserError(f"a token has the id {wrong[0]} but the model's vocabulary has {most} tokens")
