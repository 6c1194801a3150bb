"""The one HTTP/1.1 client connection to an engine that the proxy and the generator measure with.

What lives here: connecting, writing one request, parsing its response (httptools), a time stamp
for each read, the keep-alive pool, TLS, deadlines, back-pressure and abort. What does not: SSE,
tokens, routing, verdicts.

    pool = EnginePool(Origin.parse("http://127.0.0.1:8000"), stamps="kernel")
    started = pool.now()                      # the clock of every stamp of this pool
    exchange = pool.start(Request(b"POST", b"/v1/completions", headers, body), handler)
    ...
    exchange.abort()                          # closes the connection; no callback comes after it
    page = await pool.fetch("GET", "/metrics")
    await pool.close()

The handler (an `ExchangeHandler`; inherit from it to get the optional methods) hears, in order:
`on_informational*  on_head  on_body*  on_end`, or at any point `on_failure`; exactly one of
`on_end` and `on_failure` ends an exchange, and neither comes after `abort()`. It is called from
the event loop; from inside `pool.start()` only `on_pause_writing` can be.

* `on_body(data, stamp)` is called once per *read* with all decoded body bytes of that read
  joined; `stamp` is the time of the read's last segment (kernel) or when it was found (loop).
  `exchange.more` says whether another callback follows from the same read, and
  `exchange.open_lane(sink, observe, failed)` lets reads that are exactly one HTTP chunk go on to a
  client's socket as they are: for those who pass a response on.
* Stamps, `pool.now()`, `exchange.started`, `.connected` and `.sent` are float seconds on one clock:
  CLOCK_REALTIME where `pool.stamps == "kernel"`, CLOCK_MONOTONIC where it is "loop". Use
  differences only. A step of the realtime clock during an exchange sets `exchange.clock_stepped`.
* `exchange.sent` is when the request's last byte was handed to the kernel (None before that).
* The client never queues: `start` takes the most recently used idle connection, or opens a new one.
* A streamed request body: `Request(..., stream="chunked")` or `stream=LENGTH`, then
  `exchange.write(data)` and `exchange.end()`; stop writing between `on_pause_writing` and
  `on_resume_writing`. A big `bytes` body may simply be given whole: it is sent without a copy.
* `Failure` says what went wrong (`FailureKind`), in which `Phase`, and in words that hold no body.
"""

from breakeven_wire.clock import ClockWatch, Stamps, kernel_stamps_work
from breakeven_wire.exchange import Exchange
from breakeven_wire.failure import Failure, FailureKind, Phase
from breakeven_wire.handler import ExchangeHandler
from breakeven_wire.lane import Lane
from breakeven_wire.message import Deadlines, Headers, Request, ResponseHead
from breakeven_wire.origin import Origin
from breakeven_wire.pool import EnginePool, FetchedResponse

__all__ = [
    "ClockWatch",
    "Deadlines",
    "EnginePool",
    "Exchange",
    "ExchangeHandler",
    "Failure",
    "FailureKind",
    "FetchedResponse",
    "Headers",
    "Lane",
    "Origin",
    "Phase",
    "Request",
    "ResponseHead",
    "Stamps",
    "kernel_stamps_work",
]
