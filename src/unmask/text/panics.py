"""What the Rust library raises when it gives up: bare exceptions, and panics, which Python does not count as those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unmask.errors import ModelError


def is_ours(error: BaseException) -> bool:
    """Whether an error is not the library's (Ctrl-C, say) and must be raised again."""
    return not isinstance(error, Exception) and type(error).__name__ != "PanicException"


@contextmanager
def panics_told() -> Iterator[None]:
    """Turn the library giving up in the middle of work into one sentence (ModelError).

    A panic has already printed its own lines on stderr by then; Rust gives no way to prevent it from here.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            reason = str(error).partition("\n")[0][:200]
            raise ModelError(
                f"this tokenizer cannot work on the text it was given ({reason}); its tokenizer.json asks for "
                "something that fails or never ends, so take the tokenizer from where the model was published"
            ) from None
        raise
