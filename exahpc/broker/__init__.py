"""Control of one deployment: who lives, what is rebuilt, who holds which batch rows. No request comes here.

`fleet`, `recovery` and `leases` decide (pure); `journal` keeps what a successor could not learn from the agents;
`rebuilder` acts through Slurm, `batches` on batch folders, `publisher` tells the entries; `main` is the loop. Only
the broker asks Slurm. See docs/explanation/broker.md.
"""
