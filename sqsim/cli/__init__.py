# SPDX-License-Identifier: Apache-2.0
"""The `sqsim` command, one file a verb: parse, call, print."""
