"""`make ops-demo`: the operations loop on one machine, with simulated engines and no container.

Prometheus, Alertmanager, the proxy and two simulated arms on loopback. A draft that pays is made
slow; the margin falls, BreakEvenLost fires and reaches a webhook; the draft recovers and the alert
clears after its band. Pictures of the dashboards are drawn from the panels' own queries.
Everything here is simulated: it proves rules, panels and delivery, never a draft.
"""
