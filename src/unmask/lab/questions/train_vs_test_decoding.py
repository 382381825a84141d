"""The decoder all at once, step by step, and prefix by prefix: are these the same numbers, and what do they cost?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.kit.daily import CLS, VOCAB, daily
from unmask.lab.kit.fitting import Fit, fit, seeded
from unmask.lab.kit.speeds import Quartiles, quartiles, timed
from unmask.lab.pictures import Lines, Series
from unmask.lab.words import Text, both
from unmask.models.init import build_model
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Memory, Transformer
from unmask.nn.batch import Batch

PAIRS, LONGEST = 200, 20
LENGTHS, BATCHES = (16, 32, 64, 128), (1, 32)
Pairs = list[tuple[list[int], list[int]]]


def model_of(hidden: int, vocab: int) -> Transformer:
    """Two layers on either side."""
    sizes = {"hidden_size": hidden, "num_heads": 4, "ffn_size": 4 * hidden, "max_length": 256}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    vocabularies = {"source_vocab_size": vocab, "target_vocab_size": vocab}
    model = build_model(TransformerSettings.parse({**sizes, **layers, **vocabularies}), seed=0)
    assert isinstance(model, Transformer)
    return model.eval()


def pairs(held_out: bool, count: int, rng: np.random.Generator) -> Pairs:
    """Stretches of newspaper text, 4 to 20 characters each, and the stretch that follows."""
    articles = [one for one in (daily().held_out if held_out else daily().learned) if len(one) > 2 * LONGEST]
    found = []
    for number in rng.integers(len(articles), size=count):
        source, target = rng.integers(4, LONGEST + 1, size=2)
        start = int(rng.integers(len(articles[number]) - source - target + 1))
        text = articles[number][start : start + source + target].tolist()
        found.append((text[:source], [CLS, *text[source:]]))
    return found


def train(model: Transformer, updates: int) -> None:
    """Some updates of 32 pairs."""
    seeded(0)
    rng = np.random.default_rng(0)

    def loss(_: int) -> Tensor:
        some = pairs(False, 32, rng)
        source, target = (Batch.of([pair[side] for pair in some]) for side in (0, 1))
        logits = target.layout.split(model(source, target))
        told = [torch.tensor(pair[1][1:]) for pair in some]
        return F.cross_entropy(torch.cat([rows[:-1] for rows in logits]), torch.cat(told))

    fit(model, loss, Fit(updates))


class Passes:
    """Counts how often the decoder's first block is run."""

    def __init__(self, model: Transformer) -> None:
        self.count = 0
        self.handle = model.decoder.blocks[0].ffn.register_forward_hook(self._another)  # type: ignore[union-attr]

    def _another(self, *_: object) -> None:
        self.count += 1

    def since(self) -> int:
        """How many since the last question."""
        count, self.count = self.count, 0
        return count


@torch.no_grad()
def compared(model: Transformer, some: Pairs) -> Record:
    """The three ways, and greedy output fed back as if it were the target."""
    passes = Passes(model)
    source, target = (Batch.of([pair[side] for pair in some]) for side in (0, 1))
    whole = target.layout.pad(model(source, target))  # (B, T, V)
    at_once, lengths = passes.since(), torch.tensor(target.layout.lengths)
    memory = model.encode(source)
    ids, steps, fresh = target.layout.pad(target.ids), 0.0, 0.0
    state = model.start(memory)
    for place in range(whole.shape[1]):
        there = lengths > place
        logits, state = model.step(ids[:, place], state)
        steps = max(steps, float((logits - whole[:, place])[there].abs().max()))
        longer = there.nonzero()[:, 0].tolist()
        prefixes = [some[number][1][: place + 1] for number in longer]
        batch = Batch.of(prefixes)
        rows = model.decode(batch, model.encode(Batch.of([some[number][0] for number in longer])))
        last = torch.stack([one[-1] for one in batch.layout.split(rows)])
        fresh = max(fresh, float((model.logits(last) - whole[there, place]).abs().max()))
    passes.since()
    written = greedy(model, memory, len(some))
    one_by_one = passes.since()
    again = Batch.of([[CLS, *row[:-1]] for row in written.tolist()])
    choices = model.logits(model.decode(again, memory)).argmax(-1).view_as(written)
    passes.handle.remove()
    return {
        "steps": steps,
        "fresh": fresh,
        "largest_logit": float(whole.abs().max()),
        "same": int((choices == written).sum()),
        "choices": written.numel(),
        "passes": [at_once, one_by_one],
        "tokens": int(lengths.sum()),
    }


