# SPDX-License-Identifier: Apache-2.0
"""SGLang's scheduler and its KV cache: admission, batches, radix tree, sessions, pools, retraction (RULES.md). Pure."""
