# SPDX-License-Identifier: Apache-2.0
"""`python -m sqreal.cli`: the `sqreal` command."""

from sqreal.cli.main import main

if __name__ == "__main__":
    main()
