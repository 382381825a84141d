"""What the decoder's mask hides: change a token and see who notices, under both readings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Trial, Verdict
from unmask.lab.pictures import Heat
from unmask.lab.words import Text
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.settings import GptSettings
from unmask.nn.attend import attention_backend
from unmask.nn.batch import Batch
from unmask.nn.masks import CAUSAL, Mask
from unmask.nn.plan import AttentionPlan, Group

TOKENS, VOCAB = 12, 50
#: A: what stands after a row is hidden. B: the row itself too.
MASKS = {"A": 0, "B": -1}


def stack(residual: bool = True) -> Gpt:
    """Two layers of a causal decoder, in double precision."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "ffn_size": 128, "max_length": 16}
    model = build_model(GptSettings.parse({**sizes, "residual": residual, "init_std": 0.2}), seed=0)
    assert isinstance(model, Gpt)
    return model.double().eval()


def allowed(mask: str) -> Tensor:
    """(T, T): who may see whom."""
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(MASKS[mask])


def logits(model: Gpt, vectors: Tensor, mask: str) -> Tensor:
    """What a stack says of embedded tokens (T, H) under a mask."""
    group = Group(((0, TOKENS, TOKENS),), TOKENS, TOKENS, Mask(allowed(mask)))
    with attention_backend(model, "reference"):  # a row that may see nothing takes nothing home
        rows = model.stack(vectors, AttentionPlan((group,), None, None, None))
    return rows @ model.embeddings.token.weight.T


