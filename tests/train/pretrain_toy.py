"""A small but real pre-training run, to be killed: a corpus, new masks in every epoch, dropout, workers, evaluation.

Started as a program it waits for orders on its standard input, one JSON list a line, and forks a process for each, so
that importing torch is paid for once:

    ["run", CORPUS, RUN, UPDATES]     train; answers with the id of the process
    ["save", RUN]                     write one checkpoint after another for ever; answers likewise
    ["wait"]                          answers with the exit status of the last process, negative for a signal
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from random import Random
from types import FrameType

import torch
from torch import nn

from unmask.data.corpus.build import build_corpus
from unmask.data.corpus.store import Corpus
from unmask.data.masking import MaskingSettings
from unmask.data.pretraining import Examples, ExampleSettings
from unmask.errors import Stopped, UnmaskError
from unmask.models.init import build_model
from unmask.models.settings import BertSettings, MaskedTokenSettings, NextSentenceSettings
from unmask.nn.settings import DropoutSettings
from unmask.tasks.pretrain import HeldOut, Pretraining
from unmask.text.training import VocabularySettings, train_tokenizer
from unmask.train.checkpoint import Position, Trained, drop_old_checkpoints, newest_checkpoint, write_checkpoint
from unmask.train.loop import fit
from unmask.train.optimizer import OptimizerSettings, build_optimizer
from unmask.train.precision import build_scaler
from unmask.train.schedule import ScheduleSettings
from unmask.train.settings import TrainSettings

ENGLISH = "the of and to in he was for on are with they be at one have this from word but what can"
CHINESE = "北京 银行 我们 今天 天气 很 好 中国 人民 的 是 在 不 大学 学生 老师 喜欢 读 书 。 ，"
EXAMPLES = ExampleSettings(length=32, batch_tokens=160, held_out=8, masking=MaskingSettings(unit="word"), seed=5)


def make_corpus(folder: Path) -> Corpus:
    draw = Random(0)
    documents = []
    for _ in range(60):
        words, gap = (CHINESE.split(), "") if draw.random() < 0.5 else (ENGLISH.split(), " ")
        documents.append([gap.join(draw.choices(words, k=draw.randint(2, 12))) for _ in range(draw.randint(1, 9))])
    folder.mkdir(parents=True)
    text = folder / "text.txt"
    text.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    tokenizer = train_tokenizer([text], VocabularySettings(size=120, min_frequency=1))
    return build_corpus([text], tokenizer, folder / "corpus", workers=1)


def settings(updates: int) -> TrainSettings:
    return TrainSettings(
        updates=updates,
        accumulate=2,
        workers=1,
        seed=3,
        log_every=1,
        save_every=20,
        evaluate_every=25,
        average=0.9,
        optimizer=OptimizerSettings(learning_rate=3e-3, weight_decay=0.01),
        schedule=ScheduleSettings(warmup=3),
    )


def new_model(vocab_size: int) -> nn.Module:
    return build_model(
        BertSettings(
            vocab_size=vocab_size,
            num_layers=2,
            hidden_size=16,
            num_heads=2,
            ffn_size=32,
            max_length=32,
            heads=(MaskedTokenSettings(), NextSentenceSettings()),
            dropout=DropoutSettings.everywhere(0.1),
        ),
        seed=1,
    )


def run(corpus: Path, folder: Path, updates: int) -> None:
    """The whole run, or what is left of it."""
    opened = Corpus.open(corpus)
    tokenizer = opened.load_tokenizer()
    evaluator = HeldOut(Examples(opened, EXAMPLES, "held_out"), 600, tokenizer, cloze=("the [MASK] was on",))
    model = new_model(opened.vocab_size)
    fit(model, Pretraining("nsp"), Examples(opened, EXAMPLES), settings(updates), folder, evaluator)


def something_trained() -> Trained:
    """A model and an optimizer that has a memory, large enough that a save takes a while."""
    model = nn.Sequential(nn.Linear(256, 300), nn.Linear(300, 256))
    optimizer = build_optimizer(model, OptimizerSettings())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return Trained(model, optimizer, build_scaler(torch.device("cpu"), "fp32"))


def fill(trained: Trained, number: int) -> Position:
    """Give every number that is saved a value that belongs to this update alone."""
    torch.manual_seed(number)
    memory = [value for one in trained.optimizer.state.values() for value in one.values()]
    with torch.no_grad():
        for tensor in (*trained.model.parameters(), *memory):
            tensor.fill_(number) if tensor.dim() == 0 else tensor.uniform_()
    return Position(updates=number, micro_batches=3 * number, best=1 / number, best_update=number)


def save_for_ever(folder: Path) -> None:
    trained = something_trained()
    newest = newest_checkpoint(folder)
    number = 0 if newest is None else int(newest.name.rpartition("-")[2])
    while True:
        number += 1
        write_checkpoint(folder, trained, fill(trained, number))
        drop_old_checkpoints(folder, 2)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise Stopped(signum)


def _obey(order: list[str]) -> int:
    """What the command line does: a sentence and an exit code."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _stop)
    try:
        if order[0] == "run":
            run(Path(order[1]), Path(order[2]), int(order[3]))
        else:
            save_for_ever(Path(order[1]))
    except UnmaskError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Stopped as stopped:
        return stopped.exit_code
    return 0


def serve() -> None:
    """Fork a process for each order; it is the leader of a group of its own, as a program in a terminal is."""
    torch.set_num_threads(1)
    something_trained()  # torch imports much more when an optimizer is first used
    for name in ("matplotlib.backends.backend_agg", "matplotlib.figure", "tensorboardX"):
        importlib.import_module(name)
    process = 0
    for line in sys.stdin:
        order = json.loads(line)
        if order == ["wait"]:
            answer = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        else:
            answer = process = os.fork()
            if process == 0:
                os.setpgid(0, 0)
                status = 70
                try:
                    status = _obey(order)
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            _lead(process)
        print(answer, flush=True)


def _lead(process: int) -> None:
    """In the parent too, so that the group is there when the order is answered."""
    with contextlib.suppress(OSError):  # already ended, or faster than we are
        os.setpgid(process, process)


if __name__ == "__main__":
    serve()
