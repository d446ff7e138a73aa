"""A program without a guard, as users write them: it ends when it is imported."""

raise SystemExit("usage: no arguments were given")
