"""Multi-head attention in a few lines, against the library, torch, S2's single line, and four ways to get it wrong."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.effects import Effect
from unmask.lab.kit.shown import conclude_bars
from unmask.lab.pictures import Bars
from unmask.lab.words import Text
from unmask.nn.attend import Backend, attention_backend
from unmask.nn.attention import MultiHeadAttention
from unmask.nn.build import build_attention
from unmask.nn.layout import Layout
from unmask.nn.plan import AttentionPlan
from unmask.nn.positions import NoPositions
from unmask.nn.settings import LayerSettings

#: Batch, source and target length, heads, size of a head: all different, so that no swapped axis can pass.
B, S, T, N, D = 2, 5, 7, 3, 11
CASES = ("no mask", "padding", "causal", "cross-attention")
SLIPS = ("view without transpose", "softmax over queries", "√H for √D", "mask after softmax")
CHINESE = ("只 view 不 transpose", "对查询做 softmax", "√H 当作 √D", "softmax 后再遮")
TOLERANCE = 1e-12

Run = Callable[[Tensor, Tensor], Tensor]


def attention(x: Tensor, m: Tensor, layer: MultiHeadAttention, allowed: Tensor | None = None) -> Tensor:
    """Rows x (B, T, H) look at rows m (B, S, H); `allowed` broadcasts to (B, N, T, S)."""
    w = layer.projections
    q, k, v = w.query(x), w.key(m), w.value(m)  # project
    q, k, v = (y.unflatten(-1, (w.num_heads, -1)).transpose(1, 2) for y in (q, k, v))  # split: (B, N, T or S, D)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # score: (B, N, T, S)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    mixed = scores.softmax(-1) @ v  # mix: (B, N, T, D)
    return layer.output(mixed.transpose(1, 2).flatten(2))  # merge: (B, T, H)


def one_line(q: Tensor, k: Tensor, v: Tensor, size_per_head: int) -> Tensor:
    """S2's answer, with matmul spelt right."""
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(size_per_head), dim=-1) @ v


def library_layer() -> MultiHeadAttention:
    """The library's layer in double precision, with weights that make a difference."""
    layer = build_attention(LayerSettings(hidden_size=N * D, num_heads=N, ffn_size=1), N, NoPositions()).double()
    layer.attend.dropout = 0.0
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return layer


class Setting:
    """Inputs of a case, who may see whom, and how many tokens the sequences have."""

    def __init__(self, case: str) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(B, T, N * D, generator=generator, dtype=torch.float64)
        self.own = case != "cross-attention"
        self.m = self.x if self.own else torch.randn(B, S, N * D, generator=generator, dtype=torch.float64)
        self.causal = case == "causal"
        self.lengths = (T, 4) if case == "padding" else (T, T)
        self.keys = self.lengths if self.own else (S, S)
        here = torch.arange(self.m.shape[1]) < torch.tensor(self.keys)[:, None]  # (B, S)
        triangle = torch.ones(T, T, dtype=torch.bool).tril()
        self.allowed = {"no mask": None, "padding": here[:, None, None], "causal": triangle}.get(case)
        real = torch.arange(T) < torch.tensor(self.lengths)[:, None]
        weights = torch.randn(self.x.shape, generator=generator, dtype=torch.float64)
        self.weights = weights * real[..., None]  # what stands on padding counts for nothing
        self.key_padding = None if case != "padding" else ~here

    def outcome(self, run: Run, parameters: list[Tensor]) -> list[Tensor]:
        """Outputs, padding aside, and gradients of x, m and all weights."""
        x = self.x.clone().requires_grad_()
        m = x if self.own else self.m.clone().requires_grad_()
        out = run(x, m)
        found = torch.autograd.grad((out * self.weights).sum(), [x, *([] if self.own else [m]), *parameters])
        return [(out * (self.weights != 0)).detach(), *found]


def by_library(setting: Setting, layer: MultiHeadAttention, backend: Backend, x: Tensor, m: Tensor) -> Tensor:
    """The library's layer, which works on ragged rows."""
    layout, keys = Layout.ragged(setting.lengths), Layout.ragged(setting.keys)
    plan = AttentionPlan.between(layout, layout if setting.own else keys, causal=setting.causal)
    there = layout.key_mask(x.device)
    with attention_backend(layer, backend):
        rows = layer(x[there], plan, None if setting.own else m.flatten(0, 1))
    return layout.pad(rows)


