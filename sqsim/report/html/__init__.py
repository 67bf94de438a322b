# SPDX-License-Identifier: Apache-2.0
"""HTML, figures and templates."""
