"""The hot path: a client's connection, an engine's connection, and the bytes between them.

    client ──▶ ClientConnection ──▶ IncomingParser ──▶ Splice ──▶ breakeven_wire ──▶ engine
    client ◀── ClientConnection ◀───────────────────── Splice ◀── breakeven_wire ◀── engine
                                                         │
                            Desk (control): which arm, is there room   (seams.py)
                            Observation (observe): bytes and times

Nothing here knows an arm, a policy, a verdict or a metric: the seams are two small protocols.
"""
