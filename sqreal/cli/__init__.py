# SPDX-License-Identifier: Apache-2.0
"""The `sqreal` command, one file for each verb: parse, call, print."""
