"""`python -m infra.server`."""

from infra.server.command import main

if __name__ == "__main__":
    main()
