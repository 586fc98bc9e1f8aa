"""Finds a model's files from what the user wrote: a folder, a GGUF file, a hub id, or `demo`."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pillion.modelfiles.demo import fetch_demo
from pillion.modelfiles.errors import ModelFileError
from pillion.modelfiles.gguf import MAGIC

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_GGUF = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/(\S+\.gguf)")
_TEXTS = ("*.json", "*.jinja")
_WEIGHTS = ("*.safetensors",)


@dataclass(frozen=True, slots=True)
class Located:
    """A model on this machine. `path` is a folder in Hugging Face's layout, or one GGUF file."""

    kind: Literal["folder", "gguf"]
    path: Path
    name: str  # as the user wrote it; what clients see unless told otherwise


def locate(
    model: str, revision: str | None = None, cache_path: Path | None = None, *, weights: bool = True
) -> Located:
    """Finds `model`; fetches a hub id and `demo`. `weights=False` leaves a hub's weights there.

    A hub id follows HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE; `owner/name/file.gguf` is one GGUF
    file of a hub repository. `cache_path` is needed for `demo` only. Raises ModelFileError.
    """
    path = Path(model).expanduser()
    if model == "demo" and not path.exists():
        if cache_path is None:
            raise ModelFileError("the demo model needs a models folder to be kept in")
        return Located("gguf", fetch_demo(cache_path), model)
    if path.exists():
        return _on_disk(path, model)
    if match := _HUB_GGUF.fullmatch(model):
        return Located("gguf", _hub_file(match[1], match[2], revision), model)
    if not on_hub(model):
        raise ModelFileError(
            f"no model at {path}: it must be a folder with config.json, a .gguf file, a hub id, or demo"
        )
    return Located("folder", _hub_folder(model, revision, weights), model)


def on_hub(model: str) -> bool:
    """Whether it has the form of a hub id, or of a file of one."""
    if _HUB_GGUF.fullmatch(model):
        return True
    return not model.endswith(".gguf") and _HUB_ID.fullmatch(model) is not None


def _on_disk(path: Path, name: str) -> Located:
    if path.is_file():
        with _readable(path).open("rb") as file:
            if file.read(4) != MAGIC:
                raise ModelFileError(
                    f"{path} is no GGUF file; for safetensors name the folder that holds config.json"
                )
        return Located("gguf", path, name)
    if (path / "config.json").is_file():
        return Located("folder", path, name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Located("gguf", files[0], name)
    if files:
        raise ModelFileError(f"{path} holds {len(files)} GGUF files; name one of them, e.g. {files[0]}")
    raise ModelFileError(f"{path} holds neither config.json nor a .gguf file; name the folder of a model")


def _readable(path: Path) -> Path:
    if not os.access(path, os.R_OK):
        raise ModelFileError(f"cannot read {path}: permission denied")
    return path


def _hub_folder(model: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [*_TEXTS, *(_WEIGHTS if weights else ())]
    with _HubErrors(model, revision):
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    if not (folder / "config.json").is_file():
        raise ModelFileError(
            f"{model} on the hub has no config.json; name a model, or one GGUF file as {model}/FILE.gguf"
        )
    return folder


def _hub_file(repository: str, file: str, revision: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    with _HubErrors(repository, revision):
        return Path(hf_hub_download(repository, file, revision=revision))


class _HubErrors:
    """Turns the hub client's many errors into ours."""

    def __init__(self, model: str, revision: str | None) -> None:
        self.what = f"{model}@{revision}" if revision else model

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or not isinstance(error, Exception):
            return
        from huggingface_hub import errors

        remedies: tuple[tuple[type[BaseException], str], ...] = (
            (errors.GatedRepoError, "is gated: ask for access on its page and set HF_TOKEN"),
            (errors.RepositoryNotFoundError, "is not on the hub, or private (set HF_TOKEN); no such path"),
            (errors.RevisionNotFoundError, "has no such revision; check --revision"),
            (errors.LocalEntryNotFoundError, "is not in the hub's cache and the hub cannot be reached; check "
             "the network, HF_HUB_OFFLINE and HF_ENDPOINT, or name a folder or a .gguf file"),
            (errors.EntryNotFoundError, "does not have that file; look at its list of files"),
            (errors.HFValidationError, "is no valid hub id, and no such path exists here"),
        )  # fmt: skip
        for known, remedy in remedies:
            if isinstance(error, known):
                raise ModelFileError(f"{self.what} {remedy}") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelFileError(
            f"cannot fetch {self.what} from the hub: {reason}; check the network and HF_ENDPOINT"
        ) from error