def tokens() -> list[int]:
    """Twelve of them, always the same."""
    return torch.randint(VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.no_grad()
def future_change(mask: str) -> Record:
    """Replace each token in turn: how far does each row of logits move?"""
    model, ids = stack(), tokens()
    before = logits(model, model.embeddings(Batch.of([ids])), mask)
    moved = []
    for place in range(TOKENS):
        other = [*ids[:place], (ids[place] + 7) % VOCAB, *ids[place + 1 :]]
        after = logits(model, model.embeddings(Batch.of([other])), mask)
        moved.append((after - before).abs().amax(-1).tolist())
    scores = torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain = scores.masked_fill(~allowed(mask), float("-inf")).softmax(-1)
    own = model(Batch.of([ids]))
    return {
        "moved": moved,  # [token that changed][row]
        "keys": allowed(mask).sum(-1).tolist(),
        "rows_without_number": int(plain.isnan().any(-1).sum()),
        "from_library": float((before - own).abs().max()),
        "from_torch": float((allowed(mask) ^ CAUSAL.dense(TOKENS, TOKENS, plain.device)).sum()),  # type: ignore[operator]
    }


def shift(mask: str, residual: bool) -> Record:
    """How much a row's logits depend on the token in that row, which is its own answer if nothing is shifted."""
    model = stack(residual)
    with torch.no_grad():
        vectors = model.embeddings(Batch.of([tokens()]))
    most = []
    for row in range(TOKENS):
        leaf = vectors.clone().requires_grad_()
        logits(model, leaf, mask)[row].abs().sum().backward()
        assert leaf.grad is not None
        most.append(float(leaf.grad[row].abs().max()))
    return {"gradient": most}


def _future_trials(plan: Plan) -> list[Trial]:
    return [Trial(f"mask {mask}", partial(future_change, mask), {"mask": mask}) for mask in MASKS]


def _shift_trials(plan: Plan) -> list[Trial]:
    arms = [(mask, residual) for mask in MASKS for residual in (True, False)]
    return [Trial(_shift_name(*arm), partial(shift, *arm), {"mask": arm[0], "residual": arm[1]}) for arm in arms]


def _shift_name(mask: str, residual: bool) -> str:
    return f"mask {mask}, {'with' if residual else 'without'} residuals"


def conclude_future(records: Mapping[str, Record]) -> Conclusion:
    """S1's reading must keep the past still and every row alive; S3's, taken literally, kills the first row."""
    a, b = records["mask A"], records["mask B"]
    leak = {name: _before(one["moved"]) for name, one in (("A", a), ("B", b))}
    alive = min(one[place] for place, one in enumerate(a["moved"])) > 0
    right = leak["A"] == 0 and alive and min(a["keys"]) == 1 and a["from_library"] <= 1e-10 and a["from_torch"] == 0
    literal = leak["B"] == 0 and min(b["keys"]) > 0 and not b["rows_without_number"]
    verdict = Verdict.DEPENDS if right and not literal else Verdict.SUPPORTED if right else Verdict.NOT_SUPPORTED
    says = Text(
        f"S1's mask holds: whatever token changes, no earlier row moves (largest change {leak['A']:.0f}), the row "
        f"itself does, every row sees at least {min(a['keys'])} key, and it equals torch's causal mask (0 of "
        f"{TOKENS**2} entries differ; logits within {a['from_library']:.0e} of the library's own causal pass). "
        f"S3-5.2 taken literally does not: "
        f"its first row has {min(b['keys'])} keys, and the softmax formula gives no number in "
        f"{b['rows_without_number']} of {TOKENS} rows. Read as 'the token to be guessed', S3 says the same as S1.",
        f"S1 的掩码成立：无论改哪个 token，前面的行都不动（最大变化 {leak['A']:.0f}），本行会动，每行至少能看到 "
        f"{min(a['keys'])} 个键，并与 torch 的因果掩码完全一致（{TOKENS**2} 个位置 0 处不同；"
        f"logits 与本库因果前向相差 {a['from_library']:.0e}）。S3-5.2 按字面理解不成立："
        f"第一行只有 {min(b['keys'])} 个键，softmax 公式在 "
        f"{TOKENS} 行中有 {b['rows_without_number']} 行得不到数。若把“当前 token”理解为要预测的词，则 S3 与 S1 一致。",
    )
    names = tuple(str(number + 1) for number in range(TOKENS))
    seen = tuple(tuple(math.log10(1 + 1e3 * value) for value in rows) for rows in a["moved"])
    picture = Heat(
        Text("Who notices a changed token (mask A)", "改动一个 token，谁会察觉（掩码 A）"),
        names,
        names,
        seen,
        Text(
            "Nothing lies left of the diagonal: rows before the changed token do not move at all.",
            "对角线左侧一片空白：被改 token 之前的行毫无变化。",
        ),
        Text("row of logits", "logits 的行"),
        Text("changed token", "被改的 token"),
        Text("log10(1 + 1000 × change)", "log10(1 + 1000 × 变化)"),
    )
    return Conclusion(verdict, says, (picture,))


def _before(moved: list[list[float]]) -> float:
    """The most that a row before a changed token moves."""
    return max(value for place, rows in enumerate(moved) for value in [0.0, *rows[:place]])


def conclude_shift(records: Mapping[str, Record]) -> Conclusion:
    """Hiding the diagonal cannot stand in for the shift, because the residual goes past the mask."""
    with_b, without_b = (records[_shift_name("B", residual)]["gradient"] for residual in (True, False))
    if any(without_b[:2]):
        raise ArithmeticError("where there is nothing to choose the mask must decide alone: the test itself is wrong")
    verdict = Verdict.NOT_SUPPORTED if min(with_b) > 0 else Verdict.SUPPORTED
    says = Text(
        f"Hiding the diagonal cannot replace the shift. Were the input not shifted, every row would still depend on "
        f"its own answer under mask B: gradients from {min(with_b):.2g} to {max(with_b):.2g}, because the residual "
        f"goes past the mask. Without residuals the first two rows are cut off exactly (0), the others not (up to "
        f"{max(without_b):.2g}): a row's query is made from its own token and chooses among the keys.",
        f"遮对角线不能代替右移。若输入不右移，掩码 B 下每一行仍依赖自己的答案：梯度在 {min(with_b):.2g} 到 "
        f"{max(with_b):.2g} 之间，因为残差绕过了掩码。去掉残差后，前两行完全断开（0），其余各行仍不为零"
        f"（最大 {max(without_b):.2g}）：查询向量由本行的 token 算出，会在各个键之间做选择。",
    )
    return Conclusion(verdict, says)


PARTS = (
    Part("future-change", _future_trials, conclude_future),
    Part("shift", _shift_trials, conclude_shift),
)
