"""The two losses of pre-training: an example small enough for a pencil, and a batch that shows what is averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.pretraining import PretrainBatch
from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.words import Text
from unmask.models.bert import Bert
from unmask.models.init import build_model
from unmask.models.settings import BertSettings
from unmask.nn.batch import Batch
from unmask.nn.heads import MaskedTokenHead, PairHead
from unmask.tasks.pretrain import Pretraining
from unmask.train.step import backward

TOLERANCE = 1e-12
#: Logits of two chosen tokens and of the pair; the third token is true both times, and so is "is next".
TOKEN_LOGITS = ((1, 2, 5), (1, 1, 2))
PAIR_LOGITS = (3, 1)
#: With a pencil: p = 5/8, 1/2 and 3/4.
BY_HAND = {"mlm": (math.log(8 / 5) + math.log(2)) / 2, "nsp": math.log(4 / 3)}


def bert(vocab: int, *, tied: bool) -> Bert:
    """A small BERT with both heads, in double precision."""
    sizes = {"vocab_size": vocab, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "ffn_size": 32, "max_length": 16}
    heads = [{"kind": "mlm", "tied": tied}, {"kind": "nsp"}]
    still = {"embedding": 0.0, "residual": 0.0, "attention": 0.0}
    model = build_model(BertSettings.parse({**sizes, "heads": heads, "dropout": still, "init_std": 0.3}), seed=0)
    assert isinstance(model, Bert)
    return model.double()


@torch.no_grad()
def told(model: Bert, batch: PretrainBatch) -> None:
    """Give the heads the weights with which they say the logits of the example."""
    tokens, pairs = model.heads["mlm"], model.heads["nsp"]
    assert isinstance(tokens, MaskedTokenHead)
    assert isinstance(pairs, PairHead)
    assert tokens.output is not None
    rows = tokens.norm(tokens.activation(tokens.dense(model(batch.batch).sequence[batch.masked_rows])))  # (2, H)
    wanted = torch.tensor(TOKEN_LOGITS, dtype=torch.float64).log()
    tokens.output.weight.copy_((torch.linalg.pinv(rows) @ wanted).T)
    pairs.dense.weight.zero_()
    pairs.dense.bias.copy_(torch.tensor(PAIR_LOGITS, dtype=torch.float64).log())


def by_hand() -> Record:
    """The library's training step on the example."""
    batch = PretrainBatch(
        Batch.of([[0, 1, 2, 1, 0]], [[0, 0, 0, 1, 1]]), torch.tensor([1, 3]), torch.tensor([2, 2]), torch.tensor([0])
    )
    model = bert(3, tied=False)
    told(model, batch)
    return {"library": backward(model, Pretraining("nsp"), [batch]), "hand": dict(BY_HAND)}


def two_texts() -> tuple[PretrainBatch, list[PretrainBatch]]:
    """Two texts with 1 and 3 chosen tokens, as one batch and as two."""
    texts = ([3, 5, 1, 6, 4, 7, 4], [3, 8, 1, 1, 4, 9, 10, 1, 4])
    segments = ([0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1, 1])
    chosen, answers, labels = ([2], [2, 3, 7]), ([11], [5, 12, 6]), (0, 1)
    apart = [
        PretrainBatch(Batch.of([text], [segment]), torch.tensor(rows), torch.tensor(right), torch.tensor([label]))
        for text, segment, rows, right, label in zip(texts, segments, chosen, answers, labels, strict=True)
    ]
    rows = torch.tensor([*chosen[0], *(len(texts[0]) + row for row in chosen[1])])
    together = PretrainBatch(Batch.of(texts, segments), rows, torch.tensor([11, 5, 12, 6]), torch.tensor(labels))
    return together, apart


def batch_of_two() -> Record:
    """What is averaged, what counts for nothing, and what is minimised."""
    model = bert(13, tied=True)
    together, apart = two_texts()
    task = Pretraining("nsp")
    found = backward(model, task, [together])
    whole = _taken(model)
    backward(model, task, apart)
    split = _taken(model)

    encoded = model(together.batch)
    logits = model.masked_token_logits(encoded.sequence)
    labels = torch.full((len(logits),), -100)
    labels[together.masked_rows] = together.targets
    mlm = F.cross_entropy(logits, labels)  # all rows, those not chosen ignored: torch's way, not the library's
    nsp = F.cross_entropy(model.next_sentence_logits(encoded), torch.tensor([0, 1]))
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    elsewhere = F.cross_entropy(logits + 100 * noise * (labels == -100)[:, None], labels)
    rows_gradient = torch.autograd.grad(mlm, encoded.sequence, retain_graph=True)[0][labels == -100]
    first, second = _gradients(model, mlm), _gradients(model, nsp)
    chosen = F.cross_entropy(logits[together.masked_rows], together.targets, reduction="none").detach()
    return {
        "library": found,
        "torch": {"mlm": float(mlm.detach()), "nsp": float(nsp.detach())},
        "of_tokens": chosen.tolist(),
        "means_of_texts": [float(chosen[:1].mean()), float(chosen[1:].mean())],
        "change_by_others": float((elsewhere - mlm).detach().abs()),
        "gradient_of_others": float(rows_gradient.abs().max()),
        "sum_of_gradients": max(float((a + b - c).abs().max()) for a, b, c in zip(first, second, whole, strict=True)),
        "accumulated": max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)),
        "largest_gradient": max(float(one.abs().max()) for one in whole),
    }


