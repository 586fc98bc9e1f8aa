"""The keys with which requests of a trace's tenants are sent: a TOML file of lines `tenant = "key"`."""

import tomllib
from pathlib import Path

from pillion.ops.bench.offered import NoLoad


def tenant_keys(file: str | None) -> dict[str, str]:
    """By tenant; none without a file. Raises NoLoad."""
    if file is None:
        return {}
    try:
        found = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise NoLoad(f"--tenant-keys {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NoLoad(f"--tenant-keys {file} is no TOML: {error}") from None
    if wrong := [name for name, key in found.items() if not isinstance(key, str) or not key.isascii()]:
        raise NoLoad(f'--tenant-keys {file}: {wrong[0]} must be a key, as `{wrong[0]} = "sk-..."`')
    return found