def by_kernel(setting: Setting, layer: MultiHeadAttention, x: Tensor, m: Tensor) -> Tensor:
    """torch's scaled_dot_product_attention between the same matrices."""
    w = layer.projections
    q, k, v = (y.view(B, -1, N, D).transpose(1, 2) for y in (w.query(x), w.key(m), w.value(m)))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=setting.allowed)
    return layer.output(mixed.transpose(1, 2).flatten(2))


def torch_layer(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's layer with the same weights."""
    other, w = nn.MultiheadAttention(N * D, N, batch_first=True, dtype=torch.float64), layer.projections
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([w.query.weight, w.key.weight, w.value.weight]))
        other.in_proj_bias.copy_(torch.cat([w.query.bias, w.key.bias, w.value.bias]))
        other.out_proj.load_state_dict(layer.output.state_dict())
    return other


def equal(case: str) -> Record:
    """How far outputs and gradients of the short version are from those of four others."""
    setting, layer = Setting(case), library_layer()
    w, mha = layer.projections, torch_layer(layer)
    parameters = [*(one.weight for one in (w.query, w.key, w.value)), *(one.bias for one in (w.query, w.key, w.value))]
    parameters += [layer.output.weight, layer.output.bias]
    short = setting.outcome(partial(attention, layer=layer, allowed=setting.allowed), parameters)

    def by_torch(x: Tensor, m: Tensor) -> Tensor:
        hidden = ~setting.allowed if setting.causal and setting.allowed is not None else None
        return mha(x, m, m, key_padding_mask=setting.key_padding, attn_mask=hidden, need_weights=False)[0]

    packed = [mha.in_proj_weight, mha.in_proj_bias, mha.out_proj.weight, mha.out_proj.bias]
    theirs = setting.outcome(by_torch, packed)
    at = len(theirs) - 4
    theirs = [*theirs[:at], *theirs[at].chunk(3), *theirs[at + 1].chunk(3), *theirs[at + 2 :]]
    others = {
        "library, reference": setting.outcome(partial(by_library, setting, layer, "reference"), parameters),
        "library, fast": setting.outcome(partial(by_library, setting, layer, "fast"), parameters),
        "scaled_dot_product_attention": setting.outcome(partial(by_kernel, setting, layer), parameters),
        "nn.MultiheadAttention": theirs,
    }
    found: Record = {"largest_output": float(short[0].abs().max()), "gradients": len(short) - 1}
    for name, other in others.items():
        apart = [float((a - b).abs().max()) for a, b in zip(short, other, strict=True)]
        found[name] = {"outputs": apart[0], "gradients": max(apart[1:])}
    return found


@torch.no_grad()
def line() -> Record:
    """S2's line on split tensors and on unsplit ones, against the library's attention before its output matrix."""
    setting, layer = Setting("no mask"), library_layer()
    w, layout = layer.projections, Layout.ragged((T, T))
    rows = setting.x.flatten(0, 1)
    right = AttentionPlan.between(layout, layout).run(layer.attend, *w.all(rows)).flatten(1)
    q, k, v = (y(setting.x) for y in (w.query, w.key, w.value))
    heads = [y.view(B, T, N, D).transpose(1, 2) for y in (q, k, v)]
    split = one_line(heads[0], heads[1], heads[2], D).transpose(1, 2).flatten(2)
    return {
        "split": float((split.flatten(0, 1) - right).abs().max()),
        "unsplit": float((one_line(q, k, v, D).flatten(0, 1) - right).abs().max()),
        "largest": float(right.abs().max()),
        "layer": float((split - attention(setting.x, setting.x, layer)).abs().max()),
        "source": inspect.getsource(attention),
    }


