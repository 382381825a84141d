"""Ctrl-C and SIGTERM in the middle of training: finish the update, save, then leave."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from unmask.errors import Stopped


class Stop:
    """Within the block, the first signal is only noted; a second one does not wait."""

    def __init__(self) -> None:
        self.signum = 0  # 0: none came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # others cannot hear signals
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        if self.signum:
            raise Stopped(signum)
        self.signum = signum
