# SPDX-License-Identifier: Apache-2.0
"""The cost of a model on a GPU: parameters, bytes, KV capacity, seconds a step, and their uncertainty. Pure."""