@torch.no_grad()
def slips() -> Record:
    """What four common slips cost, under a causal mask; the shape is right every time."""
    setting, layer = Setting("causal"), library_layer()
    w, x = layer.projections, setting.x
    allowed = torch.ones(T, T, dtype=torch.bool).tril()
    q, k, v = (y(x) for y in (w.query, w.key, w.value))
    viewed = [y.view(B, N, T, D) for y in (q, k, v)]
    q, k, v = (y.view(B, T, N, D).transpose(1, 2) for y in (q, k, v))
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(~allowed, -math.inf)
    plain = q @ k.mT / math.sqrt(D)
    mixed = {
        "right": scores.softmax(-1) @ v,
        SLIPS[1]: scores.softmax(-2) @ v,
        SLIPS[2]: (q @ k.mT / math.sqrt(N * D)).masked_fill(~allowed, -math.inf).softmax(-1) @ v,
        SLIPS[3]: plain.softmax(-1).masked_fill(~allowed, 0.0) @ v,
    }
    merged = {name: one.transpose(1, 2).flatten(2) for name, one in mixed.items()}
    wrong = (viewed[0] @ viewed[1].mT / math.sqrt(D)).masked_fill(~allowed, -math.inf).softmax(-1) @ viewed[2]
    merged[SLIPS[0]] = wrong.reshape(B, T, N * D)
    out = {name: layer.output(one) for name, one in merged.items()}
    size = float(out["right"].square().mean().sqrt())
    found: Record = {name: float((out[name] - out["right"]).square().mean().sqrt()) / size for name in SLIPS}
    return {"error": found, "right": float((out["right"] - attention(x, x, layer, allowed)).abs().max())}


def _trials(plan: Plan) -> list[Trial]:
    cases = [Trial(case, partial(equal, case)) for case in CASES]
    return [*cases, Trial("one line", partial(line)), Trial("slips", partial(slips))]


def conclude_attention(records: Mapping[str, Record]) -> Conclusion:
    """The core is one line, the layer is not."""
    others = [name for name, value in records[CASES[0]].items() if isinstance(value, dict)]
    worst = max(value for case in CASES for name in others for value in records[case][name].values())
    line_found, slip = records["one line"], records["slips"]
    equal_layer, core = worst <= TOLERANCE, line_found["split"] <= TOLERANCE
    whole = core and line_found["unsplit"] <= TOLERANCE and line_found["layer"] <= TOLERANCE
    if not (equal_layer and core):
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.SUPPORTED if whole else Verdict.DEPENDS
    code = [one for one in line_found["source"].rstrip().split("\n") if '"""' not in one]
    first = (
        Text(
            "it equals the library (both backends) and torch's own kernel and layer",
            "与库（两种实现）、torch 自带的核和层完全一致",
        )
        if equal_layer
        else Text("it does NOT equal all of them", "与它们并不完全一致")
    )
    second = (
        Text("given split heads it is right", "输入已拆好头时，它是对的")
        if core
        else Text("even given split heads it is not right", "即使输入已拆好头，它也不对")
    )
    shares = [f"{100 * slip['error'][name]:.0f} %" for name in SLIPS]
    errors = ["; ".join(map(" ".join, zip(names, shares, strict=True))) for names in (SLIPS, CHINESE)]
    says = Text(
        f"The layer takes {len(code)} lines (below), and {first.en}: outputs and {records[CASES[0]]['gradients']} "
        f"gradients within {worst:.0e}, without mask, with padding, causal, and across two sequences. S2's line is the "
        f"core alone: {second.en} (off by {line_found['split']:.0e}); given unsplit tensors it is off by "
        f"{line_found['unsplit']:.2g}, where the largest value is {line_found['largest']:.2g}. What slips cost, as a "
        f"share of the output: {errors[0]}; none of them changes the shape.",
        f"整层需要 {len(code)} 行（见下），{first.zh}：无掩码、填充、因果、交叉四种情形下，"
        f"输出和 {records[CASES[0]]['gradients']} 个梯度相差不超过 {worst:.0e}。S2 的一行只是核心：{second.zh}"
        f"（差 {line_found['split']:.0e}）；输入未拆头则相差 {line_found['unsplit']:.2g}"
        f"（最大值 {line_found['largest']:.2g}）。"
        f"四种错误造成的误差（占输出的比例）：{errors[1]}；形状都看不出问题。",
    )
    shown = tuple((one.replace(" ", "\u00a0"),) for one in code)
    return Conclusion(
        verdict, says, (conclude_slips(slip["error"]),), Table((Text("multi-head attention", "多头注意力"),), shown)
    )


def conclude_slips(errors: Mapping[str, float]) -> Bars:
    """A bar for each slip."""
    return conclude_bars(
        Text("What common slips cost", "常见错误的代价"),
        Text("error, % of the output", "误差，占输出的 %"),
        [(Text(name, zh), Effect(*[100 * errors[name]] * 3)) for name, zh in zip(SLIPS, CHINESE, strict=True)],
        Text(
            "Root mean square of the error over that of the right output, under a causal mask.",
            "误差的均方根除以正确输出的均方根（因果掩码）。",
        ),
    )


PARTS = (Part("shortest-readable", _trials, conclude_attention),)
