# SPDX-License-Identifier: Apache-2.0
"""Costs of eviction kernels as data files, which `sqsim.models.cost.eviction_cost` reads.

`floor.yaml` applies to every GPU. A record of benchmarks/gpu/kernels.py that lies next to it as GPU.jsonl
(h200-sxm.jsonl) replaces the floor on that GPU.
"""
