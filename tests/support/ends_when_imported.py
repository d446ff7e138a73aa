"""A program without a guard, as users have them: it ends when it is imported."""

raise SystemExit("usage: no arguments were given")
