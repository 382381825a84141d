"""Toy tasks that a right implementation learns in seconds, and one that must stay impossible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.decode.greedy import greedy
from unmask.models.bert import Bert
from unmask.models.gpt import Gpt
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, GptSettings, TransformerSettings
from unmask.models.transformer import Transformer
from unmask.nn.batch import Batch

SMALL = {"hidden_size": 32, "num_heads": 2, "ffn_size": 64}
QUIET = {"dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0, "activation": 0.0}}
MASK = 1


def train(model: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float = 3e-3) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def bert(**options: object) -> Bert:
    base = {"vocab_size": 16, "num_layers": 2, "max_length": 16, "init": "xavier"}
    model = build_model(BertSettings.parse(SMALL | QUIET | base | options), seed=1)
    assert isinstance(model, Bert)
    return model


def test_a_bert_learns_to_fill_in_a_pattern() -> None:
    """Tokens count upwards modulo 11 from a random start; any one can be told from its neighbours."""
    model = bert(heads=[{"kind": "mlm"}])
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[Batch, Tensor, Tensor]:
        sequences, answers, rows, first = [], [], [], 0
        for _ in range(count):
            start, length, place = (int(torch.randint(n, (), generator=generator)) for n in (11, 5, 7))
            ids = [2 + (start + t) % 11 for t in range(5 + length)]
            place %= len(ids)
            answers.append(ids[place])
            rows.append(first + place)
            first += len(ids)
            ids[place] = MASK
            sequences.append(ids)
        return Batch.of(sequences), torch.tensor(rows), torch.tensor(answers)

    def logits(batch: Batch, rows: Tensor) -> Tensor:
        return model.masked_token_logits(model(batch).sequence[rows])

    def loss() -> Tensor:
        batch, rows, answers = draw(32)
        return F.cross_entropy(logits(batch, rows), answers)

    train(model, loss, 250)
    batch, rows, answers = draw(200)
    assert (logits(batch, rows).argmax(-1) == answers).float().mean() > 0.95


@pytest.mark.slow  # the command for translation learns it in every run of the tests
def test_a_transformer_learns_to_reverse() -> None:
    options = {"source_vocab_size": 12, "target_vocab_size": 12, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = build_model(TransformerSettings.parse(SMALL | QUIET | options), seed=1)
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(0)
    start, end = 0, 1

    def draw(count: int) -> list[list[int]]:
        lengths = torch.randint(2, 6, (count,), generator=generator).tolist()
        return [torch.randint(2, 12, (length,), generator=generator).tolist() for length in lengths]

    def loss() -> Tensor:
        sources = draw(64)
        wanted = [token for source in sources for token in [*source[::-1], end]]
        logits = model(Batch.of(sources), Batch.of([[start, *source[::-1]] for source in sources]))
        return F.cross_entropy(logits, torch.tensor(wanted))

    train(model, loss, 600, rate=5e-3)
    sources = draw(200)
    found = greedy(model, Batch.of(sources), start_id=start, end_id=end, max_length=8)
    right = total = 0
    for source, one in zip(sources, found, strict=True):
        total += len(source)
        right += sum(a == b for a, b in zip(source[::-1], one.ids, strict=False))
    assert right / total > 0.95
    assert sum(one.ids == source[::-1] for source, one in zip(sources, found, strict=True)) > 180


@pytest.mark.parametrize(
    ("kind", "learns"),
    [
        ("none", False),
        ("learned", True),
        pytest.param("sinusoidal", True, marks=pytest.mark.slow),
        ("rotary", True),
        pytest.param("buckets", True, marks=pytest.mark.slow),
        pytest.param("shaw", True, marks=pytest.mark.slow),
        ("transformer_xl", True),
    ],
)
def test_order_is_learned_with_positions_and_never_without(kind: str, learns: bool) -> None:
    """Does 2 come before 3? The same tokens in either order: without positions nobody can know."""
    model = bert(positions={"kind": kind}, heads=[{"kind": "classify", "labels": ["no", "yes"], "pooling": "mean"}])
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[Batch, Tensor]:
        sequences = []
        for _ in range(count // 2):
            ids = torch.randint(4, 10, (6,), generator=generator)
            first, second = torch.randperm(6, generator=generator)[:2].sort().values.tolist()
            ids[first], ids[second] = 2, 3
            swapped = ids.clone()
            swapped[first], swapped[second] = 3, 2
            sequences += [ids.tolist(), swapped.tolist()]
        return Batch.of(sequences), torch.tensor([1, 0] * (count // 2))

    def loss() -> Tensor:
        batch, labels = draw(32)
        return F.cross_entropy(model.class_logits(model(batch)), labels)

    train(model, loss, 300 if learns else 100)
    batch, labels = draw(200)
    with torch.no_grad():
        logits = model.class_logits(model(batch))
    accuracy = (logits.argmax(-1) == labels).float().mean().item()
    if learns:
        assert accuracy > 0.95
    else:
        torch.testing.assert_close(logits[0::2], logits[1::2], rtol=0, atol=1e-4)
        assert accuracy == pytest.approx(0.5, abs=0.05)


def test_a_crf_learns_which_labels_may_follow() -> None:
    """Labels take turns, and only the first token says which comes first: the rest look all alike."""
    model = bert(
        num_layers=1,
        positions={"kind": "none"},
        heads=[{"kind": "tag", "labels": ["a", "b"], "crf": True, "dropout": 0.0}],
    )
    # Attention could count; a field on plain embeddings cannot, so that the transitions have to do it.
    for parameter in model.encoder.stack.parameters():
        nn.init.zeros_(parameter).requires_grad_(False)
    for block in model.encoder.stack.blocks:
        nn.init.ones_(block.around_attention.norm.weight)
        nn.init.ones_(block.around_ffn.norm.weight)
    crf = model.heads["tag"].crf
    lengths = [3, 5, 1, 7]
    sequences = [[2 + first, *[5] * (length - 1)] for length in lengths for first in (0, 1)]
    wanted = [[(first + t) % 2 for t in range(length)] for length in lengths for first in (0, 1)]
    batch, labels = Batch.of(sequences), torch.tensor([label for row in wanted for label in row])

    def loss() -> Tensor:
        encoded = model(batch)
        return -crf.log_likelihood(model.tag_logits(encoded), labels, encoded.layout).mean()

    train(model, loss, 200, rate=3e-2)
    assert model.best_tags(model(batch)) == wanted
    transitions = crf.transitions.detach()
    assert transitions[0, 1] > transitions[0, 0]
    assert transitions[1, 0] > transitions[1, 1]
    longer = model(Batch.of([[3, *[5] * 12]]))
    assert model.best_tags(longer) == [[(1 + t) % 2 for t in range(13)]]


@pytest.mark.parametrize("kind", ["learned", "rotary", "buckets"])
def test_a_gpt_learns_a_period(kind: str) -> None:
    """Three random tokens again and again: after the first three the rest is certain."""
    options = {"vocab_size": 9, "num_layers": 2, "max_length": 16, "init": "xavier", "positions": {"kind": kind}}
    model = build_model(GptSettings.parse(SMALL | QUIET | options), seed=1)
    assert isinstance(model, Gpt)
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        return torch.randint(9, (count, 3), generator=generator).repeat(1, 4)

    def loss() -> Tensor:
        ids = draw(48)
        logits = model(Batch.of(ids[:, :-1].tolist())).view(48, 11, 9)
        return F.cross_entropy(logits[:, 2:].flatten(0, 1), ids[:, 3:].flatten())

    train(model, loss, 300)
    ids = draw(100)
    state = model.start()
    for t in range(3):
        logits, state = model.step(ids[:, t], state)
    right = []
    for t in range(3, 12):
        token = logits.argmax(-1)
        right.append(token == ids[:, t])
        logits, state = model.step(token, state)
    assert torch.stack(right).float().mean() > 0.95
