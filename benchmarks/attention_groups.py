"""How much padding a group of sequences may have before attention gets slower: the reason for PADDING_TOLERANCE.

python benchmarks/attention_groups.py
"""

from __future__ import annotations

import torch

import common
from unmask.data.batching import token_budget_batches
from unmask.nn import plan as plans
from unmask.nn.attend import Attend
from unmask.nn.layout import Layout
from unmask.nn.positions import NoPositions
from unmask.nn.scores import ScaledDot

HEADS, SIZE = 12, 32


def main() -> None:
    chosen = common.arguments(__doc__ or "").parse_args()
    torch.set_num_threads(chosen.threads)
    words = [len(text.split()) + 2 for text in common.mixed_length_texts(512)]
    layouts = [Layout.ragged(words[number] for number in batch) for batch in token_budget_batches(words)]
    attend = Attend(ScaledDot(SIZE), NoPositions()).eval()
    rows = [torch.randn(3, layout.num_rows, HEADS, SIZE) for layout in layouts]
    contestants, groups = {}, {}
    for tolerance in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0, 9.0):
        plans.PADDING_TOLERANCE = tolerance
        made = [plans.AttentionPlan.between(layout, layout) for layout in layouts]
        groups[str(tolerance)] = sum(len(plan.groups) for plan in made)

        @torch.inference_mode()
        def run(made: list[plans.AttentionPlan] = made) -> None:
            for plan, (q, k, v) in zip(made, rows, strict=True):
                plan.run(attend, q, k, v)

        contestants[str(tolerance)] = run
    best = common.interleaved(contestants, max(chosen.rounds, 10))
    base = best["0.0"]
    table = [
        {
            "tolerance": name,
            "groups": groups[name],
            "ms": round(1000 * seconds, 2),
            "times pure groups": round(base / seconds, 2),
        }
        for name, seconds in best.items()
    ]
    title = f"attention over {len(words)} texts in {len(layouts)} batches, at most {max(words)} tokens"
    common.show(title, table, chosen.json)


if __name__ == "__main__":
    main()
