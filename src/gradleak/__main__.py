"""`python -m gradleak` is the same as `gradleak`."""

from gradleak.cli import main

main()