def greedy(model: Transformer, memory: Memory, count: int) -> Tensor:
    """(B, 20) the best token of each step, its past kept."""
    state, ids, found = model.start(memory), torch.full((count,), CLS), []
    for _ in range(LONGEST):
        logits, state = model.step(ids, state)
        ids = logits.argmax(-1)
        found.append(ids)
    return torch.stack(found, dim=1)


def same_logits(updates: int) -> Record:
    """In double and in single precision."""
    model, some = model_of(64, VOCAB), pairs(True, PAIRS, np.random.default_rng(1))
    if updates:
        train(model, updates)
    return {"float32": compared(model, some), "float64": compared(model.double(), some)}


@torch.inference_mode()
def speed(batch: int, rounds: int) -> Record:
    """Seconds of a whole target, for each length and way."""
    model, found = model_of(128, 1000), {}
    for length in LENGTHS:
        generator = torch.Generator().manual_seed(length)
        ids = torch.randint(1000, (batch, length), generator=generator)
        memory = model.encode(Batch.of(ids.tolist()))
        runs: dict[str, Callable[[], object]] = {
            "at once": partial(_at_once, model, ids, memory),
            "steps": partial(_steps, model, ids, memory),
            "afresh": partial(_afresh, model, ids, memory),
        }
        found[str(length)] = timed(runs, rounds)
    return {"seconds": found, "threads": torch.get_num_threads()}


def _at_once(model: Transformer, ids: Tensor, memory: Memory) -> Tensor:
    return model.logits(model.decode(Batch.of(ids.tolist()), memory))


def _steps(model: Transformer, ids: Tensor, memory: Memory) -> None:
    state = model.start(memory)
    for place in range(ids.shape[1]):
        _, state = model.step(ids[:, place], state)


def _afresh(model: Transformer, ids: Tensor, memory: Memory) -> None:
    for place in range(ids.shape[1]):
        rows = model.decode(Batch.of(ids[:, : place + 1].tolist()), memory)
        model.logits(rows.view(len(ids), place + 1, -1)[:, -1])


def _same_trials(plan: Plan) -> list[Trial]:
    arms = {"random weights": 0, "trained weights": plan.at(10, 100)}
    return [Trial(name, partial(same_logits, updates), {"updates": updates}) for name, updates in arms.items()]


def _speed_trials(plan: Plan) -> list[Trial]:
    rounds = plan.at(3, 7)
    return [Trial(f"batch of {size}", partial(speed, size, rounds), {"rounds": rounds}) for size in BATCHES]


def conclude_same(records: Mapping[str, Record]) -> Conclusion:
    """One pass in training gives what the steps of prediction give."""
    right = [_right(record) for record in records.values()]
    verdict = Verdict.SUPPORTED if all(right) else Verdict.DEPENDS if any(right) else Verdict.NOT_SUPPORTED
    double = [record["float64"] for record in records.values()]
    single = [record["float32"] for record in records.values()]
    most = [max(max(one["steps"], one["fresh"]) for one in some) for some in (double, single)]
    same, choices = (sum(one[name] for one in double) for name in ("same", "choices"))
    at_once, steps = double[0]["passes"]
    english = {
        Verdict.SUPPORTED: "The same numbers both ways, with random and with trained weights.",
        Verdict.DEPENDS: "The ways agree in one case and not in the other.",
        Verdict.NOT_SUPPORTED: "The ways do not agree.",
    }[verdict]
    chinese = {
        Verdict.SUPPORTED: "两种方式得到同样的数，随机权重和训练后的权重都是如此。",
        Verdict.DEPENDS: "一种情况下一致，另一种情况下不一致。",
        Verdict.NOT_SUPPORTED: "各种方式的结果不一致。",
    }[verdict]
    says = Text(
        f"{english} At once under the mask, step by step with kept keys and values, and every prefix afresh: logits of "
        f"{double[0]['tokens']} target positions differ by at most {most[0]:.0e} in float64 and {most[1]:.0e} in "
        f"float32. Greedy output fed back as a target is chosen again at {same} of {choices} positions. The decoder "
        f"ran {at_once} time a batch with the true target and {steps} times to write {LONGEST} tokens: what differs "
        "between training and prediction is the content of the prefix and the number of passes.",
        f"{chinese}加掩码一次算完、带键值缓存逐步算、每个前缀从头重算：{double[0]['tokens']} 个目标位置的 logits "
        f"在 float64 下最多相差 {most[0]:.0e}，float32 下最多相差 {most[1]:.0e}。把贪心输出当作目标送回去，"
        f"{choices} 个位置中有 {same} 个选出同一个 token。给定真实目标时每批走 {at_once} 次解码器，写 {LONGEST} 个 "
        f"token 时走 {steps} 次：训练与预测不同的只是前缀的内容和前向的次数。",
    )
    columns = (Text("weights", "权重"), Text("precision", "精度"), Text("steps", "逐步"), Text("afresh", "重算"))
    rows = tuple(
        (name, kind, f"{record[kind]['steps']:.1e}", f"{record[kind]['fresh']:.1e}")
        for name, record in records.items()
        for kind in ("float64", "float32")
    )
    return Conclusion(verdict, says, (), Table(columns, rows))


