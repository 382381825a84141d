from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from unmask.cli.training import _Meter, _PlainLines, duration, summary, training_bar
from unmask.train.progress import Progress
from unmask.train.record import Record


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def progress(update: int, updates: int = 9000, seconds: float = 0.5, loss: float = 5.0) -> Progress:
    return Progress(update, updates, {"mlm": loss, "nsp": 0.25}, 1.0, 1e-4, tokens=3000, seconds=seconds)


# Plain lines


def test_plain_lines_come_at_sensible_times(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = _PlainLines("pretrain", 100, 0, clock)
    for update in range(1, 101):
        clock.now += 0.5
        lines.update(progress(update, 100))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "pretrain: 100 updates",
        "update 1/100  loss mlm 5.000 nsp 0.250  6,000 tokens/s  50 s left",
        "update 21/100  loss mlm 5.000 nsp 0.250  6,000 tokens/s  40 s left",
        "update 41/100  loss mlm 5.000 nsp 0.250  6,000 tokens/s  30 s left",
        "update 61/100  loss mlm 5.000 nsp 0.250  6,000 tokens/s  20 s left",
        "update 81/100  loss mlm 5.000 nsp 0.250  6,000 tokens/s  10 s left",
        "update 100/100  loss mlm 5.000 nsp 0.250  6,000 tokens/s",
    ]


def test_a_pipe_gets_plain_lines_and_what_is_said_between(capsys: pytest.CaptureFixture[str]) -> None:
    with training_bar("pretrain", 50, done=48) as bar:
        bar.update(progress(49, 50))
        bar.say("after update 49: [MASK] → 京 \x1b[31m")
        bar.table(["value", "[now]"], [("巴黎 " * 30, 12345)])
        bar.update(progress(50, 50))
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "pretrain: going on after update 48 of 50"
    assert lines[1].startswith("update 49/50  loss mlm 5.000 nsp 0.250  6,000 tokens/s  ")
    assert lines[2] == "after update 49: [MASK] → 京 \\x1b[31m"
    assert "[now]" in lines[4]
    assert ("巴黎 " * 30).strip() in lines[6]
    assert "12,345" in lines[6]
    assert lines[-1] == "update 50/50  loss mlm 5.000 nsp 0.250  6,000 tokens/s"
    assert "\x1b" not in err


def test_a_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with training_bar("a\x1b[2J", 1) as bar:
        bar.update(Progress(1, 1, {"b\x1b[2J": 1.0}, 1.0, 1.0, 1, 1.0))
    assert "\x1b" not in capsys.readouterr().err


# Speed, time left, losses


def test_the_rate_is_of_late() -> None:
    clock = Clock()
    meter = _Meter(clock)
    for update in range(1, 200):
        seconds = 4.0 if update < 100 else 0.5
        clock.now += seconds
        meter.add(progress(update, 1000, seconds))
    assert meter.rate() == "6,000 tokens/s"
    assert meter.left() == "7 min left"  # 801 updates of half a second


def test_what_an_earlier_process_did_does_not_count_as_fast() -> None:
    clock = Clock()
    meter = _Meter(clock)
    clock.now += 60.0  # reading the checkpoint
    meter.add(progress(8001, 9000, seconds=2.0))
    assert meter.rate() == "1,500 tokens/s"
    assert meter.left() == "33 min left"  # 999 updates of 2 seconds


def test_time_left_knows_of_the_time_between_updates() -> None:
    clock = Clock()
    meter = _Meter(clock)
    for update in range(1, 101):
        clock.now += 1.0 + (50.0 if update % 50 == 0 else 0.0)  # an evaluation as long as the updates before it
        meter.add(progress(update, 400, seconds=1.0))
    assert meter.rate() == "3,000 tokens/s"
    assert meter.left() == "10 min left"


def test_losses_are_running_means() -> None:
    meter = _Meter(Clock())
    assert meter.losses() == []
    meter.add(progress(1, loss=4.0))
    assert meter.losses() == ["mlm 4.000", "nsp 0.250"]
    meter.add(progress(2, loss=2.0))
    assert meter.losses()[0] == f"mlm {(0.95 * 4 + 2) / 1.95:.3f}"
    meter.add(progress(3, loss=float("nan")))
    assert meter.losses()[0] == "mlm nan"
    for update in range(4, 400):
        meter.add(progress(update, loss=0.00123))
    assert meter.losses()[0] == "mlm 0.0012"


