"""``python -m attn_tune``."""

from attn_tune.cli import main

if __name__ == "__main__":
    main()
