"""`exahpc simulate`: the real decisions of a deployment under a virtual clock; see docs/explanation/simulator.md.

scenario    what arrives, what breaks, what it is measured by; pure but for reading the file
presets     scenarios that come with the product
run         one simulation from beginning to end
timeline    what is due, in order
world       everything, wired together
arrivals    requests
faults      what breaks
gateway     an entry: the real desk
head        the broker: the real policies
hands       its real loops around Slurm
host        an agent: the real core
steps       what lies on its node
relay       its requests, by the real rules
room        when entries hear of its load
replica     EMULATED by `lab.emulated.model`
cluster     EMULATED Slurm
outcomes    what became of each request
report      figures, JSON, picture
"""
