"""How much padding a group of sequences may have before attention gets slower: the reason for PADDING_TOLERANCE.

    python benchmarks/attention_groups.py

Two loads: many texts sorted by length into batches by token budget, as when embedding a file, and batches of 32 texts
as they come, as in training or serving, where nearly every length in a batch is another.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import common
from unmask.data.batching import token_budget_batches
from unmask.nn import plan as plans
from unmask.nn.attend import Attend
from unmask.nn.layout import Layout
from unmask.nn.positions import NoPositions
from unmask.nn.scores import ScaledDot

HEADS, SIZE = 12, 32
TOLERANCES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0, 9.0)


def contestant(layouts: list[Layout], tolerance: float) -> tuple[Callable[[], None], int]:
    """Attention over all batches with plans of this tolerance, plans included; and how many groups they have."""
    attend = Attend(ScaledDot(SIZE), NoPositions()).eval()
    rows = [torch.randn(3, layout.num_rows, HEADS, SIZE) for layout in layouts]

    def planned() -> list[plans.AttentionPlan]:
        plans.padding_tolerance = lambda order: tolerance
        return [plans.AttentionPlan.between(layout, layout) for layout in layouts]

    @torch.inference_mode()
    def run() -> None:
        for plan, (q, k, v) in zip(planned(), rows, strict=True):
            for _ in range(6):  # a plan serves every layer
                plan.run(attend, q, k, v)

    return run, sum(len(plan.groups) for plan in planned())


def main() -> None:
    chosen = common.arguments(__doc__ or "").parse_args()
    torch.set_num_threads(chosen.threads)
    words = [len(text.split()) + 2 for text in common.mixed_length_texts(512)]
    loads = {
        "sorted": [Layout.ragged(words[number] for number in batch) for batch in token_budget_batches(words)],
        "as they come": [Layout.ragged(words[start : start + 32]) for start in range(0, 512, 32)],
    }
    table = []
    for load, layouts in loads.items():
        made = {str(tolerance): contestant(layouts, tolerance) for tolerance in TOLERANCES}
        best = common.interleaved({name: run for name, (run, _) in made.items()}, chosen.rounds)
        table += [
            {
                "load": load,
                "tolerance": name,
                "groups": made[name][1],
                "ms": round(1000 * seconds, 1),
                "times pure groups": round(best["0.0"] / seconds, 2),
            }
            for name, seconds in best.items()
        ]
    common.show(f"attention, 6 layers, over {len(words)} texts of at most {max(words)} tokens", table, chosen.json)


if __name__ == "__main__":
    main()
