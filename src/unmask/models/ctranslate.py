"""The border to CTranslate2's Transformers, re-saved as plain arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from unmask.errors import ModelError
from unmask.models.assign import assign, named_tensors
from unmask.models.init import assemble
from unmask.models.names import ctranslate_names, modern_name
from unmask.models.settings import TransformerSettings
from unmask.models.transformer import Transformer


def load_ctranslate(weights: Path, settings: TransformerSettings) -> Transformer:
    """The Transformer whose tensors, under CTranslate2's names, are in an `.npz` file; in eval mode.

    The file does not say how many heads there are or where the norms stand: `settings` must.
    """
    try:
        with np.load(weights, allow_pickle=False) as archive:
            arrays = {modern_name(name): archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{weights}: not an .npz file of plain arrays ({error})") from None
    with torch.device("meta"):
        model = assemble(settings)
    assert isinstance(model, Transformer)
    table = ctranslate_names(settings.num_encoder_layers, settings.num_decoder_layers)
    found = {}
    for name, place in named_tensors(model).items():
        theirs = table.theirs(name)
        array = None if theirs is None else _take(arrays, theirs)
        if array is None or array.shape != tuple(place.shape):
            given = "is missing" if array is None else f"has shape {array.shape}, expected {tuple(place.shape)}"
            raise ModelError(f"{weights}: tensor {theirs or name} {given}; check the settings")
        found[name] = torch.from_numpy(array.copy())
    assign(model, found)
    return model.eval()


def _take(arrays: Mapping[str, npt.NDArray[np.float32]], name: str) -> npt.NDArray[np.float32] | None:
    """A tensor, or the part of one that `name[i/n]` names."""
    whole, _, piece = name.partition("[")
    array = arrays.get(whole)
    if array is None or not piece:
        return array
    number, parts = piece.rstrip("]").split("/")
    return np.split(array, int(parts))[int(number)]
