"""Costs of eviction kernels as data; `sqsim.models.cost.eviction_cost` reads them.

`floor.yaml` holds for every GPU. A record of benchmarks/gpu/kernels.py, put beside it as GPU.jsonl (h200-sxm.jsonl), holds
for that GPU instead.
"""
