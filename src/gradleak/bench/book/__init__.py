"""The results book: `python -m gradleak.bench.book` makes the pages of `docs/book/` of committed measurements."""
