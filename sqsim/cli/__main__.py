# SPDX-License-Identifier: Apache-2.0
"""`python -m sqsim.cli`: the `sqsim` command."""

from sqsim.cli.main import main

if __name__ == "__main__":
    main()