def _right(record: Record) -> bool:
    double, single = record["float64"], record["float32"]
    return (
        max(double["steps"], double["fresh"]) <= 1e-10
        and max(single["steps"], single["fresh"]) <= 1e-3
        and double["same"] == double["choices"]
        and double["passes"][0] == 1
    )


def conclude_speed(records: Mapping[str, Record]) -> Conclusion:
    """The masked pass against steps, at every length and both batch sizes."""
    cells = {
        (size, length): {
            way: quartiles(seconds, length * size * 1e-6) for way, seconds in _seconds(records, size, length).items()
        }
        for size in BATCHES
        for length in LENGTHS
    }
    faster = [cell["at once"].below(cell["steps"]) and _fastest(cell) for cell in cells.values()]
    apart = [cell["at once"].below(cell["steps"]) or cell["steps"].below(cell["at once"]) for cell in cells.values()]
    slower = [cell["steps"].median <= cell["at once"].median for cell in cells.values()]
    if all(faster):
        verdict = Verdict.SUPPORTED
    elif not any(apart):
        verdict = Verdict.NOT_VISIBLE
    else:
        verdict = Verdict.NOT_SUPPORTED if all(slower) else Verdict.DEPENDS
    ratios = [cell["steps"].median / cell["at once"].median for cell in cells.values()]
    again = [cell["afresh"].median / cell["steps"].median for cell in cells.values()]
    threads = next(iter(records.values()))["threads"]
    says = Text(
        f"The masked pass is the fastest, its quartiles apart from the steps', in {sum(faster)} of {len(cells)} cases "
        f"({len(LENGTHS)} lengths, batches of {BATCHES[0]} and {BATCHES[1]}; {threads} threads). Steps with a cache "
        f"take {min(ratios):.1f} to {max(ratios):.1f} times as long a token; computing every prefix afresh takes "
        f"{min(again):.1f} to {max(again):.1f} times as long as the steps.",
        f"在 {len(cells)} 种情况（{len(LENGTHS)} 种长度，批大小 {BATCHES[0]} 和 {BATCHES[1]}；{threads} 个线程）中，"
        f"有 {sum(faster)} 种是一次算完最快，且四分位区间与逐步算不重叠。带缓存逐步算，每个 token 的时间是它的 "
        f"{min(ratios):.1f} 到 {max(ratios):.1f} 倍；每个前缀重算又是逐步算的 {min(again):.1f} 到 "
        f"{max(again):.1f} 倍。",
    )
    return Conclusion(verdict, says, tuple(_picture(size, cells) for size in BATCHES))


def _seconds(records: Mapping[str, Record], size: int, length: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = records[f"batch of {size}"]["seconds"][str(length)]
    return found


def _fastest(cell: Mapping[str, Quartiles]) -> bool:
    return min(cell, key=lambda way: cell[way].median) == "at once"


def _picture(size: int, cells: Mapping[tuple[int, int], Mapping[str, Quartiles]]) -> Lines:
    names = {
        "at once": Text("at once", "一次算完"),
        "steps": Text("steps with a cache", "带缓存逐步"),
        "afresh": Text("every prefix afresh", "前缀重算"),
    }
    series = tuple(
        Series(name, tuple(cells[size, length][way].point(length) for length in LENGTHS)) for way, name in names.items()
    )
    return Lines(
        Text(f"Time a target token, batch of {size}", f"每个目标 token 的时间，批大小 {size}"),
        Text("target tokens", "目标 token 数"),
        both("µs"),
        series,
        Text(
            "Lower is faster: the distance between the two lower lines is what prediction pays for not knowing the "
            "target.",
            "越低越快：下面两条线之间的距离，就是预测时因为不知道目标而付出的代价。",
        ),
        log_x=True,
        log_y=True,
    )


PARTS = (
    Part("same-logits", _same_trials, conclude_same),
    Part("speed", _speed_trials, conclude_speed),
)
