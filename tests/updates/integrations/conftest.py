"""What needs Flower is left out where there is none; `make test-integrations` has it."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("flwr") else ["flower_run.py"]
