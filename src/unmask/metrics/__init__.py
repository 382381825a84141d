"""Predictions → numbers: scores that agree with the reference of each field, and how sure they are. Knows no tensors.

Scores are shares between 0 and 1 everywhere. Each file is one kind of prediction:

    classes, numbers, entities, answers (and unanswerable)    scores
    calibration                                               whether confidence means anything
    intervals, compare                                        how sure a score is, whether two systems differ
"""

from unmask.metrics.answers import AnswerMarks, AnswerScores, cmrc_marks, cmrc_scores, squad_marks, squad_scores
from unmask.metrics.calibration import Reliability, brier, expected_calibration_error, reliability
from unmask.metrics.classes import (
    ClassScores,
    LabelSetScores,
    accuracy,
    class_scores,
    confusion_matrix,
    label_set_scores,
    matthews,
)
from unmask.metrics.compare import Comparison, mcnemar, paired_test
from unmask.metrics.entities import Entity, EntityScores, Scheme, entities_of, entity_counts, entity_scores
from unmask.metrics.intervals import Interval, bootstrap, bootstrap_sums, share_interval
from unmask.metrics.numbers import (
    NumberScores,
    mean_absolute_error,
    mean_squared_error,
    number_scores,
    pearson,
    spearman,
)
from unmask.metrics.scores import Score, ScoreTable, f1_of, macro_f1_of, macro_f1_within
from unmask.metrics.unanswerable import Squad2Scores, squad2_marks, squad2_scores

__all__ = [
    "AnswerMarks",
    "AnswerScores",
    "ClassScores",
    "Comparison",
    "Entity",
    "EntityScores",
    "Interval",
    "LabelSetScores",
    "NumberScores",
    "Reliability",
    "Scheme",
    "Score",
    "ScoreTable",
    "Squad2Scores",
    "accuracy",
    "bootstrap",
    "bootstrap_sums",
    "brier",
    "class_scores",
    "cmrc_marks",
    "cmrc_scores",
    "confusion_matrix",
    "entities_of",
    "entity_counts",
    "entity_scores",
    "expected_calibration_error",
    "f1_of",
    "label_set_scores",
    "macro_f1_of",
    "macro_f1_within",
    "matthews",
    "mcnemar",
    "mean_absolute_error",
    "mean_squared_error",
    "number_scores",
    "paired_test",
    "pearson",
    "reliability",
    "share_interval",
    "spearman",
    "squad2_marks",
    "squad2_scores",
    "squad_marks",
    "squad_scores",
]
