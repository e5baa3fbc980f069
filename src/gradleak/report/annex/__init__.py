"""The record for reviewers: what was tried on whose behalf, what came of it, and what that does not show."""
