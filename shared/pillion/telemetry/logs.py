"""Logs: human lines on a terminal, JSON elsewhere, with trace ids. Prompts and secrets are never logged."""

import logging
import sys
import time
from typing import TextIO

import msgspec
from opentelemetry import trace

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup(level: str, style: str, service: str, stream: TextIO | None = None) -> None:
    """Configures the root logger. `style` is auto, text or json; `extra=` fields become JSON keys."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    text = style == "text" or (style == "auto" and stream.isatty())
    handler.setFormatter(_Text() if text else _Json(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Libraries speak up when something is wrong; their chatter is not ours.
    for name in ("asyncio", "aiohttp.access", "grpc", "httpx", "huggingface_hub", "urllib3"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")


class _Json(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self.service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            line["trace_id"] = f"{context.trace_id:032x}"
            line["span_id"] = f"{context.span_id:016x}"
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