def _taken(model: Bert) -> list[Tensor]:
    """The gradients that a model has gathered, which it loses."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def _gradients(model: Bert, loss: Tensor) -> list[Tensor]:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if one is None else one for p, one in zip(parameters, found, strict=True)]


def _trials(plan: Plan) -> list[Trial]:
    return [Trial("by hand", partial(by_hand)), Trial("batch of two", partial(batch_of_two))]


def conclude_by_hand(records: Mapping[str, Record]) -> Conclusion:
    """All numbers must agree, and the sum must be what is minimised."""
    hand, two = records["by hand"], records["batch of two"]
    error = max(abs(hand["library"][name] - hand["hand"][name]) for name in ("mlm", "nsp"))
    mean = sum(two["of_tokens"]) / len(two["of_tokens"])
    means = sum(two["means_of_texts"]) / len(two["means_of_texts"])
    apart = {
        "mean": max(abs(two["library"]["mlm"] - mean), abs(two["library"]["mlm"] - two["torch"]["mlm"])),
        "pairs": abs(two["library"]["nsp"] - two["torch"]["nsp"]),
        "others": max(two["change_by_others"], two["gradient_of_others"]),
        "sum": two["sum_of_gradients"],
        "accumulated": two["accumulated"],
    }
    wrong = [name for name, value in {"hand": error, **apart}.items() if not value <= TOLERANCE]
    verdict = Verdict.NOT_SUPPORTED if wrong else Verdict.SUPPORTED
    total = sum(hand["library"].values())
    head = (
        Text(
            f"Not all numbers agree to {TOLERANCE:.1g}: {', '.join(wrong)}.",
            f"并非所有数字都一致到 {TOLERANCE:.1g}：{'、'.join(wrong)}。",
        )
        if wrong
        else Text("Pencil, library and torch agree.", "手算、本库与 torch 三者一致。")
    )
    says = Text(
        f"{head.en} The example gives L_MLM {hand['library']['mlm']:.6f}, L_NSP {hand['library']['nsp']:.6f}, sum "
        f"{total:.6f} (off by {error:.1g} from the values by hand). In a batch with 1 and 3 chosen tokens the loss is "
        f"the mean over all 4, {two['library']['mlm']:.4f}; the mean of the two texts' means would be {means:.4f}. "
        f"Other logits of tokens that were not chosen change the loss by {apart['others']:.1g}; the gradient of the "
        f"sum differs from the sum of gradients by {apart['sum']:.1g}, that of two micro-batches from one batch by "
        f"{apart['accumulated']:.1g} (largest gradient {two['largest_gradient']:.2g}).",
        f"{head.zh}算例给出 L_MLM {hand['library']['mlm']:.6f}，L_NSP {hand['library']['nsp']:.6f}，和 {total:.6f}"
        f"（与手算相差 {error:.1g}）。两段文本分别有 1 个和 3 个被选词时，损失是 4 个词的平均 "
        f"{two['library']['mlm']:.4f}；若先在每段内平均再平均，则是 {means:.4f}。"
        f"改动未被选中的词的 logits，损失变化 {apart['others']:.1g}；和的梯度与梯度之和相差 {apart['sum']:.1g}，"
        f"两个小批累积与一整批相差 {apart['accumulated']:.1g}（最大梯度 {two['largest_gradient']:.2g}）。",
    )
    return Conclusion(verdict, says, (), conclude_table(hand))


def conclude_table(hand: Record) -> Table:
    """The example, by hand and by the library."""
    total = sum(hand["library"].values())
    columns = (Text("loss", "损失"), Text("by hand", "手算"), Text("library", "本库"), Text("difference", "差"))
    formulas = {"mlm": "L_MLM = (ln 8/5 + ln 2)/2", "nsp": "L_NSP = ln 4/3"}
    rows = [
        (
            formulas[name],
            f"{hand['hand'][name]:.12f}",
            f"{hand['library'][name]:.12f}",
            f"{abs(hand['library'][name] - hand['hand'][name]):.1g}",
        )
        for name in ("mlm", "nsp")
    ]
    by_pencil = sum(hand["hand"].values())
    rows.append(("L_MLM + L_NSP", f"{by_pencil:.12f}", f"{total:.12f}", f"{abs(total - by_pencil):.1g}"))
    return Table(columns, tuple(rows))


PARTS = (Part("by-hand", _trials, conclude_by_hand),)
