from __future__ import annotations

from dataclasses import replace

import report_samples as samples
from unmask.report.limits import limits
from unmask.report.outcome import LabelScore, Score, TextOutcome


def said(evaluation: object) -> str:
    return "\n".join(limits(evaluation))  # type: ignore[arg-type]


def test_how_well_the_score_is_known() -> None:
    assert "The dev set of 872 measures accuracy to ±1.8 points." in said(samples.single())
    assert "The test set of 3,000 measures accuracy to ±1.3 points." in said(samples.topics())
    assert "measures Pearson to ±0.011." in said(samples.regression())
    perfect = replace(samples.single(), scores={"f1": Score(1.0, 1.0, 1.0, 40)})
    assert "cannot say how far F1 may be off" in said(perfect)
    assert limits(samples.empty()) == ["This file gives no value for accuracy."]
    assert limits(replace(samples.empty(), scores={})) == ["Nothing was measured, so nothing is known."]


def test_a_dev_set_that_was_looked_at_is_no_fresh_one() -> None:
    assert "looked at 10 times" in said(samples.single())
    assert "looked at" not in said(samples.topics())  # a test set
    assert "looked at" not in said(replace(samples.single(), curve=()))


def test_what_guessing_would_give() -> None:
    evaluation = samples.single()
    golds = [outcome.gold for outcome in evaluation.outcomes]
    share = 100 * max(golds.count("positive"), golds.count("negative")) / len(golds)
    assert f"Saying positive every time would be right for {share:.1f}\u00a0%" in said(evaluation)
    assert "every time" not in said(replace(evaluation, scores={"macro_f1": Score(0.5, 0.4, 0.6, 9)}))


def test_small_weak_and_missing_labels_are_named() -> None:
    rows = [LabelScore(f"l{number}", 0.9, 0.9, 0.9, 100) for number in range(5)]
    assert "label" not in said(replace(samples.multi(), table=tuple(rows)))
    weak = [*rows, LabelScore("rare", 0.1, 0.1, 0.1, 29), LabelScore("never", 0, 0, 0, 0)]
    text = said(replace(samples.multi(), table=tuple(weak)))
    assert "One label has fewer than 30 examples here (rare): its score is mostly luck." in text
    assert "by F1: rare 10.0\u00a0%; the middle label has 90.0\u00a0%." in text
    assert "Not measured, for the file has none of them: never." in text
    many = [LabelScore(f"r{number}", 0.9, 0.9, 0.9, 3) for number in range(9)]
    text = said(replace(samples.multi(), table=tuple(many)))
    assert "9 of 9 labels have fewer than 30 examples here (r0, r1, r2, r3, r4 and 4 more): their scores" in text


def test_too_much_confidence_is_a_limit_and_too_little_is_not() -> None:
    def sure(confidence: float, right: int) -> str:
        texts = (
            TextOutcome("t", gold="a", predicted="a" if n < right else "b", confidence=confidence) for n in range(200)
        )
        return said(replace(samples.empty(), outcomes=tuple(texts)))

    assert "it claims 95.0\u00a0% and is right for 50.0\u00a0%" in sure(0.95, 100)
    assert "claims" not in sure(0.95, 190)
    assert "claims" not in sure(0.55, 190)


def test_what_was_not_read_is_said() -> None:
    whole = TextOutcome("t", gold="a", predicted="a", tokens=40)
    part = replace(whole, tokens=900, coverage=0.5)
    windows = replace(whole, tokens=900, windows=3)
    few = replace(samples.empty(), outcomes=(whole, part, replace(part, coverage=0.7)))
    assert "2 texts were too long and read in part, of 3: on average 60\u00a0% of each." in said(few)
    assert "read whole" not in said(few)
    joined = replace(samples.empty(), outcomes=(whole, windows))
    assert "1 text was read in several windows whose answers were joined, of 2." in said(joined)
    assert "All texts were read whole; the longest has 900 tokens." in said(joined)
