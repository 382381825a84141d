"""Where BERT's limits of 512 tokens and two segments come from: two tables, which can be made longer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from unmask.bundle import Bundle, load
from unmask.errors import UserError
from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import daily
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.long_positions import extend_positions
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.nn.positions.absolute import LearnedPositions
from unmask.nn.table import vector_table

LENGTHS = (511, 512, 513)
KINDS = ("learned", "sinusoidal", "rotary")
WAYS = ("random", "repeated", "hierarchical")
TEXTS, LONGER = 20, 1024


def base(kind: str = "learned") -> Bert:
    """BERT-base but for one layer instead of twelve and a small vocabulary, which know nothing of either limit."""
    sizes = {"vocab_size": 1000, "hidden_size": 768, "num_layers": 1, "num_heads": 12, "ffn_size": 3072}
    model = build_model(BertSettings.parse({**sizes, "positions": {"kind": kind}}), seed=0)
    assert isinstance(model, Bert)
    return model.eval()


@torch.inference_mode()
def tried(model: Bert, ids: list[int], segments: list[int] | None = None) -> Record:
    """Whether a model reads a text, and what is said if it does not."""
    try:
        rows = model(Batch.of([ids], None if segments is None else [segments])).sequence
    except (UserError, IndexError) as error:
        return {"runs": False, "said": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"runs": bool(rows.isfinite().all()), "said": ""}


def lengths(kind: str) -> Record:
    """A model with a kind of positions reads 511, 512 and 513 tokens."""
    model = base(kind)
    return {str(length): tried(model, [n % 1000 for n in range(length)]) for length in LENGTHS}


def extended(way: str) -> Record:
    """mini-zh with 1,024 rows: does it stay as it was, and does it read more?"""
    bundle = load("mini-zh")
    assert isinstance(bundle.model, Bert)
    old, new = bundle.model.eval(), extend_positions(bundle.model, LONGER).eval()
    positions = new.encoder.embeddings.positions
    assert isinstance(positions, LearnedPositions)
    table = positions.table.weight.data
    limit = len(table) // 2
    if way == "random":
        table[limit:] = table[:limit].std() * torch.randn(
            table[limit:].shape, generator=torch.Generator().manual_seed(0)
        )
    elif way == "repeated":
        table[limit:] = table[:limit]
    text = bundle.tokenizer.encode("".join(texts(bundle))).ids[: LONGER - 1]
    batch = bundle.batch(texts(bundle))
    return {
        "apart": _apart(old, new, batch),
        "longest": batch.layout.max_length,
        "before": tried(old, text[: limit + 1]),
        **{str(length): tried(new, [*text[: length - 1], text[-1]]) for length in (limit + 1, LONGER)},
    }


def texts(bundle: Bundle) -> list[str]:
    """Stretches of real text, none of more tokens than the model reads."""
    known = daily()
    long = [article for article in known.held_out if len(article) > 500][:TEXTS]
    found = ["".join(known.characters[id] for id in one[: 24 * (n + 1)]) for n, one in enumerate(long)]
    return [text.replace("[UNK]", "某") for text in found]


@torch.inference_mode()
def _apart(old: Bert, new: Bert, batch: Batch) -> float:
    return float((old(batch).sequence - new(batch).sequence).abs().max())


def refused() -> Record:
    """BERT-base's two segments asked for 0, 1 and 2."""
    model, ids = base(), list(range(9))
    return {str(most): tried(model, ids, [min(most, n // 3) for n in range(9)]) for most in (0, 1, 2)}


def added() -> Record:
    """mini-zh with a third row of segments."""
    bundle = load("mini-zh")
    assert isinstance(bundle.model, Bert)
    old, new = bundle.model.eval(), copy.deepcopy(bundle.model).eval()
    table = old.encoder.embeddings.segment
    assert table is not None
    new.encoder.embeddings.segment = _longer(table.weight.data)
    first, second = texts(bundle)[:4], texts(bundle)[4:8]
    ids = bundle.tokenizer.encode(first[0]).ids
    thirds = [3 * n // len(ids) for n in range(len(ids))]
    three = bundle.tokenizer.encode(first[0] + "。" + second[0], first[1]).ids
    halves = [2 * n // len(three) for n in range(len(three))]
    return {
        "apart": _apart(old, new, bundle.batch(first, second)),
        "before": tried(old, ids, thirds),
        "after": tried(new, ids, thirds),
        "three_sentences": tried(old, three, halves),
    }


def _longer(table: Tensor) -> nn.Embedding:
    """A copy of the last row behind the others."""
    longer = vector_table(len(table) + 1, table.shape[1])
    longer.weight.data.copy_(torch.cat([table, table[-1:]]))
    return longer


def _position_trials(plan: Plan) -> list[Trial]:
    kinds = [Trial(kind, partial(lengths, kind), {"positions": kind}) for kind in KINDS]
    return kinds + [Trial(f"mini-zh, {way}", partial(extended, way), {"rows": way}) for way in WAYS]


def _segment_trials(plan: Plan) -> list[Trial]:
    return [Trial("BERT-base", refused), Trial("mini-zh, three rows", added)]


def conclude_positions(records: Mapping[str, Record]) -> Conclusion:
    """512 runs and 513 is refused because of the table alone."""
    table, said = records["learned"], records["learned"]["513"]["said"]
    computed = [kind for kind in KINDS[1:] if records[kind]["513"]["runs"]]
    refuses = not table["513"]["runs"]
    if not table["512"]["runs"] or not refuses:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.SUPPORTED if len(computed) == len(KINDS) - 1 else Verdict.DEPENDS
    longer = {way: records[f"mini-zh, {way}"] for way in WAYS}
    apart = max(one["apart"] for one in longer.values())
    runs = [way for way, one in longer.items() if one["513"]["runs"] and one[str(LONGER)]["runs"]]
    most = max(one["longest"] for one in longer.values())
    says = Text(
        f"With a learned table of 512 rows, 512 tokens {conclude_run(table['512'], 'run', 'are refused')} and 513 "
        f"{conclude_run(table['513'], 'run', 'are refused')}{f' (“{said}”)' if said else ''}; with computed "
        "positions 513 run: "
        f"{', '.join(computed) or 'none'}. mini-zh, extended to {LONGER:,} rows without training, reads 513 and "
        f"{LONGER:,} "
        f"tokens with these new rows: {', '.join(runs) or 'none'}; on {TEXTS} texts of up to {most} tokens its "
        "output differs "
        f"from before by {apart:.0g}.",
        f"可学习的位置表有 512 行时，512 个词{conclude_run(table['512'], '能运行', '被拒绝')}，513 "
        f"个词{conclude_run(table['513'], '能运行', '被拒绝')}"
        f"{f'（“{said}”）' if said else ''}；位置由计算得到时，513 个词能运行的有：{'、'.join(computed) or '无'}。"
        "mini-zh 不经训练扩展到 "
        f"{LONGER:,} 行后，能读 513 和 {LONGER:,} 个词的新行有：{'、'.join(runs) or '无'}；在 {TEXTS} 段不超过 "
        f"{most} 个词的文本上，"
        f"输出与原来相差 {apart:.0g}。",
    )
    rows = [(kind, *(conclude_run(records[kind][str(n)], "✓", "✗") for n in LENGTHS), "", "") for kind in KINDS]
    rows += [
        (
            f"mini-zh, {way}",
            "",
            "",
            conclude_run(one["513"], "✓", "✗"),
            conclude_run(one[str(LONGER)], "✓", "✗"),
            f"{one['apart']:.0g}",
        )
        for way, one in longer.items()
    ]
    columns = (
        Text("positions", "位置"),
        *(Text(f"{n} tokens", f"{n} 个词") for n in (*LENGTHS, LONGER)),
        Text("difference on short texts", "短文本上的差"),
    )
    return Conclusion(verdict, says, (), Table(columns, tuple(rows)))


def conclude_run(one: Record, yes: str, no: str) -> str:
    """Whether it ran, in words."""
    return yes if one["runs"] else no


def conclude_segments(records: Mapping[str, Record]) -> Conclusion:
    """A third segment needs a third row, nothing else."""
    two, three = records["BERT-base"], records["mini-zh, three rows"]
    refuses = two["1"]["runs"] and not two["2"]["runs"] and not three["before"]["runs"]
    right = refuses and three["after"]["runs"] and three["apart"] == 0
    verdict = Verdict.SUPPORTED if right else Verdict.DEPENDS
    if two["2"]["runs"]:
        verdict = Verdict.NOT_SUPPORTED
    sentences = three["three_sentences"]
    says = Text(
        f"A table of two rows takes ids 0 and 1; id 2 {conclude_run(two['2'], 'runs', 'is refused')}"
        f"{' (“' + two['2']['said'] + '”)' if two['2']['said'] else ''}. With a third row, a copy of the second, the "
        "same "
        f"input {conclude_run(three['after'], 'runs', 'is still refused')} in mini-zh, and inputs with ids 0 and 1 "
        "differ by "
        f"{three['apart']:.0g} from before. Three sentences within two segments "
        f"{conclude_run(sentences, 'run', 'are refused')}.",
        f"两行的表接受编号 0 和 1；编号 2 {conclude_run(two['2'], '能运行', '被拒绝')}"
        f"{'（“' + two['2']['said'] + '”）' if two['2']['said'] else ''}。给 mini-zh 添上第三行（复制第二行）后，"
        "同样的输入"
        f"{conclude_run(three['after'], '能运行', '仍被拒绝')}，编号为 0、1 的输入与原来相差 {three['apart']:.0g}。"
        "三个句子放进两个 segment，"
        f"{conclude_run(sentences, '能运行', '被拒绝')}。",
    )
    return Conclusion(verdict, says)


PARTS = (Part("positions", _position_trials, conclude_positions), Part("segments", _segment_trials, conclude_segments))
