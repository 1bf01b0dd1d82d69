"""The `octavo` command as a file, for forks."""

from octavo.cli import main

main()
