# SPDX-License-Identifier: Apache-2.0
"""Cost profiles as data files, which `sqsim.models.cost.step_cost` reads."""
