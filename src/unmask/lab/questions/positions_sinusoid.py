"""Sinusoidal positions: a step is a rotation, a product tells the distance, and no two places are alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from unmask.lab.entry import Conclusion, Part, Plan, Record, Table, Trial, Verdict
from unmask.lab.pictures import Lines, Point, Series
from unmask.lab.words import Text, both
from unmask.models.bert import Bert
from unmask.models.fetch import fetch
from unmask.models.folder import load_model
from unmask.nn.positions.absolute import LearnedPositions, sinusoids

SIZES = (64, 128, 512, 768)
SHIFTS = (1, 2, 7, 50, 511, -3)
PLACES = 10_000
TOLERANCE = 1e-9


def frequencies(size: int) -> list[float]:
    """ω_i = 10000^(−2i/d), written anew: the library's own is what is tested."""
    return [10_000.0 ** (-2 * i / size) for i in range(size // 2)]


def rotation(size: int, shift: int) -> Tensor:
    """M_k by what stands on its diagonal, (d/2, 2, 2): for each pair (sin, cos) the rotation by ω_i k."""
    angles = [omega * shift for omega in frequencies(size)]
    blocks = [[[math.cos(one), math.sin(one)], [-math.sin(one), math.cos(one)]] for one in angles]
    return torch.tensor(blocks, dtype=torch.float64)


def shifted(size: int) -> Record:
    """How far PE(p+k) is from M_k·PE(p), and M_k from what a rotation must be."""
    places = torch.arange(PLACES)
    pairs, found = sinusoids(places, size).unflatten(1, (-1, 2)), {}  # (P, d/2, 2)
    for shift in SHIFTS:
        matrix = rotation(size, shift)
        turned = torch.einsum("ijk,pik->pij", matrix, pairs).flatten(1)
        joined = [(matrix @ rotation(size, other) - rotation(size, shift + other)).abs().max() for other in (1, 50)]
        found[str(shift)] = {
            "shift": float((sinusoids(places + shift, size) - turned).abs().max()),
            "orthogonal": float((matrix @ matrix.mT - torch.eye(2)).abs().max()),
            "product": float(max(joined)),
        }
    return found


def fitted(table: str) -> Record:
    """The matrix of one step by least squares, without any formula, and its error on places that it has not seen."""
    if table == "sinusoid":
        rows = sinusoids(torch.arange(PLACES), 64)
        known = torch.arange(PLACES - 1) % 2 == 0
    else:
        model, _ = load_model(fetch("mini-zh"), dtype=torch.float64)
        assert isinstance(model, Bert)
        positions = model.encoder.embeddings.positions
        assert isinstance(positions, LearnedPositions)
        rows = positions.table.weight.detach()
        known = torch.randperm(len(rows) - 1, generator=torch.Generator().manual_seed(1)) % 4 != 0
    before, after = rows[:-1], rows[1:]
    # Slow waves are nearly straight lines, so the equations hardly tell them apart: by singular values it is stable.
    matrix = torch.linalg.lstsq(before[known], after[known], driver="gelsd").solution
    missed = before[~known] @ matrix - after[~known]
    return {
        "largest": float(missed.abs().max()),
        "relative": float(missed.norm() / after[~known].norm()),
        "standing_still": float((before - after)[~known].norm() / after[~known].norm()),
        "places": int(known.sum()),
    }


def distances() -> Record:
    """Products of all pairs of places, sorted by how far they are apart."""
    size = 512
    rows = sinusoids(torch.arange(PLACES), size)
    low, high = (torch.full((PLACES,), value, dtype=torch.float64) for value in (math.inf, -math.inf))
    for first in range(0, PLACES, 500):
        products = rows[first : first + 500] @ rows[first:].T
        apart = (torch.arange(first, first + 500)[:, None] - torch.arange(first, PLACES)).abs()
        low.scatter_reduce_(0, apart.flatten(), products.flatten(), "amin")
        high.scatter_reduce_(0, apart.flatten(), products.flatten(), "amax")
    omega = torch.tensor(frequencies(size), dtype=torch.float64)
    expected = (torch.arange(PLACES)[:, None] * omega).cos().sum(-1)
    back = torch.tensor([float(rows[9_000] @ rows[9_000 - k]) for k in range(1, 1000)], dtype=torch.float64)
    ahead = torch.tensor([float(rows[9_000] @ rows[9_000 + k]) for k in range(1, 1000)], dtype=torch.float64)
    return {
        "spread": float((high - low).max()),
        "from_cosines": float(torch.maximum((high - expected).abs(), (low - expected).abs()).max()),
        "signs": float((back - ahead).abs().max()),
        "rises": int((expected[1:513] > expected[:512]).sum()),
        "products": [round(float(value), 6) for value in expected[:513:8]],
    }


def nearest(size: int) -> Record:
    """The smallest distance between two different places, over all steps."""
    omega = torch.tensor(frequencies(size), dtype=torch.float64)
    steps = torch.arange(1, PLACES)
    found = 2 * (steps[:, None] * omega / 2).sin().square().sum(-1).sqrt()
    best = int(found.argmin())
    rows = sinusoids(torch.tensor([0, best + 1]), size)
    return {"distance": float(found[best]), "step": best + 1, "by_table": float((rows[0] - rows[1]).norm())}


def _matrix_trials(plan: Plan) -> list[Trial]:
    closed = [Trial(f"d = {size}", partial(shifted, size)) for size in SIZES]
    return [*closed, *(Trial(f"least squares, {table}", partial(fitted, table)) for table in ("sinusoid", "mini-zh"))]


def _distance_trials(plan: Plan) -> list[Trial]:
    return [
        Trial("products, d = 512", partial(distances)),
        *(Trial(f"nearest, d = {size}", partial(nearest, size)) for size in (4, 16, 512)),
    ]


def conclude_matrix(records: Mapping[str, Record]) -> Conclusion:
    """One matrix for each step, whatever the place."""
    worst = {
        name: max(one[name] for size in SIZES for one in records[f"d = {size}"].values())
        for name in ("shift", "orthogonal", "product")
    }
    verdict = Verdict.SUPPORTED if max(worst.values()) <= TOLERANCE else Verdict.NOT_SUPPORTED
    free, table = records["least squares, sinusoid"], records["least squares, mini-zh"]
    head = (
        Text("A step of k places is one matrix, the same everywhere", "移动 k 位就是同一个矩阵，处处相同")
        if verdict == Verdict.SUPPORTED
        else Text("The closed form does NOT hold to 1e-9", "闭式解没有达到 1e-9")
    )
    says = Text(
        f"{head.en}: over {PLACES:,} places, {len(SIZES)} sizes and {len(SHIFTS)} steps PE(p+k) and M_k·PE(p) differ "
        f"by at most {worst['shift']:.0e}; M_k is orthogonal within {worst['orthogonal']:.0e}, and M_k·M_l is M_(k+l) "
        f"within {worst['product']:.0e}. Found by least squares from half of the places, without the formula, it is "
        f"off by {free['largest']:.0e} on the others. mini-zh's learned table, whose first values were such waves, is "
        f"met with a relative error of {table['relative']:.2f} (standing still: {table['standing_still']:.2f}).",
        f"{head.zh}：{PLACES:,} 个位置、{len(SIZES)} 种维度、{len(SHIFTS)} 种位移，PE(p+k) 与 M_k·PE(p) 最多相差 "
        f"{worst['shift']:.0e}；M_k 正交（偏差 {worst['orthogonal']:.0e}），M_k·M_l 等于 M_(k+l)"
        f"（偏差 {worst['product']:.0e}）。不用公式，由一半位置以最小二乘求出的矩阵，在其余位置上误差 "
        f"{free['largest']:.0e}。mini-zh 学到的位置表（初值就是这种正弦）相对误差为 {table['relative']:.2f}"
        f"（原地不动则为 {table['standing_still']:.2f}）。",
    )
    columns = (both("d"), both("k"), both("|PE(p+k) − M_k·PE(p)|"), both("|M·Mᵀ − 1|"), both("|M_k·M_l − M_(k+l)|"))
    rows = tuple(
        (str(size), shift, *(f"{one[name]:.1e}" for name in worst))
        for size in SIZES
        for shift, one in records[f"d = {size}"].items()
    )
    return Conclusion(verdict, says, (), Table(columns, rows))


def conclude_distance(records: Mapping[str, Record]) -> Conclusion:
    """Products tell how far apart two places are, and no two places are alike."""
    found, near = records["products, d = 512"], records["nearest, d = 512"]
    alone = max(found["spread"], found["from_cosines"], found["signs"]) <= TOLERANCE
    if not alone or near["distance"] < 0.01:
        verdict = Verdict.NOT_SUPPORTED
    else:
        verdict = Verdict.SUPPORTED if near["distance"] > 0.1 else Verdict.DEPENDS
    head = (
        Text("The product of two places depends on their distance alone", "两个位置的点积只取决于距离")
        if alone
        else Text("The product of two places does NOT depend on their distance alone", "两个位置的点积并非只取决于距离")
    )
    small = {size: records[f"nearest, d = {size}"] for size in (4, 16)}
    says = Text(
        f"{head.en}: over all pairs of {PLACES:,} places it varies by {found['spread']:.0e} for the same k, is within "
        f"{found['from_cosines']:.0e} of Σ cos(ω_i k), and is the same for +k and −k ({found['signs']:.0e}): how far, "
        f"not which way. The two nearest places for d = 512 are {near['distance']:.2f} apart (k = {near['step']:,}); "
        f"for d = 16 {small[16]['distance']:.2g} (k = {small[16]['step']:,}), for d = 4 {small[4]['distance']:.2g} "
        f"(k = {small[4]['step']:,}). It does not fall steadily: {found['rises']} of 512 steps go up.",
        f"{head.zh}：{PLACES:,} 个位置两两相比，同一个 k 的点积相差不超过 {found['spread']:.0e}，"
        f"与 Σ cos(ω_i k) 相差 {found['from_cosines']:.0e}，+k 与 −k 相同（{found['signs']:.0e}）：只知多远，不知方向。"
        f"d = 512 时最近的两个位置相距 {near['distance']:.2f}（k = {near['step']:,}）；"
        f"d = 16 时 {small[16]['distance']:.2g}（k = {small[16]['step']:,}），"
        f"d = 4 时 {small[4]['distance']:.2g}（k = {small[4]['step']:,}）。"
        f"它并非一路下降：512 步中有 {found['rises']} 步是上升的。",
    )
    if found["rises"] == 0:
        says = Text(
            says.en.replace("It does not fall steadily: 0 of 512 steps go up.", "It falls at every one of 512 steps."),
            says.zh.replace("它并非一路下降：512 步中有 0 步是上升的。", "它在 512 步中一路下降。"),
        )
    picture = Lines(
        Text("PE(p)·PE(p+k), d = 512", "PE(p)·PE(p+k)，d = 512"),
        Text("distance k, places", "距离 k（位）"),
        Text("product", "点积"),
        (Series(both("Σ cos(ω k)"), tuple(Point(8 * n, value) for n, value in enumerate(found["products"]))),),
        Text(
            "Near places are alike, far ones less so; the curve is the same wherever p stands.",
            "近的位置相似，远的不那么相似；无论 p 在哪里，曲线都一样。",
        ),
    )
    return Conclusion(verdict, says, (picture,))


PARTS = (
    Part("matrix", _matrix_trials, conclude_matrix),
    Part("distance", _distance_trials, conclude_distance),
)
