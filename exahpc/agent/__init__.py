"""One task of a pool, outside of all MPI: starts and watches the replicas' steps, which outlive it, and relays.

`core` decides about steps (pure), `steps` and `starter` act on them; `relay` turns requests into token ids and
these into response bytes, `traffic` deals requests and batch rows (`leases`) out to replicas; `control` keeps the
broker informed; `main` is the loop. See docs/explanation/failure.md.
"""