def test_time_that_was_not_measured_is_no_trouble() -> None:
    meter = _Meter(Clock())
    meter.add(Progress(1, 2, {}, 1.0, 1.0, tokens=0, seconds=0.0))
    assert (meter.rate(), meter.left(), meter.losses()) == ("", "0 s left", [])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3569, "59 min"),
        (3590, "1 h 0 min"),
        (5520, "1 h 32 min"),
        (86400 * 2 + 3 * 3600, "2 d 3 h"),
    ],
)
def test_durations_have_the_units_that_matter(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# The bar on a terminal

PROGRAM = """
import sys, time
from unmask.cli import training
from unmask.train.progress import Progress
training._REDRAW = 0.0
with training.training_bar("pretrain 北京", 60, done=20) as bar:
    for update in range(21, 61):
        bar.update(Progress(update, 60, {"mlm": 5.0, "nsp": 0.25}, 1.0, 1e-4, 3000, 0.5))
        if update == 40:
            bar.say("after update 40: accuracy 0.5 [MASK] \\x1b[31m")
            bar.table(["value", "now"], [("巴黎", 12345)])
            print("a result")
            print("a remark", file=sys.stderr)
        if update == 50 and len(sys.argv) > 1:
            raise KeyboardInterrupt
"""


def screen(written: str) -> list[str]:
    """What a terminal shows after the few control sequences that rich uses; others are an error."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if piece == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[2K":
            rows[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", piece):
            row -= int(piece[2:-1] or 1)
            assert row >= 0
        elif piece.startswith("\x1b"):
            assert re.fullmatch(r"\x1b\[([0-9;]*m|\?25[lh])", piece), piece
        else:
            rows[row] = rows[row][:column].ljust(column) + piece + rows[row][column + len(piece) :]
            column += len(piece)
    return [text.rstrip() for text in rows]


def run_on_a_terminal(width: int, *arguments: str, stdout: Path | None = None) -> str:
    """All that the program writes to its terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    shell = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    with (stdout or Path(os.devnull)).open("wb") as file:
        command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
        out = file if stdout else theirs
        process = subprocess.Popen(
            command, stdin=theirs, stdout=out, stderr=theirs, env=shell | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
        )
        os.close(theirs)
        written = b""
        try:
            while block := os.read(ours, 1 << 16):
                written += block
        except OSError:  # how Linux says that the other end is closed
            pass
        process.wait()
    os.close(ours)
    return written.decode()


def test_the_bar_is_drawn_over_and_stays_whole(tmp_path: Path) -> None:
    written = run_on_a_terminal(80)
    assert "pretrain 北京" in written
    assert "  21/60  6,000 tokens/s  " in written
    assert "  30/60  6,000 tokens/s  " in written
    rows = screen(written)
    assert rows[0] == "after update 40: accuracy 0.5 [MASK] \\x1b[31m"
    assert rows[4] == "│ 巴黎  │ 12,345 │"
    assert rows[6:8] == ["a result", "a remark"]
    assert re.fullmatch(r"pretrain 北京  ━+  60/60  6,000 tokens/s", rows[8])
    assert rows[9:] == ["loss  mlm 5.000  nsp 0.250", ""]
    assert written.endswith("\x1b[?25h")  # the cursor is back


def test_results_go_to_a_file_if_stdout_is_one(tmp_path: Path) -> None:
    written = run_on_a_terminal(80, stdout=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "a result\n"
    assert "a result" not in written
    assert "  60/60  " in written


def test_a_narrow_terminal_and_an_interruption_leave_it_in_order() -> None:
    written = run_on_a_terminal(46, "stop")
    rows = screen(written)
    bars = [row for row in rows if "/60" in row]
    assert len(bars) == 1
    assert "50/60" in bars[0]
    assert "KeyboardInterrupt" in written
    assert "\x1b[?25h" in written


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with training_bar("pretrain", 2) as bar:
        assert isinstance(bar, _PlainLines)


def test_colours_forced_in_a_pipe_make_no_terminal_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with training_bar("pretrain", 2) as bar:
        assert isinstance(bar, _PlainLines)


# What came of it


def test_the_summary_says_what_came_of_a_run(tmp_path: Path) -> None:
    for done, to in ((0, 30), (20, 40)):
        with Record(tmp_path, done, every=2) as record:
            for update in range(done + 1, to + 1):
                record.update(Progress(update, 40, {"mlm": 44.0 - update, "nsp": 0.5}, 1.0, 1e-4, 300, 1.5))
                if update % 10 == 0:
                    values = {"mlm": abs(update - 30) + 2.0, "accuracy": update / 50, "perplexity": 100.0 - update}
                    record.evaluation(update, values)
    assert summary(tmp_path) == [
        ("updates", 40),
        ("minutes of training", "1.0"),
        ("tokens", 12000),
        ("tokens/s", 200),
        ("final loss mlm, mean of 10 logged", "13"),
        ("final loss nsp, mean of 10 logged", "0.5"),
        ("best mlm evaluated", "2 after update 30"),
        ("best accuracy evaluated", "0.8 after update 40"),
        ("best perplexity evaluated", "60 after update 40"),
    ]


def test_the_summary_of_nothing(tmp_path: Path) -> None:
    assert summary(tmp_path) == [("updates", 0), ("minutes of training", "0.0"), ("tokens", 0), ("tokens/s", 0)]
