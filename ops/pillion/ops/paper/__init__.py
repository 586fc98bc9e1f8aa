"""The tables of SARATHI (arXiv 2308.16369) and Sarathi-Serve (OSDI 2024) again, by simulation.

`gpu` says how long a step takes, from data sheets and model configurations; `pipeline` and
`pillion.ops.simulate` run the real scheduler core against it. No constant was fitted to a table.
"""
