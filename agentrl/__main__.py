"""`python -m agentrl` is the command line."""

from agentrl.cli import main

if __name__ == "__main__":
    main()
