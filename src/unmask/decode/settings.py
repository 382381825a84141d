"""How a decoder searches for its output, as settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unmask.config import Settings

LengthFormula = Literal["gnmt", "plain"]


class SamplingSettings(Settings):
    """Draw tokens by their probability instead of searching for the best."""

    #: Below 1 the probable become more so, above 1 less.
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    #: Draw from the so many best tokens alone.
    top_k: Annotated[int, Field(ge=1)] | None = None
    #: Draw from the fewest best tokens that together have this probability.
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    #: Together with a sentence's own tokens it fixes the sentence's draws, whatever else is decoded beside it.
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class DecodeSettings(Settings):
    """From a source to its best outputs. Lengths count target tokens, the end token too."""

    #: Hypotheses under way at once; 1 is greedy.
    beam: Annotated[int, Field(ge=1, le=1000)] = 5
    #: How many outputs to give, best first; with sampling, how many to draw.
    num_best: Annotated[int, Field(ge=1, le=1000)] = 1
    #: α: 0 compares plain log probabilities, which favours short outputs; more favours long ones.
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    #: What the log probability is divided by: gnmt is ((5 + length) / 6)^α, plain is length^α.
    length_formula: LengthFormula = "gnmt"
    #: β: how much a source token that was hardly looked at costs (Wu et al. 2016); 0 is off.
    coverage_penalty: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    #: The decoder layer whose cross-attention counts as looking; negative from the last.
    attention_layer: int = -1
    #: At least so many tokens before the end token.
    min_length: Annotated[int, Field(ge=0)] = 0
    #: At most so many tokens, whatever the source.
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 256
    #: And at most max_ratio · source tokens + max_extra; None: only max_length counts.
    max_ratio: Annotated[float, Field(ge=0.0, le=1000.0)] | None = 2.0
    max_extra: Annotated[int, Field(ge=1, le=100_000)] = 20
    #: No n tokens in a row may come twice.
    no_repeat_ngram: Annotated[int, Field(ge=1)] | None = None
    #: The unknown token is never written.
    forbid_unknown: bool = False
    sampling: SamplingSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_length >= self.max_length:
            raise ValueError(f"min_length {self.min_length} must be below max_length {self.max_length}")
        if self.sampling is None and self.num_best > self.beam:
            raise ValueError(f"num_best {self.num_best} must not be above beam {self.beam}")
        if self.sampling is not None and "beam" in self.model_fields_set and self.beam > 1:
            raise ValueError(f"sampling draws one token at a time and has no beam (given {self.beam}); set beam to 1")
        return self

    @property
    def width(self) -> int:
        """How many outputs of a sentence are under way at once."""
        return self.beam if self.sampling is None else self.num_best

    def limit(self, source_length: int) -> int:
        """The most tokens for a source of so many."""
        if self.max_ratio is None:
            return self.max_length
        # What must be written may be: a wish for longer outputs than the ratio allows is kept.
        return min(self.max_length, max(int(self.max_ratio * source_length) + self.max_extra, self.min_length + 1))
