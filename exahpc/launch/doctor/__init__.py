"""`exahpc doctor`: can this site run a deployment, and at what size?

`facts` are gathered (`slurm_facts`, `node`, `exahpc.replica.probe`) and judged by pure functions (`judge_slurm`,
`judge_nodes`, `judge_ranks`) into findings; `finding` says which of them keep a step of the tutorial closed.
`run` does it for one machine or one allocation; `submitted` asks Slurm for nodes to do it on.
"""
