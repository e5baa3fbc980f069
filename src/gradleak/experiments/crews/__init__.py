"""Who runs cells: this process, processes of this machine, a Ray cluster."""
