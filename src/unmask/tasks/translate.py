"""A translator in use: texts in, translations out, in order and in any number; nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from unmask.decode.coverage import align
from unmask.decode.hypothesis import Hypothesis
from unmask.decode.search import decode
from unmask.decode.settings import DecodeSettings
from unmask.errors import TaskError
from unmask.models.transformer import Transformer
from unmask.tasks.languages import Languages, TranslateUsage
from unmask.tasks.translate_align import WordAlignment, word_alignment
from unmask.tasks.translate_parts import Part, joined, split
from unmask.tasks.windows import chunked

#: Where words and their translations are linked best: the last layer but one (Garg et al. 2019).
ALIGNMENT_LAYER = -2
_AT_ONCE = 64  # pairs whose alignments are looked at together


class Output(NamedTuple):
    """One way to translate a text. `finished` is false where the length limit cut it off."""

    text: str
    score: float
    log_probability: float
    finished: bool = True


@dataclass(frozen=True)
class Translation:
    """What a text became."""

    text: str
    outputs: tuple[Output, ...]  # best first; the first is `text`
    parts: int = 1  # how many pieces a long text was split into; 0 for an empty one
    lost: str = ""  # characters that the model does not know and did not keep
    alignments: tuple[WordAlignment, ...] | None = None  # of each part, where they were asked for


class Translator:
    """A model with its tokenizers and the way it is to be used."""

    def __init__(self, model: Any, languages: Languages, usage: TranslateUsage) -> None:
        self.model, self.languages, self.usage = model, languages, usage

    def run(
        self, texts: Iterable[str], settings: DecodeSettings | None = None, *, aligned: bool = False
    ) -> Iterator[Translation]:
        """The translation of each text, in their order, whatever they are batched with.

        A text longer than any the model has learned from is split at its sentences; `parts` says so.
        """
        settings = self.usage.decode if settings is None else settings
        if aligned and not isinstance(self.model, Transformer):
            raise TaskError("alignments are read from a Transformer's cross-attention, and this model is none")
        return (one for chunk in chunked(texts, len) for one in self._chunk(chunk, settings, aligned))

    def begun(
        self, texts: Sequence[str], starts: Sequence[str], settings: DecodeSettings | None = None
    ) -> list[Output]:
        """The best translation of each text that begins with the start given for it; texts are not split."""
        settings = self.usage.decode if settings is None else settings
        if len(texts) != len(starts):
            raise TaskError(f"{len(texts)} texts but {len(starts)} starts were given; every text needs its own")
        parts = [Part(text, encoding) for text, encoding in zip(texts, self._encoded(texts), strict=True)]
        found = self._decoded(parts, settings, [self.languages.target_ids_of(start) for start in starts])
        looks = self._looks(parts, found, aligned=False)
        return [
            self._output(part, outputs[0], looks.get((number, 0)))[0]
            for number, (part, outputs) in enumerate(zip(parts, found, strict=True))
        ]

    def _chunk(self, texts: Sequence[str], settings: DecodeSettings, aligned: bool) -> list[Translation]:
        room = self.usage.max_source - 1
        by_text = [split(text, self._encoded, room, self.languages.code_of(text)) for text in texts]
        parts = [part for some in by_text for part in some]
        found = self._decoded(parts, settings)
        looks = self._looks(parts, found, aligned)
        made, place = [], 0
        for some in by_text:
            numbers = range(place, place + len(some))
            made.append(self._translation(numbers, parts, found, looks, aligned))
            place += len(some)
        return made

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        return self.languages.encode_sources(texts)

    def _decoded(
        self, parts: Sequence[Part], settings: DecodeSettings, prefixes: Sequence[Sequence[int]] | None = None
    ) -> list[list[Hypothesis]]:
        """Outputs of each part. Only what has unknown characters may have unknown tokens in its translation."""
        end, unknown = self.languages.frame.source_end, self.languages.source.unk_id
        found: list[list[Hypothesis]] = [[] for _ in parts]
        for has in (False, True):
            chosen = [number for number, part in enumerate(parts) if (unknown in part.ids) == has]
            outputs = decode(
                self.model,
                [[*parts[number].ids, end] for number in chosen],
                self.languages.target_ids,
                settings.replace(forbid_unknown=settings.forbid_unknown or not has),
                prefixes=None if prefixes is None else [prefixes[number] for number in chosen],
            )
            for number, some in zip(chosen, outputs, strict=True):
                found[number] = some
        return found

    def _looks(
        self, parts: Sequence[Part], found: Sequence[Sequence[Hypothesis]], aligned: bool
    ) -> dict[tuple[int, int], Tensor]:
        """Where the model looked while it wrote, for outputs that need it: (part, output) → (T, S)."""
        if not isinstance(self.model, Transformer):
            return {}
        unknown, end = self.languages.target.unk_id, self.languages.frame.source_end
        wanted = [
            (number, rank)
            for number, outputs in enumerate(found)
            for rank, output in enumerate(outputs)
            if unknown in output.ids or (aligned and rank == 0)
        ]
        layer = max(ALIGNMENT_LAYER, -self.model.settings.num_decoder_layers)
        looks: dict[tuple[int, int], Tensor] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            sources = [[*parts[number].ids, end] for number, _ in some]
            targets = [found[number][rank].ids for number, rank in some]
            matrices = align(self.model, sources, targets, start_id=self.languages.frame.start, layer=layer)
            looks.update(zip(some, matrices, strict=True))
        return looks

    def _translation(
        self,
        numbers: Sequence[int],
        parts: Sequence[Part],
        found: Sequence[Sequence[Hypothesis]],
        looks: Mapping[tuple[int, int], Tensor],
        aligned: bool,
    ) -> Translation:
        """What the parts of one text make together."""
        if not numbers:
            return Translation("", (Output("", 0.0, 0.0),), 0, "", () if aligned else None)
        ranks = range(min(len(found[number]) for number in numbers))
        outputs, lost = [], ""
        for rank in ranks:
            pieces = [self._output(parts[n], found[n][rank], looks.get((n, rank))) for n in numbers]
            outputs.append(
                Output(
                    joined([output.text for output, _ in pieces]),
                    sum(output.score for output, _ in pieces) / len(pieces),
                    sum(output.log_probability for output, _ in pieces),
                    all(output.finished for output, _ in pieces),
                )
            )
            if rank == 0:
                lost = "".join(missing for _, missing in pieces)
        alignments = None
        if aligned:
            target = self.languages.target
            alignments = tuple(
                word_alignment(parts[n].text, parts[n].encoding, found[n][0].ids, target, looks[n, 0])
                for n in numbers
                if (n, 0) in looks
            )
        return Translation(outputs[0].text, tuple(outputs), len(numbers), lost, alignments)

    def _output(self, part: Part, found: Hypothesis, look: Tensor | None) -> tuple[Output, str]:
        """An output as text, its unknown tokens replaced by characters of the source, and those that were not kept."""
        unknown = self.languages.source.unk_id
        places = [place for place, id in enumerate(part.ids) if id == unknown]
        text, target = "", self.languages.target
        if target.unk_id in found.ids:
            text = target.decode(found.ids, skip_special_tokens=False)
            name = target.token(target.unk_id) if target.unk_id is not None else ""
            for row, id in enumerate(found.ids):
                if id == target.unk_id:
                    # Without a look at the source, in the order in which they stand there.
                    best = max(places, key=lambda place: 0.0 if look is None else float(look[row, place]), default=None)
                    text = text.replace(name, "" if best is None else part.characters(best), 1)
                    places = [place for place in places if place != best]
        else:
            text = target.decode(found.ids)
        missing = "".join(part.characters(place) for place in places)
        return Output(text.strip(), found.score, found.log_probability, found.finished), missing
