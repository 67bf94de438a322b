# SPDX-License-Identifier: Apache-2.0
"""A real SGLang server: start or attach, send requests, stop."""
