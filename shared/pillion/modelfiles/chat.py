"""Where a model's chat template is written down. Rendering is the gateway's."""

from pathlib import Path

from pillion.modelfiles.errors import ModelFileError
from pillion.modelfiles.gguf import GgufFile
from pillion.modelfiles.locate import Located
from pillion.modelfiles.texts import read_bytes, read_json

DEFAULT = "default"
_GGUF_KEY = "tokenizer.chat_template"


def chat_templates(located: Located, file: str | Path | None = None) -> dict[str, str]:
    """Jinja sources by name; `default` is the one for all cases. {} where the model has none.

    `file` (--chat-template) stands in for all of the model's own. Raises ModelFileError.
    """
    if file is not None:
        return {DEFAULT: _text(Path(file).expanduser(), "--chat-template")}
    if located.kind == "gguf":
        with GgufFile(located.path) as gguf:
            named = [key for key in gguf.metadata if key == _GGUF_KEY or key.startswith(_GGUF_KEY + ".")]
            return {key[len(_GGUF_KEY) + 1 :] or DEFAULT: gguf.text(key) or "" for key in named}
    return _of_folder(located.path)


def _of_folder(folder: Path) -> dict[str, str]:
    path = folder / "tokenizer_config.json"
    templates: dict[str, str] = {}
    match read_json(path, optional=True).get("chat_template"):
        case None:
            pass
        case str() as source:
            templates[DEFAULT] = source
        case [*entries]:
            for entry in entries:
                match entry:
                    case {"name": str(name), "template": str(source)}:
                        templates[name] = source
                    case _:
                        raise ModelFileError(f"{path}: an entry of chat_template lacks name or template")
        case _:
            raise ModelFileError(f"{path}: chat_template must be text or a list of named templates")
    # A file of its own is the newer form and wins.
    for source_file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[source_file.stem] = _text(source_file, "the model's chat template")
    if (folder / "chat_template.jinja").is_file():
        templates[DEFAULT] = _text(folder / "chat_template.jinja", "the model's chat template")
    return templates


def _text(path: Path, what: str) -> str:
    try:
        return read_bytes(path).decode()
    except FileNotFoundError:
        raise ModelFileError(f"{what}: there is no file {path}") from None
    except UnicodeDecodeError:
        raise ModelFileError(f"{what}: {path} is not UTF-8 text") from None
