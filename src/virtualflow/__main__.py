"""``python -m virtualflow`` is ``vf``."""

from virtualflow.cli.main import main

if __name__ == "__main__":
    main()
