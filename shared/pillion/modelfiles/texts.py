"""The small JSON files beside a model's weights."""

from pathlib import Path
from typing import Any

import msgspec

from pillion.modelfiles.errors import ModelFileError

MAX_BYTES = 256 << 20  # of one file; the largest tokenizers have some 40 MiB


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in `path`; {} where it is absent and optional. Raises ModelFileError."""
    try:
        content = msgspec.json.decode(read_bytes(path))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelFileError(f"{path} is missing; the model's folder is incomplete, fetch it again") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} is no JSON ({error}); fetch it again") from None
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return content


def read_bytes(path: Path) -> bytes:
    """The file's bytes. Raises FileNotFoundError, and ModelFileError for all else."""
    try:
        if not path.is_file() and path.exists():  # reading a pipe might never end
            raise ModelFileError(f"{path} is no regular file; fetch the model again")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ModelFileError(f"{path} has {size} bytes; at most {MAX_BYTES} are read of such a file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}") from None
