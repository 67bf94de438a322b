# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/gpu/kernels.py: sizes, cases, checks, races, times, dense products, rivals."""
