"""JSON log lines on stderr: fixed events with named fields, and nothing a client sent.

No body, query string, header value or path of a request ever becomes a field. An exception is
logged by its class and the lines of our code it passed, never by its text, which may quote input.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Any, TextIO

import orjson

LOGGER = "breakeven_proxy"


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, event, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        ours = record.name == LOGGER
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            # A library's message may hold what a client sent: only its name is kept.
            "event": record.msg if ours else f"message of {record.name}",
        }
        fields = getattr(record, "fields", None)
        if ours and fields:
            line.update(fields)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["at"] = places(record.exc_info[2])
        return orjson.dumps(line, default=str).decode()


def places(trace: TracebackType | None) -> list[str]:
    """File, line and function of each frame: where, never with what."""
    return [
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(trace)
    ]


class Log:
    """Writes events; the only way this room logs."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, event: str, **fields: object) -> None:
        """Something happened."""
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        """Something a person should know."""
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, error: BaseException | None = None, **fields: object) -> None:
        """Something failed."""
        info = None if error is None else (type(error), error, error.__traceback__)
        self._logger.error(event, exc_info=info, extra={"fields": fields})


def make_logger(stream: TextIO) -> logging.Logger:
    """A logger of its own that writes JSON lines to a stream; not the process's."""
    logger = logging.Logger(LOGGER, logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger


def start_logging(stream: TextIO | None = None) -> Log:
    """Sends all logging of the process through the JSON formatter, libraries' included."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    sys.excepthook = _excepthook
    return Log(logger)


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A crash says where, not with what: the text of an exception may quote a request."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(LOGGER).critical(
        "crashed", extra={"fields": {"exception": kind.__name__, "at": places(trace)}}
    )
