# SPDX-License-Identifier: Apache-2.0
"""Sections of a page: each turns loaded records into a piece of HTML."""
