"""GPT and BERT: a mask on attention against a mask in the input, and what each is then good at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from unmask.data.masking import MaskingSettings
from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.kit.daily import VOCAB
from unmask.lab.kit.effects import named, sided
from unmask.lab.kit.fitting import Fit
from unmask.lab.kit.gaps import LENGTH, RUN, bert_guesses, cloze, gaps, gpt_guesses, next_of, summed
from unmask.lab.kit.mlm import MlmRun, pretrained
from unmask.lab.kit.newspaper import LeftToRight, learned, thinned
from unmask.lab.kit.pairing import conclude_arm, conclude_bars, conclude_lost, conclude_paired, conclude_than
from unmask.lab.pictures import Heat
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, GptSettings
from unmask.nn.batch import Batch
from unmask.nn.plan import AttentionPlan
from unmask.nn.record import record_attention

TOKENS, IDS = 16, 50
ARMS = ("BERT", "GPT")
#: Both start alike: tokens of variance 1 beside fixed waves.
START = {"init": "xavier", "scale_embeddings": True, "positions": {"kind": "sinusoidal"}}
#: GPT guesses every character that it reads, BERT 15 % of them: with so many times the updates, it guesses as many.
MORE = 1 / MaskingSettings().rate
_SIZES = {"vocab_size": IDS, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "ffn_size": 128, "max_length": 32}


def _output(model: Bert | Gpt, batch: Batch, causal: bool) -> Tensor:
    """What a stack says with or without the causal mask: logits of GPT, vectors of BERT."""
    plan = AttentionPlan.between(batch.layout, batch.layout, causal=causal)
    if isinstance(model, Bert):
        return model.encoder.stack(model.encoder.embeddings(batch), plan)
    return model.stack(model.embeddings(batch), plan) @ model.embeddings.token.weight.T


@torch.no_grad()
def masked(name: str, causal: bool) -> Record:
    """Replace each token in turn: how far does every position move? And which attention weights are exactly zero?"""
    kind = BertSettings if name == "BERT" else GptSettings
    model = build_model(kind.parse({**_SIZES, "init_std": 0.2}), seed=0)
    assert isinstance(model, Bert | Gpt)
    model = model.double().eval()
    ids = torch.randint(IDS, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    with record_attention(model) as trace:
        before = _output(model, Batch.of([ids]), causal)
    own = model(Batch.of([ids]))
    moved = []
    for place in range(TOKENS):
        other = [*ids[:place], (ids[place] + 7) % IDS, *ids[place + 1 :]]
        moved.append((_output(model, Batch.of([other]), causal) - before).abs().amax(-1).tolist())
    weights = torch.stack([one.weights[0] for one in trace.attention.values()])  # (layers, N, T, T)
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    return {
        "moved": moved,  # [token that changed][position]
        "zero_later": int((weights[..., later] == 0).sum()),
        "zero_other": int((weights[..., ~later] == 0).sum()),
        "later": int(later.sum()) * weights.shape[0] * weights.shape[1],
        "from_library": float((before - (own if isinstance(own, Tensor) else own.sequence)).abs().max()),
    }


def _mask_trials(plan: Plan) -> list[Trial]:
    arms = [("GPT", True), ("GPT", False), ("BERT", False)]
    return [Trial(_mask_name(*arm), partial(masked, *arm), {"model": arm[0], "causal": arm[1]}) for arm in arms]


def _mask_name(name: str, causal: bool) -> str:
    return f"{name} {'with' if causal else 'without'} a causal mask"


def conclude_mask(records: Mapping[str, Record]) -> Conclusion:
    """That GPT has no masking would hold if its mask, taken away, made no difference."""
    gpt, bare, bert = (records[_mask_name(*arm)] for arm in (("GPT", True), ("GPT", False), ("BERT", False)))
    pairs = TOKENS * (TOKENS - 1) // 2
    leaks = sum(value != 0 for place, row in enumerate(gpt["moved"]) for value in row[:place])
    open_to = sum(any(row[:place]) for place, row in enumerate(bare["moved"]))
    hides = leaks == 0 and gpt["zero_later"] == gpt["later"] and gpt["zero_other"] == 0
    needed = open_to == TOKENS - 1
    verdict = Verdict.NOT_SUPPORTED if hides and needed else Verdict.SUPPORTED if not open_to else Verdict.DEPENDS
    seen = bert["zero_later"] + bert["zero_other"]
    lead = {
        Verdict.NOT_SUPPORTED: Text("GPT does mask: its attention.", "GPT 是有 masking 的：在注意力里。"),
        Verdict.SUPPORTED: Text("The mask makes no difference.", "这个掩码不起作用。"),
        Verdict.DEPENDS: Text("The mask does not do all of it.", "掩码只起了一部分作用。"),
    }[verdict]
    says = Text(
        f"{lead.en} With it, a changed token moves an earlier position in {leaks} of {pairs} pairs, and "
        f"{gpt['zero_later']} of {gpt['later']} weights on later positions are exactly 0. The same weights without "
        f"the mask: for {open_to} of {TOKENS - 1} tokens an earlier position moves. In BERT {seen} attention weights "
        f"are 0. So GPT lacks the [MASK] token, not masking (logits within {gpt['from_library']:.0e} of the library's "
        f"own).",
        f"{lead.zh}有掩码时，改动一个词，在 {pairs} 对位置中有 {leaks} 对的前面位置发生变化；对后面位置的 "
        f"{gpt['later']} 个注意力权重中有 {gpt['zero_later']} 个恰好为 0。同样的权重去掉掩码："
        f"{TOKENS - 1} 个词中有 {open_to} 个会影响前面的位置。BERT 中为 0 的注意力权重有 {seen} 个。"
        f"所以 GPT 没有的是 [MASK] 这个词，而不是 masking（logits 与本库因果前向相差 {gpt['from_library']:.0e}）。",
    )
    if verdict != Verdict.NOT_SUPPORTED:
        says = Text(says.en.rpartition(" So GPT")[0], says.zh.rpartition("所以 GPT")[0])
    return Conclusion(verdict, says, tuple(map(conclude_heat, (gpt, bare), (True, False))))


def conclude_heat(record: Record, causal: bool) -> Heat:
    """Who notices a changed token."""
    names = tuple(str(number + 1) for number in range(TOKENS))
    empty = not any(value for place, row in enumerate(record["moved"]) for value in row[:place])
    return Heat(
        Text(
            f"Who notices a changed token: GPT {'with' if causal else 'without'} its mask",
            f"改动一个词，谁会察觉：GPT {'有' if causal else '去掉'}掩码",
        ),
        names,
        names,
        tuple(tuple(math.log10(1 + 1e3 * value) for value in row) for row in record["moved"]),
        Text(
            f"Left of the diagonal, before the changed token, {'nothing moves' if empty else 'positions move'}.",
            f"对角线左侧，即被改的词之前，{'毫无变化' if empty else '也有变化'}。",
        ),
        Text("position", "位置"),
        Text("changed token", "被改的词"),
        Text("log10(1 + 1000 × change)", "log10(1 + 1000 × 变化)"),
    )


def gpt(seed: int) -> Gpt:
    """The blocks of the BERT it is compared with, under a causal mask."""
    like_bert = {"norm_place": "post", "final_norm": False, "embedding_norm": True, "activation": "gelu"}
    sizes = {"vocab_size": VOCAB, "hidden_size": 128, "num_layers": 2, "num_heads": 4, "ffn_size": 512}
    rest = {"max_length": 128, "dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0}}
    model = build_model(GptSettings.parse({**sizes, **like_bert, **rest, **START}), seed=seed)
    assert isinstance(model, Gpt)
    return model


def trial(name: str, updates: int, count: int, seed: int) -> Record:
    """Train one of the two, then let it fill gaps and go on from them."""
    how, batch, chosen = Fit(updates), 64, gaps(count)
    if name == "GPT":
        model, losses = learned(LeftToRight(how, length=LENGTH, batch=batch), seed, gpt)
        assert isinstance(model, Gpt)
        following = gpt_guesses(model, chosen)
        filled = following[:, 0]  # what lies right of a gap is hidden from it
    else:
        bert, losses = pretrained(MlmRun(how, length=LENGTH, batch=batch, model=START), seed)
        filled = bert_guesses(bert, [cloze(gap) for gap in chosen])
        steps = [bert_guesses(bert, [next_of(gap, step) for gap in chosen]) for step in range(RUN)]
        following = torch.stack(steps, dim=1)
    scores = {**summed("cloze", filled), **summed("next", following[:, 0]), **summed("run", following)}
    return {**scores, "losses": thinned(losses)}


def _trials(plan: Plan) -> list[Trial]:
    updates, count = plan.at(1, 300, 900), plan.at(64, 2000)
    arms = {"BERT": round(MORE * updates), "GPT": updates}
    return [
        Trial(
            named(arm, seed),
            partial(trial, arm, updates, count, seed),
            {"model": arm, "updates": updates, "gaps": count, "seed": seed},
        )
        for seed in range(plan.seeds)
        for arm, updates in arms.items()
    ]


def conclude_trained(records: Mapping[str, Record]) -> Conclusion:
    """Each must win what it was trained for."""
    gap = conclude_paired(records, "BERT", "GPT", "cloze_log")
    following, run = (conclude_paired(records, "GPT", "BERT", value) for value in ("next_log", "run_log"))
    sides = sided(gap), sided(following)
    verdict = sides[0] if sides[0] == sides[1] else Verdict.DEPENDS
    right = {
        (arm, value): f"{conclude_arm(records, arm, value, 0.01).mean:.1f} %"
        for arm in ARMS
        for value in ("cloze_right", "next_right")
    }
    lost = conclude_lost(records, "run_log")
    says = Text(
        f"In a gap, BERT gives the right character a log probability that is {conclude_than(gap).en} GPT's, "
        f"by {gap.signed()} (right guesses: {right['BERT', 'cloze_right']} against {right['GPT', 'cloze_right']}). "
        f"Going on from the left side alone, GPT's is {conclude_than(following).en} BERT's, by {following.signed()} "
        f"({right['GPT', 'next_right']} against {right['BERT', 'next_right']}), and over {RUN} characters in a row by "
        f"{run.signed()} a character. Natural logarithms; 95 % intervals over seeds.{lost.en}",
        f"填空时，BERT 给正确字的对数概率比 GPT {conclude_than(gap).zh}，相差 {gap.signed()}"
        f"（猜对率 {right['BERT', 'cloze_right']} 对 {right['GPT', 'cloze_right']}）。只看左边往下续写时，GPT 比 BERT "
        f"{conclude_than(following).zh}，相差 {following.signed()}（{right['GPT', 'next_right']} 对 "
        f"{right['BERT', 'next_right']}）；连续 {RUN} 个字，平均每字相差 {run.signed()}。"
        f"自然对数，区间为种子间的 95 % 区间。{lost.zh}",
    )
    names = {
        "cloze_log": Text("gap", "填空"),
        "next_log": Text("next", "下一字"),
        "run_log": Text("8 in a row", "连续 8 字"),
    }
    groups = {both(arm): [conclude_arm(records, arm, value) for value in names] for arm in ARMS}
    picture = conclude_bars(
        Text("Log probability of the right character", "正确字的对数概率"),
        Text("mean natural log probability", "平均对数概率（自然对数）"),
        tuple(names.values()),
        groups,
        Text(
            "Nearer to zero is better. GPT's first two bars are the same by construction: it sees no right side.",
            "越接近零越好。GPT 的前两根柱子必然相同：它从不看右边。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("causal-mask", _mask_trials, conclude_mask),
    Part("cloze-and-generation", _trials, conclude_trained),
)
