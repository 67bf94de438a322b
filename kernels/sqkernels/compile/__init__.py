# SPDX-License-Identifier: Apache-2.0
"""Compile every kernel without a GPU, and check its machine code against its promises.

    python -m sqkernels.compile             # all variants for sm_90: a table, then what is broken; exit code 1 if anything is

From the ground up: machine_code (a launch to sm_90's instructions), promises (what they must show), variants (which
launches). Needs torch, triton and the assembler in triton's wheel; no GPU, no driver, no TRITON_INTERPRET.
"""
