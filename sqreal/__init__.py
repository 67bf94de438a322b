# SPDX-License-Identifier: Apache-2.0
"""sqreal: run sqsim's scenarios on a real SGLang server (docs/real-server.md)."""
