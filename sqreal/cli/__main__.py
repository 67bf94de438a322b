"""`python -m sqreal.cli`: the `sqreal` command."""

from sqreal.cli.main import main

if __name__ == "__main__":
    main()
